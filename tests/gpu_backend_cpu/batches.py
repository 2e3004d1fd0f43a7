"""Batches on poisoned memory, and what float64 says about them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
RUBBISH = 2**31 - 1
"""A block id that would read far outside every cache."""


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    dim: int


class Batch(NamedTuple):
    """The same keys and values twice: in random blocks and in an arena.

    NaN lies in every free block, behind the last token of every last block, between the arena's
    extents and in `out`; table tails hold RUBBISH.
    """

    query: Array  # [tokens, heads, dim]
    out: Array
    query_start: Array  # [seqs + 1]
    contexts: Array  # [seqs]
    keys: list[Array]  # per sequence [context, kv_heads, dim]
    values: list[Array]
    key_cache: Array  # [blocks, kv_heads, block_size, dim]
    value_cache: Array
    table: Array  # [seqs, max_blocks]
    key_arena: Array  # [slots, kv_heads, dim], heads first in memory
    value_arena: Array
    starts: Array  # [seqs]

    @property
    def paged(self) -> tuple[Array, Array, Array]:
        return self.key_cache, self.value_cache, self.table

    @property
    def contiguous(self) -> tuple[Array, Array, Array]:
        return self.key_arena, self.value_arena, self.starts


def make_batch(
    shape: Shape,
    contexts: list[int],
    block_size: int,
    *,
    queries: list[int] | None = None,
    seed: int = 0,
    spread: float = 1.0,
) -> Batch:
    """A batch with one query per sequence, or `queries`; `spread` scales the queries."""
    rng = np.random.default_rng(seed)
    counts = queries or [1] * len(contexts)
    used = [-(-context // block_size) for context in contexts]
    ids = iter(rng.permutation(sum(used) + 3).astype(np.int32))
    table = np.full((len(contexts), max(used) + 2), RUBBISH, np.int32)
    caches = _poison(2, sum(used) + 3, shape.kv_heads, block_size, shape.dim)
    arenas = _poison(2, shape.kv_heads, sum(contexts) + 3 * len(contexts), shape.dim)
    keys, values, starts, slot = [], [], [], 3
    for i, context in enumerate(contexts):
        pair = rng.standard_normal((2, context, shape.kv_heads, shape.dim), dtype=np.float32)
        for block in range(used[i]):
            table[i, block] = next(ids)
            part = pair[:, block * block_size : (block + 1) * block_size].swapaxes(1, 2)
            caches[:, table[i, block], :, : part.shape[2]] = part
        arenas[:, :, slot : slot + context] = pair.swapaxes(1, 2)
        starts.append(slot)
        slot += context + 3
        keys.append(pair[0])
        values.append(pair[1])
    query = rng.standard_normal((sum(counts), shape.heads, shape.dim), dtype=np.float32)
    return Batch(
        query * np.float32(spread),
        _poison(*query.shape),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.array(contexts, np.int32),
        keys,
        values,
        *caches,
        table,
        *arenas.swapaxes(1, 2),
        np.array(starts, np.int64),
    )


def _poison(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def expected(batch: Batch, *, window: int = 0) -> Array:
    """The batch's output in float64, [tokens, heads, dim]; scale dim ** -0.5."""
    out = np.zeros(batch.query.shape)
    for i, context in enumerate(batch.contexts):
        rows = slice(batch.query_start[i], batch.query_start[i + 1])
        if context:
            out[rows] = _attention(batch.query[rows], batch.keys[i], batch.values[i], window)
    return out


def _attention(query: Array, keys: Array, values: Array, window: int) -> Array:
    """Causal attention of the last positions of one context, float64."""
    group = query.shape[1] // keys.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (keys, values))
    scores = np.einsum("qhd,khd->hqk", query.astype(np.float64), k) * query.shape[2] ** -0.5
    position = np.arange(len(keys) - len(query), len(keys))[:, None]
    key = np.arange(len(keys))
    seen = key <= position
    if window:
        seen &= key > position - window
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=2, keepdims=True), v)
