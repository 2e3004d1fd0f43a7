"""LRU at one capacity, step by step: exact where the stack curve is not."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.workload.prefix.references import References


@dataclass(eq=False, slots=True)
class _Copy:
    """Blocks of one item that are cached together; the tail is evicted first."""

    blocks: int


class LruCache:
    """The prefix cache of a pool of `capacity` blocks that serves one request at a time.

    Rules of vLLM 0.33 (in `core/block_pool.py`): a request finds the longest run of cached blocks
    from its first one on; new blocks are free ones without a hash first, then the least recently
    used; the blocks of a finished request become most recently used, its first block last of all;
    of equal blocks the one cached earliest is found. A request larger than the pool is rejected and
    changes nothing.

    `hits` are the blocks found so far.
    """

    def __init__(self, references: References, capacity: int) -> None:
        self.capacity = capacity
        self.hits = 0
        self._weights = references.weights.tolist()
        self._unhashed = capacity
        self._queue: dict[_Copy, None] = {}
        self._copies: list[list[_Copy]] = [[] for _ in self._weights]

    def serve(self, items: list[int], made: list[bool], rest: int, needs: int) -> int:
        """Run one request to its end. Returns the blocks it found."""
        if needs > self.capacity:
            return 0
        looked_up = made.index(True) if True in made else len(items)
        found = 0
        for item in items[:looked_up]:
            blocks = self._find(item)
            found += blocks
            if blocks < self._weights[item]:
                break
        self.hits += found
        self._take(needs - found)
        if rest:
            self._queue[_Copy(rest)] = None
        hashed = rest
        for index in range(len(items) - 1, -1, -1):
            item = items[index]
            hashed += self._weights[item]
            copy = _Copy(self._weights[item])
            self._queue[copy] = None
            if index < looked_up:
                self._copies[item].clear()
            self._copies[item].append(copy)
        self._unhashed += needs - hashed
        return found

    def _find(self, item: int) -> int:
        """Take the cached blocks of an item, each from its earliest copy, out of the queue."""
        found = 0
        for copy in self._copies[item]:
            if copy.blocks > found:
                copy.blocks, found = found, copy.blocks
                if not copy.blocks:
                    del self._queue[copy]
        self._copies[item].clear()
        return found

    def _take(self, blocks: int) -> None:
        """Use up free blocks, evicting what was used longest ago."""
        unhashed = min(self._unhashed, blocks)
        self._unhashed -= unhashed
        blocks -= unhashed
        while blocks:
            oldest = next(iter(self._queue))
            if oldest.blocks > blocks:
                oldest.blocks -= blocks
                return
            blocks -= oldest.blocks
            oldest.blocks = 0
            del self._queue[oldest]


def lru_hit_blocks(references: References, capacity: int) -> int:
    """Blocks found by all requests together, with room for `capacity` blocks."""
    cache = LruCache(references, capacity)
    starts, items, made = (
        column.tolist() for column in (references.starts, references.items, references.made)
    )
    rest, needs = references.rest.tolist(), references.needs.tolist()
    for request, low in enumerate(starts[:-1]):
        high = starts[request + 1]
        cache.serve(items[low:high], made[low:high], rest[request], needs[request])
    return cache.hits
