"""Writing to the KV cache: new tokens into their slots, and copies of whole blocks."""

from __future__ import annotations

import numpy as np
from numba import njit

from gpu_backend.cpu.arrays import Array, as_numpy
from gpu_backend.cpu.memory import heads_first


def reshape_and_cache(
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    slot_mapping: Array,
    *,
    layout: str = "hnd",
) -> None:
    """Write each token's keys and values into its slot; changes both caches.

    key and value float32 [tokens, kv_heads, head_dim]; caches as in `paged_decode`; slot_mapping
    int64 [tokens], slot = block id x block_size + place in the block, negative: skip the token. An
    arena [slots, kv_heads, head_dim] is a cache of one block, `arena[None]` with layout "nhd".
    Raises IndexError for a slot past the end, before any write.
    """
    k = as_numpy("key", key, np.float32, None, None, None)
    v = as_numpy("value", value, np.float32, *k.shape)
    shape = (None, k.shape[1], None, k.shape[2])
    caches = [
        heads_first("key_cache", key_cache, layout, *shape),
        heads_first("value_cache", value_cache, layout, *shape),
    ]
    if caches[0].shape != caches[1].shape:
        raise ValueError(f"the caches differ: {caches[0].shape} and {caches[1].shape}")
    slots = as_numpy("slot_mapping", slot_mapping, np.int64, k.shape[0])
    last = caches[0].shape[0] * caches[0].shape[2]
    if slots.size and slots.max() >= last:
        raise IndexError(f"slot_mapping names slot {slots.max()}, the cache has {last}")
    _write(k, v, *caches, slots)


def copy_blocks(key_cache: Array, value_cache: Array, pairs: Array) -> None:
    """Copy whole blocks, one pair after the other; changes both caches.

    caches float32 [num_blocks, ...], of any layout; pairs int64 [n, 2]: from, to. Raises IndexError
    for a block that does not exist, before any copy.
    """
    key = as_numpy("key_cache", key_cache, np.float32, None, None, None, None)
    caches = key, as_numpy("value_cache", value_cache, np.float32, *key.shape)
    moves = as_numpy("pairs", pairs, np.int64, None, 2)
    last = caches[0].shape[0] - 1
    if moves.size and not 0 <= moves.min() <= moves.max() <= last:
        raise IndexError(f"pairs names blocks {moves.min()} .. {moves.max()} of 0 .. {last}")
    for source, target in moves:
        for memory in caches:
            memory[target] = memory[source]


@njit(nogil=True, cache=True)
def _write(key, value, key_cache, value_cache, slots):
    """The loop of `reshape_and_cache`."""
    size = key_cache.shape[2]
    for token in range(slots.size):
        slot = slots[token]
        if slot < 0:
            continue
        block = slot // size
        for head in range(key.shape[1]):
            for c in range(key.shape[2]):
                key_cache[block, head, slot - block * size, c] = key[token, head, c]
                value_cache[block, head, slot - block * size, c] = value[token, head, c]
