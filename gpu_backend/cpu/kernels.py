"""The attention kernel: one compiled function for decode and prefill, paged and contiguous.

The keys of a work item are first written down as row offsets, so the arithmetic never meets the
block table: block sizes of any kind cost one list of integers, and the next rows can be prefetched
although they lie in another block. A contiguous extent is a block table with one long block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit

from gpu_backend.cpu.simd import (
    TOKENS,
    peak_of,
    score_tile,
    source_digest,
    take_next,
    weigh_tile,
    weights_of,
)

STRIP = 32
"""Keys used for all query rows before the next ones: they stay in the first-level cache."""
AHEAD = 16
"""Rows prefetched ahead of their use: at head size 128 as much as a core can have under way."""

_LOWEST = np.float32(-1e30)  # finite: the compiled code assumes that there are no infinities
_HELPER = {"nogil": True, "fastmath": True, "error_model": "numpy"}
_ENTRY = {**_HELPER, "cache": True}  # a helper is part of its entry: cached alone it could be stale


class Geometry(NamedTuple):
    """Sizes, and where rows lie in the flat caches: strides count elements."""

    kv_heads: int
    group: int  # query heads per KV head
    block_size: int
    block_stride: int  # from one block id to the next
    head_stride: int
    row_stride: int  # from one token to the next
    window: int  # keys a position sees, itself included; 0: all before it
    chunk: int  # keys scored at once, a multiple of STRIP
    positions: int  # of the largest item


class Item(NamedTuple):
    """Columns of a work list, int64 [items, 7]; an item runs once per KV head."""

    sequence: int
    token: int  # first row of the query and output
    positions: int
    first: int  # the first position's place in its context
    start: int  # keys [start, end)
    end: int
    slot: int  # row of the partial results, or -1: the item is all of its positions' work


@njit(**_HELPER)
def _row_offsets(offsets, blocks, start, count, base, geometry):
    """Offsets of keys [start, start + count); places prefetched behind repeat the last."""
    block = start // geometry.block_size
    inside = start - block * geometry.block_size
    done = 0
    while done < count:
        length = min(geometry.block_size - inside, count - done)
        row = np.int64(blocks[block]) * geometry.block_stride + base + inside * geometry.row_stride
        for i in range(length):
            offsets[done + i] = row + i * geometry.row_stride
        done += length
        block += 1
        inside = 0
    offsets[count : count + AHEAD + TOKENS] = offsets[count - 1]


@njit(**_HELPER)
def _load_queries(rows, query, item, head, scale, geometry, dim):
    """Scaled query rows, position by position, then zeros."""
    length = geometry.group * dim
    for p in range(item.positions):
        source = query[((item.token + p) * geometry.kv_heads + head) * length :]
        target = rows[p * length : (p + 1) * length]
        for i in range(target.size):
            target[i] = source[i] * scale
    rows[item.positions * length :] = 0


@njit(**_HELPER)
def _softmax(scores, peaks, sums, totals, height, item, start, count, geometry, dim):
    """Turn scores into weights, base 2; rescale what was summed under a lower peak."""
    for r in range(height):
        position = item.first + r // geometry.group
        low = max(0, position - geometry.window + 1 - start) if geometry.window else 0
        high = min(count, position + 1 - start)
        row = scores[r * geometry.chunk :]
        peak = peak_of(row, low, high, count, peaks[r])
        if peak > peaks[r]:
            shrink = math.exp2(peaks[r] - peak)
            peaks[r] = peak
            sums[r] *= shrink
            so_far = totals[r * dim : (r + 1) * dim]
            for c in range(so_far.size):
                so_far[c] *= shrink
        sums[r] += weights_of(row, low, high, count, peak)


@njit(**_HELPER)
def _write_rows(out, totals, sums, item, head, geometry, dim):
    """The item's rows, normalised, into their place in the output."""
    length = geometry.group * dim
    for p in range(item.positions):
        for r in range(geometry.group):
            row = p * geometry.group + r
            share = np.float32(1) / sums[row]
            source = totals[row * dim : (row + 1) * dim]
            target = out[((item.token + p) * geometry.kv_heads + head) * length + r * dim :]
            for c in range(source.size):
                target[c] = source[c] * share


@njit(**_HELPER)
def _write_partial(partial, totals, peaks, sums, item, head, geometry, dim):
    """One position's sums, peak and weight sum, [slots, heads, dim + 2], for `reduce_kernel`."""
    width = dim + 2
    for r in range(geometry.group):
        at = ((item.slot * geometry.kv_heads + head) * geometry.group + r) * width
        partial[at : at + dim] = totals[r * dim : (r + 1) * dim]
        partial[at + dim] = peaks[r]
        partial[at + dim + 1] = sums[r]


@cache
def attention_kernel(dim: int, tile: int) -> Callable[..., None]:
    """The kernel for one head size, with `tile` query rows kept in registers.

    Compiled on its first call, or loaded from numba's cache on disk. Call it on as many threads as
    you like with one `counter`: each takes the next (item, KV head) until there is none. Arguments:
    query and out, flat [tokens, heads, dim]; key and value, the flat caches; table int32
    [sequences, blocks]; work int64 [items, 7]; partial, flat [slots, heads, dim + 2]; scale x
    log2(e).
    """
    digest = source_digest()  # in the closure, so that numba's cache sees a change of simd.py

    @njit(**_ENTRY)
    def attend(query, key, value, out, table, work, partial, scale, geometry, counter):
        chunk = geometry.chunk
        most = -(-geometry.positions * geometry.group // tile) * tile
        rows = np.empty(most * dim, np.float32)
        totals = np.empty(most * dim, np.float32)
        scores = np.empty(most * chunk, np.float32)
        peaks = np.empty(most, np.float32)
        sums = np.empty(most + (digest & 0), np.float32)
        offsets = np.empty(chunk + AHEAD + TOKENS, np.int64)
        while True:
            turn = take_next(counter)
            if turn >= work.shape[0] * geometry.kv_heads:
                return
            line = work[turn // geometry.kv_heads]
            item = Item(line[0], line[1], line[2], line[3], line[4], line[5], line[6])
            head = turn % geometry.kv_heads
            base = head * geometry.head_stride
            height = -(-item.positions * geometry.group // tile) * tile
            _load_queries(rows[: height * dim], query, item, head, scale, geometry, dim)
            peaks[:height] = _LOWEST
            sums[:height] = 0
            totals[: height * dim] = 0
            for start in range(item.start, item.end, chunk):
                count = min(chunk, item.end - start)
                _row_offsets(offsets, table[item.sequence], start, count, base, geometry)
                for j in range(0, count, STRIP):
                    length = min(STRIP, count - j)
                    places, strip = offsets[j:], scores[j:]
                    score_tile(rows, key, places, strip, chunk, length, AHEAD, tile, dim)
                    for r in range(tile, height, tile):
                        q, s = rows[r * dim :], strip[r * chunk :]
                        score_tile(q, key, places, s, chunk, length, 0, tile, dim)
                _softmax(scores, peaks, sums, totals, height, item, start, count, geometry, dim)
                for j in range(0, count, STRIP):
                    length = min(STRIP, count - j)
                    places, strip = offsets[j:], scores[j:]
                    weigh_tile(strip, chunk, value, places, totals, length, AHEAD, tile, dim)
                    for r in range(tile, height, tile):
                        s, t = strip[r * chunk :], totals[r * dim :]
                        weigh_tile(s, chunk, value, places, t, length, 0, tile, dim)
            if item.slot < 0:
                _write_rows(out, totals, sums, item, head, geometry, dim)
            else:
                _write_partial(partial, totals, peaks, sums, item, head, geometry, dim)

    kernel: Callable[..., None] = attend
    return kernel


@cache
def reduce_kernel(dim: int) -> Callable[..., None]:
    """The kernel that joins the partial results of positions whose keys were split.

    Called as the attention kernel is, with out, flat [tokens, heads, dim]; partial, flat
    [slots, heads, dim + 2]; splits int64 [positions, 3]: row of the output, first slot, end slot;
    heads; counter.
    """
    width = dim + 2
    digest = source_digest()

    @njit(**_ENTRY)
    def reduce_splits(out, partial, splits, heads, counter):
        while True:
            turn = take_next(counter)
            if turn >= splits.shape[0] * heads + (digest & 0):
                return
            token, first, end = splits[turn // heads]
            head = turn % heads
            peak = _LOWEST
            for slot in range(first, end):
                peak = max(peak, partial[(slot * heads + head) * width + dim])
            target = out[(token * heads + head) * dim : (token * heads + head + 1) * dim]
            target[:] = 0
            total = np.float32(0)
            for slot in range(first, end):
                part = partial[(slot * heads + head) * width :]
                share = math.exp2(part[dim] - peak)
                total += share * part[dim + 1]
                for c in range(dim):
                    target[c] += share * part[c]
            for c in range(dim):
                target[c] /= total

    kernel: Callable[..., None] = reduce_splits
    return kernel
