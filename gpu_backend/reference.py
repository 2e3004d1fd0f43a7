"""Plain PyTorch, in float64, of what each function of `ops` computes: the oracle of the tests.

Same names, arguments and meaning; slow, and allowed to look at every value. Attention returns
float64 unless `out` is given. No slot is read that a kernel would not read.
"""

from __future__ import annotations

import itertools

import torch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> torch.Tensor:
    """Causal attention of one sequence: float64 [n, heads, d].

    `query` [n, heads, d] are the last n positions of the context, `key` and `value`
    [context, kv_heads, d].
    """
    context, count = int(key.shape[0]), int(query.shape[0])
    group = int(query.shape[1]) // int(key.shape[1])
    keys = key.double().repeat_interleave(group, dim=1)
    values = value.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    at = torch.arange(context - count, context, device=query.device)[:, None]
    tokens = torch.arange(context, device=query.device)[None, :]
    hidden = tokens > at
    if window > 0:
        hidden = hidden | (tokens <= at - window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def paged_decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    layout: str,
    window: int = 0,
    soft_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ops.paged_decode`."""
    starts = _one_query_each(context_lens)
    return paged_prefill(
        query, key_cache, value_cache, block_table, starts, context_lens,
        scale=scale, layout=layout, window=window, soft_cap=soft_cap, out=out,
    )  # fmt: skip


def contiguous_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start_slots: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ops.contiguous_decode`."""
    starts = _one_query_each(context_lens)
    return contiguous_prefill(
        query, key, value, start_slots, starts, context_lens,
        scale=scale, window=window, soft_cap=soft_cap, out=out,
    )  # fmt: skip


def paged_prefill(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    layout: str,
    window: int = 0,
    soft_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ops.paged_prefill`."""
    result = _empty_result(query)
    for seq, (begin, end) in enumerate(_spans(query_start)):
        context = int(context_lens[seq])
        if end == begin or context == 0:
            continue
        # Blocks before the window may have been freed: what they hold now is not read.
        first = max(0, context - (end - begin) - window + 1) if window else 0
        key = _gather(key_cache, block_table[seq], first, context, layout)
        value = _gather(value_cache, block_table[seq], first, context, layout)
        result[begin:end] = attend(
            query[begin:end], key, value, scale=scale, window=window, soft_cap=soft_cap
        )
    return result if out is None else out.copy_(result)


def contiguous_prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    start_slots: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ops.contiguous_prefill`."""
    result = _empty_result(query)
    for seq, (begin, end) in enumerate(_spans(query_start)):
        start, context = int(start_slots[seq]), int(context_lens[seq])
        if end == begin or context == 0:
            continue
        first = max(0, context - (end - begin) - window + 1) if window else 0
        slots = slice(start + first, start + context)
        result[begin:end] = attend(
            query[begin:end], key[slots], value[slots],
            scale=scale, window=window, soft_cap=soft_cap,
        )  # fmt: skip
    return result if out is None else out.copy_(result)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    layout: str,
) -> None:
    """See `ops.reshape_and_cache`."""
    block_size = int(key_cache.shape[1 if layout == "nhd" else 2])
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        block, place = divmod(slot, block_size)
        _slots_first(key_cache[block], layout)[place] = key[token]
        _slots_first(value_cache[block], layout)[place] = value[token]


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, pairs: torch.Tensor) -> None:
    """See `ops.copy_blocks`."""
    source, target = pairs[:, 0], pairs[:, 1]
    key_cache[target] = key_cache[source]
    value_cache[target] = value_cache[source]


def swap_out_blocks(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `ops.swap_out_blocks`."""
    buffer = torch.stack([key_cache[blocks], value_cache[blocks]])
    return buffer if out is None else out.copy_(buffer)


def swap_in_blocks(
    buffer: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, blocks: torch.Tensor
) -> None:
    """See `ops.swap_in_blocks`."""
    key_cache[blocks] = buffer[0]
    value_cache[blocks] = buffer[1]


def _gather(
    cache: torch.Tensor, table: torch.Tensor, first: int, end: int, layout: str
) -> torch.Tensor:
    """Tokens `first` to `end` of one sequence, in order: [end - first, kv_heads, d]."""
    block_size = int(cache.shape[1 if layout == "nhd" else 2])
    positions = torch.arange(first, end, device=cache.device)
    blocks = table[positions // block_size].long()
    places = positions % block_size
    return cache[blocks, places] if layout == "nhd" else cache[blocks, :, places]


def _slots_first(block: torch.Tensor, layout: str) -> torch.Tensor:
    return block if layout == "nhd" else block.transpose(0, 1)


def _one_query_each(context_lens: torch.Tensor) -> torch.Tensor:
    return torch.arange(context_lens.shape[0] + 1, dtype=torch.int32, device=context_lens.device)


def _spans(query_start: torch.Tensor) -> list[tuple[int, int]]:
    return list(itertools.pairwise(query_start.tolist()))


def _empty_result(query: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(query, dtype=torch.float64)
