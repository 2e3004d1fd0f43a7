"""The section `memory` -> an allocator."""

from __future__ import annotations

from typing import Any

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.eviction import EVICTION_ORDERS
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Allocator
from kvsim.core.speculative_scheduler import Speculation
from kvsim.core.vmm import VmmAllocator
from kvsim.scenario.foresight import ForesightAllocator
from kvsim.scenario.memory import ContiguousMemory, GrowMemory, PagedMemory, VmmMemory
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import Sizing


def build_memory(settings: Scenario, sizing: Sizing, speculation: Speculation | None) -> Allocator:
    """Fresh memory of one variant; it is given speculation for the slots that drafts need."""
    memory, num_blocks = settings.memory, sizing.num_blocks
    match memory:
        case PagedMemory():
            return _paged(settings, memory, sizing, speculation)
        case ContiguousMemory():
            return ContiguousAllocator(**contiguous_settings(memory, sizing))
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
    if speculation is not None:
        shape["hash_lookahead"] = speculation.hash_lookahead
        shape["lookahead_tokens"] = speculation.lookahead_tokens
    caches = engine.enable_prefix_caching
    if not sizing.groups.is_uniform:
        return GroupedAllocator(
            num_blocks,
            [_layer_group(window, memory.block_size) for window in sizing.groups.windows],
            max_model_len=sizing.max_model_len,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            async_scheduling=engine.async_scheduling,
            eviction=EVICTION_ORDERS[memory.eviction]() if caches else None,
            retention_interval=engine.prefix_cache_retention_interval,
            **shape,
        )
    shape["seals_ahead"] = not engine.async_scheduling
    if caches and memory.eviction == "belady":
        return ForesightAllocator(num_blocks, memory.block_size, **shape)
    order = EVICTION_ORDERS[memory.eviction]() if caches else None
    return PagedAllocator(num_blocks, memory.block_size, eviction=order, **shape)


def _layer_group(window: int | None, block_size: int) -> LayerGroup:
    return LayerGroup("full" if window is None else "sliding", block_size, window)
