"""The kernels as functions: what goes in is checked, then launched. `reference` says what they do.

n = tokens of the step, d = head size. Layouts and strides: `kv_cache`. Every function raises
ValueError for tensors that a kernel could not address; values in GPU memory (block ids, lengths)
are taken on trust, since looking at them would wait for the device: `checks.check_context`.
"""

from __future__ import annotations

import torch

from gpu_backend import checks, configs, launches
from gpu_backend.checks import CacheView, check_tensor, require
from gpu_backend.launches import Attention

INT64 = (torch.int64,)
INT32 = (torch.int32,)


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
    max_context: int | None = None,
    config: configs.DecodeConfig | None = None,
) -> torch.Tensor:
    """Attention of one query per sequence over its paged context.

    `query` [seqs, heads, d]; caches [blocks, B, kv_heads, d] ("nhd") or [blocks, kv_heads, B, d]
    ("hnd"); `block_table` int32 [seqs, max_blocks]; `context_lens` int32 [seqs], the query's own
    token included; `window`: the last so many tokens are seen, 0 for all; `soft_cap` as in
    `launches.Attention`. Returns `out`, [seqs, heads, d] of the query's dtype unless given; 0 for
    an empty sequence.

    `max_context` is an upper bound of `context_lens`; None reads it from the device, which waits.
    `config` replaces the table's settings.
    """
    view = checks.paged_view(key_cache, value_cache, block_table, layout)
    attention = Attention(scale, window, soft_cap)
    return _decode(query, view, context_lens, attention, out, max_context, config)


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
    max_context: int | None = None,
    config: configs.DecodeConfig | None = None,
) -> torch.Tensor:
    """`paged_decode` without a block table, as the baseline.

    `key`, `value` [slots, kv_heads, d]; sequence i is the `context_lens[i]` slots from
    `start_slots[i]` (int64 [seqs]) on.
    """
    view = checks.contiguous_view(key, value, start_slots)
    attention = Attention(scale, window, soft_cap)
    return _decode(query, view, context_lens, attention, out, max_context, config)


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
    config: configs.PrefillConfig | None = None,
) -> torch.Tensor:
    """Causal attention of a mixed batch: any number of queries per sequence, paged context.

    `query` [n, heads, d] holds the sequences one after another; those of sequence i, from
    `query_start[i]` to `query_start[i + 1]` (int32 [seqs + 1]), are the last positions of its
    context, whose keys and values are already cached. Otherwise as `paged_decode`; rows from
    `query_start[-1]` on are not written.
    """
    view = checks.paged_view(key_cache, value_cache, block_table, layout)
    attention = Attention(scale, window, soft_cap)
    return _prefill(query, view, query_start, context_lens, attention, out, config)


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
    config: configs.PrefillConfig | None = None,
) -> torch.Tensor:
    """`paged_prefill` without a block table; the cache as in `contiguous_decode`."""
    view = checks.contiguous_view(key, value, start_slots)
    attention = Attention(scale, window, soft_cap)
    return _prefill(query, view, query_start, context_lens, attention, out, config)


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    layout: str,
) -> None:
    """Writes new keys and values [n, kv_heads, d] to their slots, `slot_mapping` int64 [n].

    Slot s is place s % B of block s // B; -1 skips a token. No slot may come twice.
    """
    strides = checks.cache_strides(key_cache, value_cache, layout)
    block_size, kv_heads = checks.cache_sizes(key_cache, layout)
    shape = (None, kv_heads, int(key_cache.shape[-1]))
    check_tensor("key", key, shape, (key_cache.dtype,), key_cache.device)
    check_tensor("value", value, tuple(key.shape), (key_cache.dtype,), key_cache.device)
    check_tensor("slot_mapping", slot_mapping, (int(key.shape[0]),), INT64, key_cache.device)
    slots = int(key_cache.shape[0]) * block_size
    if slot_mapping.device.type == "cpu":  # elsewhere the mask would wait for the device
        checks.check_ids("slot_mapping", slot_mapping[slot_mapping != -1], slots)
    _run(
        launches.write_launch(key, value, key_cache, value_cache, slot_mapping, strides, block_size)
    )


def copy_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copies block `pairs[i, 0]` to block `pairs[i, 1]` (int64 [n, 2]), keys and values.

    The copies run at once: no block may be a target twice, or a source and a target.
    """
    _check_whole_blocks(key_cache, value_cache)
    check_tensor("pairs", pairs, (None, 2), INT64, key_cache.device)
    require(pairs.is_contiguous(), "pairs is not contiguous")
    checks.check_ids("pairs", pairs, int(key_cache.shape[0]))
    _run(launches.copy_launch(key_cache, value_cache, pairs))


def swap_out_blocks(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gathers `blocks` (int64 [n]) into one buffer on the device: one copy then moves all of them.

    Returns `out`, [2, n, *block shape] of the cache's dtype: the keys of all blocks, then the
    values.
    """
    if out is None:
        out = key_cache.new_empty((2, int(blocks.shape[0]), *key_cache.shape[1:]))
    _swap(out, key_cache, value_cache, blocks, out=True)
    return out


def swap_in_blocks(
    buffer: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, blocks: torch.Tensor
) -> None:
    """Scatters a buffer of `swap_out_blocks` into `blocks` (int64 [n], each at most once)."""
    _swap(buffer, key_cache, value_cache, blocks, out=False)


def _decode(
    query: torch.Tensor,
    view: CacheView,
    context_lens: torch.Tensor,
    attention: Attention,
    out: torch.Tensor | None,
    max_context: int | None,
    config: configs.DecodeConfig | None,
) -> torch.Tensor:
    out = torch.empty_like(query) if out is None else out
    checks.check_queries(query, out, view, context_lens)
    require(query.shape[0] == view.seqs, f"{query.shape[0]} queries for {view.seqs} sequences")
    if view.seqs == 0:
        return out
    longest = int(context_lens.max()) if max_context is None else max_context
    if query.device.type == "cpu":
        first = context_lens - attention.window if attention.window else None
        checks.check_context(view, context_lens, first)
        require(int(context_lens.max()) <= longest, f"a context is above max_context {longest}")
    config = config or configs.decode_config(
        launches.settings_name(query.device), view.head_dim, query.element_size()
    )
    for launch in launches.decode_launches(
        out, query, view, context_lens, attention, longest, config
    ):
        launch.run()
    return out


def _prefill(
    query: torch.Tensor,
    view: CacheView,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    attention: Attention,
    out: torch.Tensor | None,
    config: configs.PrefillConfig | None,
) -> torch.Tensor:
    out = torch.empty_like(query) if out is None else out
    checks.check_queries(query, out, view, context_lens)
    check_tensor("query_start", query_start, (view.seqs + 1,), INT32, query.device)
    if view.seqs == 0 or query.shape[0] == 0:
        return out
    if query.device.type == "cpu":
        lens = checks.check_query_start(query_start, context_lens, int(query.shape[0]))
        first = context_lens - lens - attention.window + 1 if attention.window else None
        checks.check_context(view, context_lens, first)
    config = config or configs.prefill_config(
        launches.settings_name(query.device), view.head_dim, query.element_size()
    )
    launches.prefill_launch(out, query, view, query_start, context_lens, attention, config).run()
    return out


def _swap(
    buffer: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    *,
    out: bool,
) -> None:
    _check_whole_blocks(key_cache, value_cache)
    check_tensor("blocks", blocks, (None,), INT64, key_cache.device)
    shape = (2, int(blocks.shape[0]), *key_cache.shape[1:])
    check_tensor("buffer", buffer, shape, (key_cache.dtype,), key_cache.device)
    require(buffer.is_contiguous(), "the buffer is not contiguous")
    checks.check_ids("blocks", blocks, int(key_cache.shape[0]))
    _run(launches.swap_launch(buffer, key_cache, value_cache, blocks, out))


def _check_whole_blocks(key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    checks.cache_strides(key_cache, value_cache, "nhd")
    require(key_cache[:1].is_contiguous(), "the blocks of the cache are not contiguous")


def _run(launch: launches.Launch) -> None:
    """Runs a copying kernel, which needs no settings but must have a device it can run on."""
    if 0 not in launch.grid:
        launches.settings_name(launch.arguments[0].device)
        launch.run()
