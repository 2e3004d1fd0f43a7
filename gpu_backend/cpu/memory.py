"""Where a KV cache's rows lie: paged in two layouts, or one arena of contiguous extents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_backend.cpu.arrays import Array, NumpyArray, as_numpy, lengths
from gpu_backend.cpu.plan import first_bad_block

LAYOUTS = ("nhd", "hnd")


class KvMemory(NamedTuple):
    """A KV cache as the kernel addresses it; strides in elements."""

    key: NumpyArray  # flat
    value: NumpyArray  # flat
    table: NumpyArray  # int32 [seqs, blocks]
    kv_heads: int
    block_size: int
    block_stride: int  # from one id of the table to the next
    head_stride: int
    row_stride: int  # from one token to the next


def heads_first(name: str, cache: Array, layout: str, *shape: int | None) -> NumpyArray:
    """A paged cache as a view [num_blocks, kv_heads, block_size, head_dim] of that `shape`."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    found = as_numpy(name, cache, np.float32, None, None, None, None, gaps=True)
    view = found if layout == "hnd" else found.swapaxes(1, 2)
    return as_numpy(name, view, np.float32, *shape, gaps=True)


def paged_memory(
    key_cache: Array,
    value_cache: Array,
    block_table: Array,
    layout: str,
    dim: int,
    starts: NumpyArray,
    contexts: NumpyArray,
    window: int,
) -> KvMemory:
    """Checked paged caches; the arguments are those of `attention.paged_prefill`."""
    key = heads_first("key_cache", key_cache, layout, None, None, None, dim)
    value = heads_first("value_cache", value_cache, layout, *key.shape)
    table = as_numpy("block_table", block_table, np.int32, len(contexts), None)
    num_blocks, kv_heads, size, _ = key.shape
    _check_contexts(contexts, table.shape[1] * size)
    bad = first_bad_block(table, starts, contexts, size, window, num_blocks)
    if bad >= 0:
        raise ValueError(
            f"block_table of sequence {bad} names a block outside 0 .. {num_blocks - 1}"
        )
    block, head, row = _strides(key, value)
    flat = _flat("key_cache", key), _flat("value_cache", value)
    return KvMemory(*flat, table, kv_heads, size, block, head, row)


def contiguous_memory(
    key_arena: Array, value_arena: Array, start_slots: Array, dim: int, contexts: NumpyArray
) -> KvMemory:
    """Checked arenas; the arguments are those of `attention.contiguous_decode`."""
    key = as_numpy("key_arena", key_arena, np.float32, None, None, dim, gaps=True)
    value = as_numpy("value_arena", value_arena, np.float32, *key.shape, gaps=True)
    first = lengths("start_slots", start_slots, len(contexts))
    slots, kv_heads, _ = key.shape
    _check_contexts(contexts, slots)
    outside = ((first < 0) | (first + contexts > slots)) & (contexts > 0)
    if outside.any():
        bad = int(np.argmax(outside))
        raise ValueError(
            f"sequence {bad} needs slots {first[bad]} .. {first[bad] + contexts[bad]} of {slots}"
        )
    key, value = (arena[None].swapaxes(1, 2) for arena in (key, value))
    _, head, row = _strides(key, value)
    table = first.astype(np.int32).reshape(
        -1, 1
    )  # ids of blocks as long as the arena, one per slot
    flat = _flat("key_arena", key), _flat("value_arena", value)
    return KvMemory(*flat, table, kv_heads, slots, row, head, row)


def _flat(name: str, cache: NumpyArray) -> NumpyArray:
    """The memory behind a view [blocks, kv_heads, slots, dim] that has no gaps."""
    for view in (cache, cache.swapaxes(1, 2)):
        if view.flags.c_contiguous:
            return view.reshape(-1)
    raise ValueError(f"{name} must lie in one piece, got strides {cache.strides} bytes")


def _strides(key: NumpyArray, value: NumpyArray) -> tuple[int, int, int]:
    """Elements from one block, head and token to the next, the same for both."""
    if key.strides != value.strides:
        raise ValueError("keys and values must lie in memory in the same order")
    block, head, row, _ = (stride // key.itemsize for stride in key.strides)
    return block, head, row


def _check_contexts(contexts: NumpyArray, room: int) -> None:
    if contexts.size and not 0 <= contexts.min() <= contexts.max() <= room:
        raise ValueError(
            f"context_lens must be within 0 .. {room} tokens, "
            f"got {contexts.min()} .. {contexts.max()}"
        )
