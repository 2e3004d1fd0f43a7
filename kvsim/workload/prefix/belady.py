"""The most that any eviction rule could find, at one capacity (Belady, 1966)."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from kvsim.workload.prefix.references import References

Ints = npt.NDArray[np.int64]


def best_hit_blocks(references: References, capacity: int) -> int:
    """Blocks found with room for `capacity` blocks by who evicts what is looked up latest.

    One request at a time; a request holds all its blocks to its end, so only others can be evicted
    for it, and one larger than the pool is rejected. Among blocks next looked up by the same
    request the one further back in its prompt goes first. A block that will be made again before it
    is looked up is worth nothing, like one that is never looked up again.
    """
    fits = references.needs <= capacity
    upcoming = _next_lookups(references, fits).tolist()
    starts, items, made = (
        column.tolist() for column in (references.starts, references.items, references.made)
    )
    needs, weights = references.needs.tolist(), references.weights.tolist()
    held = [0] * len(weights)
    due = [-1] * len(weights)
    latest: list[tuple[int, int]] = []
    total = hits = 0
    for request in np.flatnonzero(fits).tolist():
        mine = range(starts[request], starts[request + 1])
        complete = True
        for index in mine:
            item = items[index]
            if complete and not made[index]:
                hits += held[item]
                complete = held[item] == weights[item]
            total -= held[item]
            held[item] = 0
        excess = total - (capacity - needs[request])
        while excess > 0:
            place, item = heappop(latest)
            if not held[item] or due[item] != -place:
                continue
            lost = min(excess, held[item])
            held[item] -= lost
            total -= lost
            excess -= lost
            if held[item]:
                heappush(latest, (place, item))
        for index in mine:
            if upcoming[index] >= 0:
                item = items[index]
                held[item] = weights[item]
                due[item] = upcoming[index]
                total += weights[item]
                heappush(latest, (-upcoming[index], item))
    return hits


def _next_lookups(references: References, fits: npt.NDArray[np.bool_]) -> Ints:
    """For each reference the next one of its item, or -1 where that makes it or there is none."""
    served = np.flatnonzero(fits[references.owners])
    order = served[np.argsort(references.items[served], kind="stable")]
    following = order[1:]
    again = (references.items[following] == references.items[order[:-1]]) & ~references.made[
        following
    ]
    upcoming = np.full(len(references.items), -1, dtype=np.int64)
    upcoming[order[:-1][again]] = following[again]
    return upcoming
