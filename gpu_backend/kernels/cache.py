"""Kernels that move cached keys and values: nothing is computed, the bits are copied."""

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    slot_stride,
    head_stride,
    ELEMENTS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Writes one token's `ELEMENTS` = kv_heads * HEAD_DIM into its slot; grid (tokens, tiles).

    Slot s (int64) is place s % BLOCK_SIZE of block s // BLOCK_SIZE; -1 writes nothing.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    elements = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = elements < ELEMENTS
    head = elements // HEAD_DIM
    dim = elements % HEAD_DIM
    key = tl.load(key_ptr + token * key_token_stride + head * key_head_stride + dim, mask=mask)
    value_at = token * value_token_stride + head * value_head_stride + dim
    value = tl.load(value_ptr + value_at, mask=mask)
    at = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * slot_stride
    at = at + head * head_stride + dim
    tl.store(key_cache_ptr + at, key, mask=mask)
    tl.store(value_cache_ptr + at, value, mask=mask)


@triton.jit
def copy_kernel(
    key_cache_ptr,
    value_cache_ptr,
    pairs_ptr,
    block_stride,
    ELEMENTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copies block pairs[i, 0] to block pairs[i, 1] (int64); grid (pairs, tiles of a block)."""
    source = tl.load(pairs_ptr + tl.program_id(0) * 2) * block_stride
    target = tl.load(pairs_ptr + tl.program_id(0) * 2 + 1) * block_stride
    elements = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = elements < ELEMENTS
    key = tl.load(key_cache_ptr + source + elements, mask=mask)
    value = tl.load(value_cache_ptr + source + elements, mask=mask)
    tl.store(key_cache_ptr + target + elements, key, mask=mask)
    tl.store(value_cache_ptr + target + elements, value, mask=mask)


@triton.jit
def swap_kernel(
    buffer_ptr,
    key_cache_ptr,
    value_cache_ptr,
    blocks_ptr,
    block_stride,
    ELEMENTS: tl.constexpr,
    TILE: tl.constexpr,
    OUT: tl.constexpr,
):
    """Block blocks[i] (int64) to (`OUT`) or from row i of a buffer; grid (blocks, tiles).

    The buffer, [2, n, ELEMENTS], holds the keys of all n blocks and then their values.
    """
    block = tl.load(blocks_ptr + tl.program_id(0)) * block_stride
    row = tl.program_id(0).to(tl.int64)
    elements = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = elements < ELEMENTS
    key_row = buffer_ptr + row * ELEMENTS + elements
    value_row = buffer_ptr + (tl.num_programs(0) + row) * ELEMENTS + elements
    if OUT:
        tl.store(key_row, tl.load(key_cache_ptr + block + elements, mask=mask), mask=mask)
        tl.store(value_row, tl.load(value_cache_ptr + block + elements, mask=mask), mask=mask)
    else:
        tl.store(key_cache_ptr + block + elements, tl.load(key_row, mask=mask), mask=mask)
        tl.store(value_cache_ptr + block + elements, tl.load(value_row, mask=mask), mask=mask)
