"""What the tokens of a request are, and which sequences of tokens are the same."""

from __future__ import annotations

from typing import Any

Token = tuple[object, int]
"""The stream that a token belongs to and its place in it: equal tokens are equal pairs."""


def prompt_tokens(item: dict[str, Any], hash_id_tokens: int) -> list[Token]:
    """The prompt of a recorded request; what no stream describes is the request's own."""
    count: int = item["prompt_tokens"]
    tokens: list[Token] = []
    for stream, length in item.get("segments") or []:
        tokens.extend((stream, index) for index in range(length))
    for hash_id in item.get("hash_ids") or []:
        tokens.extend((("hash", hash_id), index) for index in range(hash_id_tokens))
    if item.get("prefix_group") is not None:
        group = ("prefix", item["prefix_group"])
        tokens.extend((group, index) for index in range(item["prefix_tokens"]))
    own = ("own", item["id"])
    tokens.extend((own, index) for index in range(count - len(tokens)))
    return tokens[:count]


def output_token(request_id: str, index: int) -> Token:
    """Another request's prompt names the output of this one as the stream `out:<id>`."""
    return (f"out:{request_id}", index)


class PrefixIds:
    """Gives each distinct sequence of tokens that ends at a block's end a number (section 5)."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, tuple[Token, ...]], int] = {}

    def number(self, before: int, tokens: tuple[Token, ...]) -> int:
        """The number of the sequence `before` continued by `tokens`."""
        return self.numbers.setdefault((before, tokens), len(self.numbers) + 1)
