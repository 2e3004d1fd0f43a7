"""One query per sequence against its cached context: split over chunks, then reduced."""

import triton
import triton.language as tl

from gpu_backend.kernels.common import attend


@triton.jit
def decode_kernel(
    out_ptr,
    partial_ptr,
    partial_lse_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    place_ptr,
    context_lens_ptr,
    out_seq_stride,
    out_head_stride,
    query_seq_stride,
    query_head_stride,
    table_stride,
    block_stride,
    slot_stride,
    head_stride,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PAGED: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of one KV head's queries over one chunk; grid (kv_heads, chunks, seqs).

    `place_ptr` is the block table, int32 [seqs, max_blocks], or, not `PAGED`, the first slot of
    each sequence, int64 [seqs]. The `GROUP` query heads of a KV head are the rows of one tile,
    padded to `ROWS` >= 16 for the tensor cores.
    `SPLIT`: writes a normalised partial result [seqs, heads, chunks, HEAD_DIM] and its base-2
    log-sum-exp [seqs, heads, chunks]. Otherwise the grid has one chunk, the whole context, and the
    result goes to `out` [seqs, heads, HEAD_DIM].
    """
    kv_head = tl.program_id(0)
    seq = tl.program_id(2).to(tl.int64)
    context = tl.load(context_lens_ptr + seq)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0)
    begin = first
    end = context
    if SPLIT:
        chunk = first // CHUNK + tl.program_id(1)
        begin = tl.maximum(chunk * CHUNK, first)
        end = tl.minimum((chunk + 1) * CHUNK, context)
        if begin >= end:
            return

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    row_mask = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    query_ptrs = query_ptr + seq * query_seq_stride + heads[:, None] * query_head_stride
    query = tl.load(query_ptrs + dims[None, :], mask=row_mask, other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    base = kv_head.to(tl.int64) * head_stride
    if not PAGED:
        base += tl.load(place_ptr + seq) * slot_stride
    result, lse = attend(
        query,
        key_ptr + base,
        value_ptr + base,
        place_ptr + seq * table_stride,
        begin,
        end,
        0,
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
        False,
        PAGED,
        PRECISION,
        UPCAST,
    )
    if SPLIT:
        chunks = tl.num_programs(1)
        heads_in_all = tl.num_programs(0) * GROUP
        at = (seq * heads_in_all + heads) * chunks + tl.program_id(1)
        tl.store(partial_ptr + at[:, None] * HEAD_DIM + dims[None, :], result, mask=row_mask)
        tl.store(partial_lse_ptr + at, lse, mask=rows < GROUP)
    else:
        out_ptrs = out_ptr + seq * out_seq_stride + heads[:, None] * out_head_stride
        tl.store(out_ptrs + dims[None, :], result.to(out_ptr.dtype.element_ty), mask=row_mask)


@triton.jit
def reduce_kernel(
    out_ptr,
    partial_ptr,
    partial_lse_ptr,
    context_lens_ptr,
    out_seq_stride,
    out_head_stride,
    chunks,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE: tl.constexpr,
):
    """Joins the partial results of one query head; grid (heads, seqs).

    Partial results weigh exp2(lse); only the chunks that hold tokens are read, since the others
    were never written. `chunks` is the room per head, `TILE` how many are read at once.
    """
    seq = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    context = tl.load(context_lens_ptr + seq)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0)
    used = tl.cdiv(context, CHUNK) - first // CHUNK

    dims = tl.arange(0, DIMS)
    at = (seq * tl.num_programs(0) + head) * chunks
    top = float("-inf")
    total = 0.0
    accumulated = tl.zeros([DIMS], tl.float32)
    for start in range(0, used, TILE):
        parts = start + tl.arange(0, TILE)
        valid = parts < used
        lse = tl.load(partial_lse_ptr + at + parts, mask=valid, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(lse, 0))
        weights = tl.exp2(lse - new_top)
        shrink = tl.exp2(top - new_top)
        part_ptrs = partial_ptr + (at + parts)[:, None] * HEAD_DIM + dims[None, :]
        mask = valid[:, None] & (dims < HEAD_DIM)[None, :]
        part = tl.load(part_ptrs, mask=mask, other=0.0)
        accumulated = accumulated * shrink + tl.sum(part * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        top = new_top
    result = accumulated / tl.where(total > 0.0, total, 1.0)
    out_ptrs = out_ptr + seq * out_seq_stride + head * out_head_stride + dims
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
