"""vLLM's prefix cache with one request at a time, block by block: the reference for the analysis.

Written from SPEC sections 3 to 5: block ids, a free queue, hash -> blocks in the order cached.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from kvsim.core.request import Request

Token = tuple[Hashable, int]


def token_names(request: Request) -> list[Token]:
    """Every token that gets KV: equal names up to a place mean equal tokens up to there."""
    own = ("own", request.request_id)
    segments = request.segments or ((own, request.prompt_tokens),)
    names: list[Token] = [(stream, i) for stream, length in segments for i in range(length)]
    output = request.output_stream
    if output is None or request.segments is None:
        output = ("output", request.request_id)
    return [*names, *((output, i) for i in range(request.output_tokens - 1))]


class PlainCache:
    """A pool of `capacity` blocks; `serve` runs one request to its end."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self.free = list(range(capacity))
        self.hash_of: dict[int, tuple[Token, ...]] = {}
        self.cached: dict[tuple[Token, ...], list[int]] = {}

    def serve(self, request: Request) -> int | None:
        """Tokens found in the cache; None if the request is larger than the pool."""
        names = token_names(request)
        size = self.block_size
        if -(-len(names) // size) > self.capacity:
            return None
        table: list[int] = []
        for index in range((request.prompt_tokens - 1) // size):
            same = self.cached.get(tuple(names[: (index + 1) * size]))
            if not same:
                break
            table.append(same[0])
        found = len(table) * size
        for block in table:
            self.free.remove(block)
        # The prompt in one step, then a token per step; blocks are hashed when they are full.
        for known in range(request.prompt_tokens, len(names) + 1):
            while len(table) * size < known:
                table.append(self._take())
            self._cache(table, names[:known])
        back = table[::-1]
        unhashed = [block for block in back if block not in self.hash_of]
        hashed = [block for block in back if block in self.hash_of]
        self.free = unhashed[::-1] + self.free + hashed
        assert sorted(self.free) == list(range(self.capacity))
        return found

    def _take(self) -> int:
        block = self.free.pop(0)
        if block in self.hash_of:
            name = self.hash_of.pop(block)
            self.cached[name].remove(block)
        return block

    def _cache(self, table: list[int], names: list[Token]) -> None:
        size = self.block_size
        for index in range(len(names) // size):
            if table[index] not in self.hash_of:
                name = tuple(names[: (index + 1) * size])
                self.hash_of[table[index]] = name
                self.cached.setdefault(name, []).append(table[index])


def plain_hits(requests: Iterable[Request], capacity: int, block_size: int) -> list[int | None]:
    """Tokens each request finds."""
    cache = PlainCache(capacity, block_size)
    return [cache.serve(request) for request in requests]
