"""Where an extent goes in an arena of blocks: buddy, first fit, best fit, next fit.

Addresses and sizes are blocks. A placement knows the free address ranges only; who holds the rest
is its caller's business. Every one keeps the largest extent it can hand out at hand, so a request
that does not fit is refused without a search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import chain, pairwise
from typing import Protocol


class Placement(Protocol):
    """The free part of an arena of `num_blocks` blocks."""

    free_blocks: int
    """Free blocks, in whatever pieces."""
    max_extent: int
    """Blocks of the largest extent an empty arena can hand out."""

    def __init__(self, num_blocks: int, *, max_chunk_blocks: int | None = None) -> None: ...

    def round_up(self, blocks: int) -> int:
        """Size of the extent that holds `blocks` blocks. Changes nothing."""

    def largest(self) -> int:
        """Blocks of the largest extent that can be handed out now; 0 when full."""

    def place(self, size: int) -> int | None:
        """Take an extent of `size` blocks (a value of `round_up`); its address, None: no room."""

    def release(self, start: int, size: int) -> None:
        """Take back an extent that `place` gave out, whole."""

    def holes(self) -> list[tuple[int, int]]:
        """Free ranges `(address, size)` in address order, buddies as separate chunks."""

    def check(self) -> None:
        """Raise `AssertionError` unless the free ranges are coalesced and counted right."""


class HoleList:
    """Free ranges in address order, coalesced on release. Subclasses choose the hole."""

    def __init__(self, num_blocks: int, *, max_chunk_blocks: int | None = None) -> None:
        if max_chunk_blocks is not None:
            raise ValueError(
                f"max_chunk_tokens (={max_chunk_blocks} blocks) needs placement buddy: "
                f"the other placements have no chunks"
            )
        self.free_blocks = num_blocks
        self.max_extent = num_blocks
        self._starts = [0]
        self._lengths = [num_blocks]
        self._largest: int | None = num_blocks
        """Length of the longest hole; None after it was cut."""

    def _find(self, size: int) -> int:
        """Index of the hole to use. Called only when one is large enough."""
        raise NotImplementedError

    def round_up(self, blocks: int) -> int:
        """Any size can be placed. Changes nothing."""
        return blocks

    def largest(self) -> int:
        """Length of the longest hole in blocks."""
        if self._largest is None:
            self._largest = max(self._lengths, default=0)
        return self._largest

    def place(self, size: int) -> int | None:
        """Cut `size` blocks off the low end of the chosen hole; None when every hole is shorter."""
        if size > self.largest():
            return None
        index = self._find(size)
        start, length = self._starts[index], self._lengths[index]
        if length == size:
            del self._starts[index], self._lengths[index]
        else:
            self._starts[index] = start + size
            self._lengths[index] = length - size
        if length == self._largest:
            self._largest = None
        self.free_blocks -= size
        return start

    def release(self, start: int, size: int) -> None:
        """Add the range to the holes and join it with its free neighbours."""
        starts, lengths = self._starts, self._lengths
        self.free_blocks += size
        index = bisect_left(starts, start)
        if index < len(starts) and starts[index] == start + size:
            size += lengths[index]
            del starts[index], lengths[index]
        if index and starts[index - 1] + lengths[index - 1] == start:
            lengths[index - 1] += size
            size = lengths[index - 1]
        else:
            starts.insert(index, start)
            lengths.insert(index, size)
        if self._largest is not None and size > self._largest:
            self._largest = size

    def pack(self, cursor: int, until: int) -> None:
        """Gather all free blocks below `until` into one hole that starts at `cursor`.

        The caller has moved everything that lived in `cursor..until` below `cursor`.
        """
        index = bisect_left(self._starts, until)
        self._starts[:index] = [cursor]
        self._lengths[:index] = [until - cursor]
        self._largest = None

    def holes(self) -> list[tuple[int, int]]:
        """Free ranges `(address, size)` in address order."""
        return list(zip(self._starts, self._lengths, strict=True))

    def check(self) -> None:
        """Raise `AssertionError` unless no two holes touch and both counts are right."""
        holes = self.holes()
        for (low, size), (high, _) in pairwise(holes):
            if low + size >= high:
                raise AssertionError(f"hole {low}+{size} touches the next one at {high}")
        _check_counts(self.free_blocks, self.largest(), holes)


class FirstFit(HoleList):
    """The hole with the lowest address that is long enough."""

    def _find(self, size: int) -> int:
        for index, length in enumerate(self._lengths):
            if length >= size:
                return index
        raise AssertionError(f"no hole of {size} blocks among {self.holes()}")


class BestFit(HoleList):
    """The shortest hole that is long enough; of equal ones the lowest address."""

    def _find(self, size: int) -> int:
        best = -1
        shortest = self.max_extent + 1
        for index, length in enumerate(self._lengths):
            if size <= length < shortest:
                best, shortest = index, length
        return best


class NextFit(HoleList):
    """First fit from the end of the latest placement onwards, wrapping to address 0.

    A hole that reaches across that address, because the range before it was released, comes first
    and is used from its low end.
    """

    def __init__(self, num_blocks: int, *, max_chunk_blocks: int | None = None) -> None:
        super().__init__(num_blocks, max_chunk_blocks=max_chunk_blocks)
        self._rover = 0
        """Address just after the latest placement."""

    def _find(self, size: int) -> int:
        starts, lengths = self._starts, self._lengths
        first = bisect_right(starts, self._rover)
        if first and starts[first - 1] + lengths[first - 1] > self._rover:
            first -= 1
        for index in chain(range(first, len(starts)), range(first)):
            if lengths[index] >= size:
                self._rover = starts[index] + size
                return index
        raise AssertionError(f"no hole of {size} blocks among {self.holes()}")


class Buddy:
    """Chunks of a power of two blocks, split on demand and joined again with their buddy only.

    The pool starts as the binary decomposition of `num_blocks`, the largest chunk at address 0;
    with `max_chunk_blocks` as that many whole chunks as fit and the decomposition of the rest
    (the SOSP'23 artifact's chunks reach 2,048 tokens). The smallest sufficient chunk is split,
    the lowest address first, and its lower half is kept.
    """

    def __init__(self, num_blocks: int, *, max_chunk_blocks: int | None = None) -> None:
        cap = num_blocks if max_chunk_blocks is None else max_chunk_blocks
        if cap < 1 or (max_chunk_blocks is not None and cap & (cap - 1)):
            raise ValueError(f"max_chunk_blocks (={cap}) must be a power of two")
        self._top = min(cap, num_blocks).bit_length() - 1
        self._free: list[list[int]] = [[] for _ in range(self._top + 1)]
        """Addresses of the free chunks, sorted, by order (log2 of the size)."""
        self._orders = 0
        """Bit k is set while a free chunk of order k exists."""
        self.free_blocks = num_blocks
        self.max_extent = 1 << self._top
        address = 0
        while address < num_blocks:
            order = min(self._top, (num_blocks - address).bit_length() - 1)
            self._free[order].append(address)
            self._orders |= 1 << order
            address += 1 << order

    def round_up(self, blocks: int) -> int:
        """Smallest power of two >= `blocks`. Changes nothing."""
        size: int = 1 << (blocks - 1).bit_length()
        return size

    def largest(self) -> int:
        """Blocks of the largest free chunk."""
        return 1 << (self._orders.bit_length() - 1) if self._orders else 0

    def place(self, size: int) -> int | None:
        """Take a chunk of `size` blocks, a power of two; None when every free one is smaller."""
        order = size.bit_length() - 1
        sufficient = self._orders >> order
        if not sufficient:
            return None
        found = order + (sufficient & -sufficient).bit_length() - 1
        chunks = self._free[found]
        start = chunks.pop(0)
        if not chunks:
            self._orders ^= 1 << found
        # The orders below `found` are empty, so each upper half is alone in its list.
        for upper in range(order, found):
            self._free[upper].append(start + (1 << upper))
            self._orders |= 1 << upper
        self.free_blocks -= size
        return start

    def release(self, start: int, size: int) -> None:
        """Free the chunk and join it with its buddy as long as that one is free too."""
        self.free_blocks += size
        order = size.bit_length() - 1
        # Every initial chunk lies at a multiple of its size, and the chunk above one below the
        # limit is smaller than it: the address of a buddy is one bit away, and no join crosses
        # the border of an initial chunk.
        while order < self._top:
            chunks = self._free[order]
            buddy = start ^ (1 << order)
            index = bisect_left(chunks, buddy)
            if index == len(chunks) or chunks[index] != buddy:
                break
            del chunks[index]
            if not chunks:
                self._orders ^= 1 << order
            start &= buddy
            order += 1
        insort(self._free[order], start)
        self._orders |= 1 << order

    def holes(self) -> list[tuple[int, int]]:
        """Free chunks `(address, size)` in address order."""
        chunks = enumerate(self._free)
        return sorted((start, 1 << order) for order, starts in chunks for start in starts)

    def check(self) -> None:
        """Raise `AssertionError` unless chunks are aligned, joined and counted right."""
        holes = self.holes()
        free = set(holes)
        for start, size in holes:
            if start % size:
                raise AssertionError(f"chunk {start}+{size} is not at a multiple of its size")
            if size < self.max_extent and (start ^ size, size) in free:
                raise AssertionError(f"chunk {start}+{size} and its buddy are both free")
        _check_counts(self.free_blocks, self.largest(), holes)


PLACEMENTS: dict[str, type[Placement]] = {
    "buddy": Buddy,
    "first_fit": FirstFit,
    "best_fit": BestFit,
    "next_fit": NextFit,
}


def _check_counts(free_blocks: int, largest: int, holes: list[tuple[int, int]]) -> None:
    total = sum(size for _, size in holes)
    if free_blocks != total:
        raise AssertionError(f"free_blocks {free_blocks} != sum of the holes {total}: {holes}")
    longest = max((size for _, size in holes), default=0)
    if largest != longest:
        raise AssertionError(f"largest {largest} != longest hole {longest}: {holes}")
