"""Work lists: which thread-sized pieces a batch's attention falls into."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.integer[Any]]

SPLIT = 512
"""Keys per item where a single position is attended. Fixed-length pieces: a few long sequences use
all threads, and the result does not depend on their number."""
QUERY_ROWS = 128
"""Query rows (positions x heads per KV head) per item where there are many."""


class Work(NamedTuple):
    """`items` int64 [n, 7] (columns `kernels.Item`), `splits` int64 [m, 3] (see `reduce_kernel`),
    `positions` of the largest item, `slots` of partial results."""

    items: Ints
    splits: Ints
    positions: int
    slots: int


@njit(nogil=True, cache=True)
def _count(query_start, context_lens, window, tile):
    """Items and split positions, at most."""
    items, splits = 0, 0
    for sequence in range(context_lens.size):
        count = query_start[sequence + 1] - query_start[sequence]
        if count == 1:
            items += -(-context_lens[sequence] // SPLIT)
            splits += 1
        else:
            items += -(-count // tile)
    return items, splits


@njit(nogil=True, cache=True)
def _fill(items, splits, query_start, context_lens, window, tile):
    """Write the lists; return how much of them is used, the largest item and the slots."""
    n, m, slots, largest = 0, 0, 0, 1
    for sequence in range(context_lens.size):
        token = query_start[sequence]
        count = query_start[sequence + 1] - token
        context = context_lens[sequence]
        if context == 0:
            continue
        for done in range(0, count, tile):
            length = min(tile, count - done)
            first = context - count + done
            low = max(0, first - window + 1) if window else 0
            end = first + length
            step = SPLIT if count == 1 else end - low
            split = end - low > step
            before = slots
            for start in range(low, end, step):
                slot = -1
                if split:
                    slot, slots = slots, slots + 1
                items[n] = (
                    sequence,
                    token + done,
                    length,
                    first,
                    start,
                    min(end, start + step),
                    slot,
                )
                n += 1
            if split:
                splits[m] = (token, before, slots)
                m += 1
            largest = max(largest, length)
    return n, m, largest, slots


@njit(nogil=True, cache=True)
def first_bad_block(table, query_start, context_lens, block_size, window, num_blocks):
    """The first sequence whose keys lie in a block that does not exist, or -1."""
    for sequence in range(context_lens.size):
        context = context_lens[sequence]
        first = context - (query_start[sequence + 1] - query_start[sequence])
        low = max(0, first - window + 1) if window else 0
        for block in range(low // block_size, -(-context // block_size)):
            if not 0 <= table[sequence, block] < num_blocks:
                return sequence
    return -1


def plan_work(query_start: Ints, context_lens: Ints, *, group: int, window: int) -> Work:
    """The work of a batch: sequence i's queries are the last positions of its context.

    query_start [seqs + 1], context_lens [seqs]; `group` query heads share a KV head; `window` as in
    the kernels. Sequences without context get no item.
    """
    tile = max(1, QUERY_ROWS // group)
    n, m = _count(query_start, context_lens, window, tile)
    items, splits = np.empty((n, 7), np.int64), np.empty((m, 3), np.int64)
    n, m, positions, slots = _fill(items, splits, query_start, context_lens, window, tile)
    return Work(items[:n], splits[:m], positions, slots)
