"""Pieces of a kernel that decode and prefill share.

A tile is `TILE` cached tokens of one KV head. `DIMS` is the head size rounded up to a power of two;
what is added is masked.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def token_offsets(
    table_ptr,
    tokens,
    valid,
    block_stride,
    slot_stride,
    BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr,
):
    """Where tokens begin in the cache, in elements: int64, the shape of `tokens`.

    `table_ptr` is the sequence's row of the block table. Block ids become 64-bit before they are
    multiplied: a cache of 4 GiB already has more elements than 32 bits count. Without a block table
    (`PAGED` false) offsets count from the sequence's first token.
    """
    if PAGED:
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        offsets = blocks * block_stride + (tokens % BLOCK_SIZE) * slot_stride
    else:
        offsets = tokens.to(tl.int64) * slot_stride
    return offsets


@triton.jit
def load_tile(cache_ptr, offsets, valid, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr):
    """A tile of K or V, [TILE, DIMS]; 0 where there is no token or no such dimension.

    V needs the mask as much as K: a weight of 0 times NaN from an unwritten slot is NaN.
    """
    dims = tl.arange(0, DIMS)
    mask = valid[:, None]
    if DIMS != HEAD_DIM:
        mask = mask & (dims < HEAD_DIM)[None, :]
    return tl.load(cache_ptr + offsets[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def scores_log2(
    query,
    keys,
    scale,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Scores of query [ROWS, DIMS] and K [TILE, DIMS], times log2(e), in float32.

    The factor turns the softmax's exp into exp2, which the hardware has. `SOFT_CAP` c > 0 bounds
    the scores: c * tanh(score / c).
    """
    if UPCAST:
        keys = keys.to(tl.float32)
    scores = tl.dot(query, tl.trans(keys), input_precision=PRECISION)
    if SOFT_CAP > 0.0:
        # tanh(x) = 1 - 2 / (exp(2x) + 1): right at both ends, also where exp overflows.
        doubled = tl.exp2(scores * (scale * (2.0 * LOG2_E / SOFT_CAP)))
        scores = (SOFT_CAP * LOG2_E) * (1.0 - 2.0 / (doubled + 1.0))
    else:
        scores = scores * (scale * LOG2_E)
    return scores


@triton.jit
def softmax_step(
    scores,
    values,
    accumulated,
    top,
    total,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One tile of the online softmax over base-2 scores [ROWS, TILE].

    `top` [ROWS] is the largest score so far, `total` [ROWS] the sum of exp2(score - top),
    `accumulated` [ROWS, DIMS] the same sum over V. Returns the three of them renewed.
    A row that has seen no token keeps top = -inf without becoming NaN.
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - finite_top[:, None])
    shrink = tl.exp2(top - finite_top)
    if UPCAST:
        values = values.to(tl.float32)
    accumulated = accumulated * shrink[:, None]
    accumulated = tl.dot(weights.to(values.dtype), values, accumulated, input_precision=PRECISION)
    return accumulated, new_top, total * shrink + tl.sum(weights, 1)


@triton.jit
def attend(
    query,
    key_ptr,
    value_ptr,
    table_ptr,
    begin,
    end,
    positions,
    block_stride,
    slot_stride,
    scale,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    PAGED: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Attention of query [ROWS, DIMS] over tokens `begin` to `end` (exclusive) of one sequence.

    `key_ptr` and `value_ptr` point to the KV head; without a block table, to its first token.
    `CAUSAL`: row r sees tokens up to `positions[r]`, the last `WINDOW` of them (0: all); otherwise
    every row sees every token. Returns the result [ROWS, DIMS] in float32, 0 without tokens, and
    the base-2 log-sum-exp of the scores [ROWS].
    """
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    accumulated = tl.zeros([ROWS, DIMS], tl.float32)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        valid = tokens < end
        offsets = token_offsets(
            table_ptr, tokens, valid, block_stride, slot_stride, BLOCK_SIZE, PAGED
        )
        keys = load_tile(key_ptr, offsets, valid, HEAD_DIM, DIMS)
        values = load_tile(value_ptr, offsets, valid, HEAD_DIM, DIMS)
        scores = scores_log2(query, keys, scale, SOFT_CAP, PRECISION, UPCAST)
        seen = valid[None, :]
        if CAUSAL:
            seen = seen & (tokens[None, :] <= positions[:, None])
            if WINDOW > 0:
                seen = seen & (tokens[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        accumulated, top, total = softmax_step(
            scores, values, accumulated, top, total, PRECISION, UPCAST
        )
    total = tl.where(total > 0.0, total, 1.0)
    return accumulated / total[:, None], top + tl.log2(total)
