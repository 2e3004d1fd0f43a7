"""Attention over a paged or a contiguous fp32 KV cache: argument checks and launch."""

from __future__ import annotations

import math

import numpy as np

from gpu_backend.cpu.arrays import Array, NumpyArray, as_numpy, lengths
from gpu_backend.cpu.kernels import Geometry, attention_kernel, reduce_kernel
from gpu_backend.cpu.memory import KvMemory, contiguous_memory, paged_memory
from gpu_backend.cpu.plan import SPLIT, Work, plan_work
from gpu_backend.cpu.threads import run_on_threads

_PREFILL_CHUNK = 128
"""Keys scored at once for many query rows: their scores stay in the second-level cache."""
_LOG2_E = math.log2(math.e)


def paged_decode(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Array,
    context_lens: Array,
    *,
    scale: float,
    layout: str = "hnd",
    window: int = 0,
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array:
    """Attention of one query position per sequence, the last of its context.

    query and out float32 [seqs, heads, head_dim]; key_cache and value_cache float32
    [num_blocks, kv_heads, block_size, head_dim] ("hnd": a head's share of a block is one stretch of
    memory, the faster layout) or [num_blocks, block_size, kv_heads, head_dim] ("nhd"); block_table
    int32 [seqs, max_blocks], of which ceil(context / block_size) ids are read; context_lens integer
    [seqs] in tokens (0: the output is 0). `window` tokens before and including the query are seen
    (0: all). `num_threads` None: all CPUs. Results do not depend on the number of threads.

    Writes and returns `out`, a new array if None. Raises ValueError or TypeError on shapes, types,
    contexts or block ids that do not fit.
    """
    count = query.shape[0]
    starts = np.arange(count + 1, dtype=np.int64)
    contexts = lengths("context_lens", context_lens, count)
    memory = paged_memory(
        key_cache, value_cache, block_table, layout, query.shape[-1], starts, contexts, window
    )
    return _attend(query, memory, starts, contexts, scale, window, out, num_threads)


def paged_prefill(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Array,
    query_start: Array,
    context_lens: Array,
    *,
    scale: float,
    layout: str = "hnd",
    window: int = 0,
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array:
    """Causal attention of a mixed batch: a sequence's queries are the end of its context.

    query and out float32 [tokens, heads, head_dim]; query_start integer [seqs + 1], sequence i's
    rows are query_start[i] .. query_start[i + 1]; the keys and values of all its positions are in
    the caches, those of the queries included. Everything else as in `paged_decode`.
    """
    starts, contexts = _ranges(query, query_start, context_lens)
    memory = paged_memory(
        key_cache, value_cache, block_table, layout, query.shape[-1], starts, contexts, window
    )
    return _attend(query, memory, starts, contexts, scale, window, out, num_threads)


def contiguous_decode(
    query: Array,
    key_arena: Array,
    value_arena: Array,
    start_slots: Array,
    context_lens: Array,
    *,
    scale: float,
    window: int = 0,
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array:
    """`paged_decode` without blocks: sequence i lies in slots start_slots[i] .. + context_lens[i].

    key_arena and value_arena float32 [slots, kv_heads, head_dim]; start_slots integer [seqs]. In
    memory the heads should come first, `torch.empty(kv_heads, slots, head_dim).transpose(0, 1)`, so
    that what one head reads of a sequence is one stretch. The other order works too.
    """
    count = query.shape[0]
    starts = np.arange(count + 1, dtype=np.int64)
    contexts = lengths("context_lens", context_lens, count)
    memory = contiguous_memory(key_arena, value_arena, start_slots, query.shape[-1], contexts)
    return _attend(query, memory, starts, contexts, scale, window, out, num_threads)


def contiguous_prefill(
    query: Array,
    key_arena: Array,
    value_arena: Array,
    start_slots: Array,
    query_start: Array,
    context_lens: Array,
    *,
    scale: float,
    window: int = 0,
    out: Array | None = None,
    num_threads: int | None = None,
) -> Array:
    """`paged_prefill` on an arena as in `contiguous_decode`."""
    starts, contexts = _ranges(query, query_start, context_lens)
    memory = contiguous_memory(key_arena, value_arena, start_slots, query.shape[-1], contexts)
    return _attend(query, memory, starts, contexts, scale, window, out, num_threads)


def _ranges(query: Array, query_start: Array, context_lens: Array) -> tuple[NumpyArray, NumpyArray]:
    """Checked query_start and context_lens as int64."""
    count = context_lens.shape[0]
    starts = lengths("query_start", query_start, count + 1)
    contexts = lengths("context_lens", context_lens, count)
    queries = np.diff(starts)
    if starts[0] != 0 or starts[-1] != query.shape[0] or (queries < 0).any():
        raise ValueError(f"query_start must rise from 0 to {query.shape[0]} tokens, got {starts}")
    long = (queries > contexts) & (contexts > 0)
    if long.any():
        bad = int(np.argmax(long))
        raise ValueError(
            f"sequence {bad} has {queries[bad]} queries in a context of {contexts[bad]} tokens"
        )
    return starts, contexts


def _attend(
    query: Array,
    memory: KvMemory,
    starts: NumpyArray,
    contexts: NumpyArray,
    scale: float,
    window: int,
    out: Array | None,
    num_threads: int | None,
) -> Array:
    """Plan, run the pieces, join what was split."""
    rows = as_numpy("query", query, np.float32, None, None, None)
    tokens, heads, dim = rows.shape
    if dim % 4 or heads % memory.kv_heads:
        raise ValueError(
            f"head_dim must be a multiple of 4 and heads one of kv_heads, "
            f"got query {list(rows.shape)} for {memory.kv_heads} KV heads"
        )
    if window < 0:
        raise ValueError(f"window must be >= 0 tokens (0: no window), got {window}")
    if out is None:
        out = np.empty_like(rows) if rows is query else query.new_empty(query.shape)
    target = as_numpy("out", out, np.float32, tokens, heads, dim)
    group = heads // memory.kv_heads
    work = plan_work(starts, contexts, group=group, window=window)
    for sequence in np.flatnonzero(contexts == 0):
        target[starts[sequence] : starts[sequence + 1]] = 0
    _launch(rows, memory, target, work, scale * _LOG2_E, window, num_threads)
    return out


def _launch(
    query: NumpyArray,
    memory: KvMemory,
    out: NumpyArray,
    work: Work,
    scale: float,
    window: int,
    num_threads: int | None,
) -> None:
    _, heads, dim = query.shape
    group = heads // memory.kv_heads
    decode = work.positions == 1
    geometry = Geometry(
        memory.kv_heads,
        group,
        memory.block_size,
        memory.block_stride,
        memory.head_stride,
        memory.row_stride,
        window,
        SPLIT if decode else _PREFILL_CHUNK,
        work.positions,
    )
    partial = np.empty(work.slots * heads * (dim + 2), np.float32)
    flat = out.reshape(-1)
    run_on_threads(
        attention_kernel(dim, _row_tile(group) if decode else 4),
        query.reshape(-1),
        memory.key,
        memory.value,
        flat,
        memory.table,
        work.items,
        partial,
        np.float32(scale),
        geometry,
        num_threads=num_threads,
    )
    if len(work.splits):
        run_on_threads(
            reduce_kernel(dim), flat, partial, work.splits, heads, num_threads=num_threads
        )


def _row_tile(group: int) -> int:
    """Query rows kept in registers for `group` heads: few tiles, each costs its rows and a load."""
    return min(range(1, 5), key=lambda tile: -(-group // tile) * (tile + 1))
