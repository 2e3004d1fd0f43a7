"""Token ids: a stream's tokens are equal to themselves and to no other stream's."""

from __future__ import annotations

from typing import Any

SPAN = 2**28
"""Ids kept for one stream; longer than any sequence that the format allows."""


class Tokens:
    """Prompts and outputs of one recording as token ids."""

    def __init__(self, hash_id_tokens: int) -> None:
        self._hash_id_tokens = hash_id_tokens
        self._bases: dict[tuple[str, str | int], int] = {}

    def prompt(self, request: dict[str, Any]) -> list[int]:
        """The prompt of a request as the file describes it."""
        length = request["prompt_tokens"]
        tokens: list[int] = []
        if request.get("segments") is not None:
            for stream, count in request["segments"]:
                tokens += self._stream(("named", stream), count)
        elif request.get("hash_ids") is not None:
            for number in request["hash_ids"]:
                count = min(self._hash_id_tokens, length - len(tokens))
                tokens += self._stream(("hash", number), count)
        elif request.get("prefix_group") is not None:
            shared = request["prefix_tokens"]
            tokens += self._stream(("group", request["prefix_group"]), shared)
        return tokens + self._stream(("own", request["id"]), length - len(tokens))

    def output(self, request_id: str, position: int) -> int:
        """The token that a request generates at a position of its output."""
        return self._base(("named", f"out:{request_id}")) + position

    def _stream(self, name: tuple[str, str | int], count: int) -> list[int]:
        base = self._base(name)
        return list(range(base, base + count))

    def _base(self, name: tuple[str, str | int]) -> int:
        return self._bases.setdefault(name, len(self._bases)) * SPAN
