"""Many queries per sequence, causal, over the context cached so far: also mixed batches."""

import triton
import triton.language as tl

from gpu_backend.kernels.common import attend


@triton.jit
def sequence_of_tile(query_start_ptr, tile, seqs, QUERIES: tl.constexpr):
    """The sequence that query tile `tile` belongs to, by bisection.

    Sequence i owns the tiles from query_start[i] // QUERIES + i on: at least enough of them, known
    without a pass over the batch.
    """
    low = 0
    high = seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def tile_rows(
    token, queries_left, kv_head, token_stride, head_stride, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    """Element offsets of a tile's rows from its first token on, int64 [ROWS], and which exist."""
    rows = tl.arange(0, ROWS)
    queries = rows // GROUP
    exists = (rows < ROWS // GROUP * GROUP) & (queries < queries_left)
    heads = kv_head * GROUP + rows % GROUP
    return (token + queries).to(tl.int64) * token_stride + heads * head_stride, exists


@triton.jit
def prefill_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    place_ptr,
    query_start_ptr,
    context_lens_ptr,
    out_token_stride,
    out_head_stride,
    query_token_stride,
    query_head_stride,
    table_stride,
    block_stride,
    slot_stride,
    head_stride,
    scale,
    seqs,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PAGED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of one tile of queries under one KV head; grid (query tiles, kv_heads).

    A tile holds `ROWS` // `GROUP` consecutive tokens of one sequence times the `GROUP` query heads
    of the KV head. A sequence's queries are the last positions of its context: `query` and `out`
    are [tokens, heads, HEAD_DIM], `query_start` int32 [seqs + 1], `context_lens` int32 [seqs].
    `place_ptr`: see `decode_kernel`.
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = sequence_of_tile(query_start_ptr, tile, seqs, QUERIES)
    query_begin = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - query_begin
    first_query = (tile - query_begin // QUERIES - seq) * QUERIES
    if first_query >= query_len:
        return
    queries_left = query_len - first_query
    first_position = tl.load(context_lens_ptr + seq) - queries_left

    dims = tl.arange(0, DIMS)
    row_offsets, row_mask = tile_rows(
        query_begin + first_query,
        queries_left,
        kv_head,
        query_token_stride,
        query_head_stride,
        GROUP,
        ROWS,
    )
    mask = row_mask[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(query_ptr + row_offsets[:, None] + dims[None, :], mask=mask, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0)
    end = first_position + tl.minimum(QUERIES, queries_left)
    base = kv_head.to(tl.int64) * head_stride
    if not PAGED:
        base += tl.load(place_ptr + seq) * slot_stride
    result, _ = attend(
        query,
        key_ptr + base,
        value_ptr + base,
        place_ptr + seq.to(tl.int64) * table_stride,
        begin,
        end,
        first_position + tl.arange(0, ROWS) // GROUP,
        block_stride,
        slot_stride,
        scale,
        ROWS,
        HEAD_DIM,
        DIMS,
        BLOCK_SIZE,
        TILE,
        WINDOW,
        SOFT_CAP,
        True,
        PAGED,
        PRECISION,
        UPCAST,
    )
    # Where the rows lie is worked out again from memory: kept through the loop, it would take
    # registers that the loop needs.
    query_begin = tl.load(query_start_ptr + seq, volatile=True)
    row_offsets, row_mask = tile_rows(
        query_begin + first_query,
        queries_left,
        kv_head,
        out_token_stride,
        out_head_stride,
        GROUP,
        ROWS,
    )
    mask = row_mask[:, None] & (dims < HEAD_DIM)[None, :]
    out_ptrs = out_ptr + row_offsets[:, None] + dims[None, :]
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=mask)
