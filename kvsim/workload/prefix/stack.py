"""LRU at every capacity at once, from stack distances (Mattson et al., 1970)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.workload.prefix.references import References

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StackCurve:
    """Blocks found at every capacity.

    Of the i-th item looked up again, a cache of c blocks holds the first `c - below[i]` blocks, at
    least none and at most all.
    """

    below: Ints
    """Sorted: blocks that are more recent than an item, with the partial block in between."""
    above: Ints
    """Sorted: the capacity from which an item is found whole, in blocks."""
    below_sums: Ints
    above_sums: Ints

    def hit_blocks(self, capacity: int) -> int:
        """Blocks found by all requests together, with room for `capacity` blocks."""
        some = int(np.searchsorted(self.below, capacity))
        whole = int(np.searchsorted(self.above, capacity))
        found = some * capacity - int(self.below_sums[some])
        return found - (whole * capacity - int(self.above_sums[whole]))

    @property
    def enough(self) -> int:
        """The least capacity, in blocks, at which nothing is lost any more."""
        return int(self.above[-1]) if len(self.above) else 0


def stack_curve(references: References) -> tuple[StackCurve, int]:
    """The curve, and how often a copy of a block was looked up while an older one existed.

    The model is one request at a time, all of which fit. When a request ends its blocks become the
    most recent ones, the first block of the prompt before the second and so on, so that the tail is
    evicted first. The partial block of the request before is free but has no hash: it is reused
    first, and until then there is one block less for the others. So a block is found iff the number
    of blocks more recent than it, with itself and that partial one, is at most the capacity. What a
    request makes although it is there (see `References`) becomes a second copy; the old one ages.
    """
    depths, weights, copies = _depths(references)
    below, above = np.sort(depths), np.sort(depths + weights)
    sums = [np.concatenate([[0], np.cumsum(edge)]) for edge in (below, above)]
    return StackCurve(below, above, *sums), copies


def _depths(references: References) -> tuple[Ints, Ints, int]:
    """Per item looked up again: blocks more recent than it, its blocks; and the copies met.

    Every use has a place on a line, later uses further up. It weighs as much as the item from its
    request on until the item is looked up at a later place, so the blocks more recent than an item
    are the weights further up.
    """
    starts, items = references.starts.tolist(), references.items.tolist()
    made, weights = references.made.tolist(), references.weights.tolist()
    rest, partial = references.rest.tolist(), references.partial.tolist()
    line = _Line(len(items) + len(rest))
    last = [-1] * len(weights)
    copied = [False] * len(weights)
    top = copies = free = 0
    depths, found = [], []
    for request, low in enumerate(starts[:-1]):
        high = starts[request + 1]
        mine = range(low, high)
        for index in mine:
            place = last[items[index]]
            if made[index] or place < 0:
                break
            depths.append(line.above(place) + free)
            found.append(weights[items[index]])
            copies += copied[items[index]]
        for index in mine:
            item = items[index]
            if not made[index] and last[item] >= 0:
                line.add(last[item], -weights[item])
            copied[item] = made[index] and last[item] >= 0
        line.add(top, rest[request])
        for place, index in enumerate(reversed(mine), top + 1):
            last[items[index]] = place
            line.add(place, weights[items[index]])
        top += high - low + 1
        free = partial[request]
    return np.array(depths, dtype=np.int64), np.array(found, dtype=np.int64), copies


class _Line:
    """Weights at places 0 to `size - 1`, and their sums from a place on (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)
        self._total = 0

    def add(self, place: int, weight: int) -> None:
        """Change a weight."""
        sums, size = self._sums, len(self._sums)
        self._total += weight
        place += 1
        while place < size:
            sums[place] += weight
            place += place & -place

    def above(self, place: int) -> int:
        """Sum of the weights at places above this one."""
        sums = self._sums
        below = 0
        place += 1
        while place:
            below += sums[place]
            place &= place - 1
        return self._total - below
