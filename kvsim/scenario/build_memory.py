"""The section `memory` -> an allocator."""

from __future__ import annotations

from typing import Any

from kvsim.core.branches import BranchingAllocator
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.contiguous_branches import ContiguousBranches
from kvsim.core.eviction import EVICTION_ORDERS, EvictionOrder
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.offload import OffloadingAllocator
from kvsim.core.page_aware import PageAwareOrder
from kvsim.core.page_pins import PageSets
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Allocator
from kvsim.core.speculative_scheduler import Speculation
from kvsim.core.vmm import VmmAllocator
from kvsim.scenario.build_offload import compute_time, offload_tiers
from kvsim.scenario.build_swap import host_blocks
from kvsim.scenario.foresight import ForesightAllocator
from kvsim.scenario.memory import ContiguousMemory, GrowMemory, PagedMemory, VmmMemory
from kvsim.scenario.pages import blocks_per_page
from kvsim.scenario.sampling import uses_groups
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import Sizing


def build_memory(settings: Scenario, sizing: Sizing, speculation: Speculation | None) -> Allocator:
    """Fresh memory of one variant; it is given speculation for the slots that drafts need."""
    memory, num_blocks = settings.memory, sizing.num_blocks
    match memory:
        case PagedMemory():
            return _paged(settings, memory, sizing, speculation)
        case ContiguousMemory():
            kind = ContiguousBranches if uses_groups(settings) else ContiguousAllocator
            return kind(**contiguous_settings(memory, sizing))
        case GrowMemory():
            return GrowAllocator(num_blocks, memory.block_size)
        case VmmMemory():
            return VmmAllocator(
                num_blocks, sizing.block_size, keep_mapped_pages=memory.keep_mapped_pages
            )


def contiguous_settings(memory: ContiguousMemory, sizing: Sizing) -> dict[str, Any]:
    """Arguments of `ContiguousAllocator` as plain values."""
    return {
        "num_blocks": sizing.num_blocks,
        "block_size": memory.block_size,
        "max_model_len": sizing.max_model_len,
        "reserve": memory.reserve,
        "placement": memory.placement,
        "max_chunk_tokens": memory.max_chunk_tokens,
        "compaction": memory.compaction,
    }


def _paged(
    settings: Scenario, memory: PagedMemory, sizing: Sizing, speculation: Speculation | None
) -> Allocator:
    engine, num_blocks = settings.engine, sizing.num_blocks
    shape: dict[str, Any] = {"null_block": memory.null_block}
    if uses_groups(settings):
        host = host_blocks(settings, sizing.model)
        return BranchingAllocator(num_blocks, memory.block_size, host_blocks=host, **shape)
    if speculation is not None:
        shape["hash_lookahead"] = speculation.hash_lookahead
        shape["lookahead_tokens"] = speculation.lookahead_tokens
    caches = engine.enable_prefix_caching
    if not sizing.groups.is_uniform:
        return GroupedAllocator(
            num_blocks,
            _layer_groups(sizing),
            max_model_len=sizing.max_model_len,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            async_scheduling=engine.async_scheduling,
            eviction=EVICTION_ORDERS[memory.eviction]() if caches else None,
            retention_interval=engine.prefix_cache_retention_interval,
            **shape,
        )
    shape["seals_ahead"] = not engine.async_scheduling
    per_page = blocks_per_page(settings, sizing.model)
    if per_page is not None:
        shape["pages"] = PageSets(num_blocks, per_page)
    if caches and memory.eviction == "belady":
        return ForesightAllocator(num_blocks, memory.block_size, **shape)
    order = _order(memory, shape.get("pages")) if caches else None
    if memory.offload is not None:
        assert order is not None  # kvsim.scenario.offload
        shape["tiers"] = offload_tiers(settings, sizing.model)
        if memory.offload.fetch == "auto":
            shape["compute_s"] = compute_time(sizing.clock, engine.max_num_batched_tokens)
        return OffloadingAllocator(num_blocks, memory.block_size, eviction=order, **shape)
    return PagedAllocator(num_blocks, memory.block_size, eviction=order, **shape)


def _order(memory: PagedMemory, pages: PageSets | None) -> EvictionOrder:
    if memory.eviction != "page_aware":
        return EVICTION_ORDERS[memory.eviction]()
    assert pages is not None  # kvsim.scenario.pages
    return PageAwareOrder(pages)


def _layer_groups(sizing: Sizing) -> list[LayerGroup]:
    size, state = sizing.block_size, sizing.groups.state_tokens
    groups = []
    for one in sizing.groups.types:
        limits = {"sliding": {"window": one.limit_tokens}, "chunked": {"chunk": one.limit_tokens}}
        own = {"state_tokens": state} if one.kind == "state" else limits.get(one.kind, {})
        groups += [LayerGroup(one.kind, size * one.tokens_factor, **own)] * one.groups
    return groups
