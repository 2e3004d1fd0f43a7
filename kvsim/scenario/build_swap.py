"""`memory.swap` -> a host pool, links for the clock, and what is cheaper."""

from __future__ import annotations

from kvsim.catalog import GIB, MlaAttention, Model, kv_bytes_per_token
from kvsim.core.group_swap import SwapIsCheaper
from kvsim.core.host_pool import SWAP_IN, SWAP_OUT
from kvsim.cost import Link, PredictiveClock
from kvsim.scenario.build_offload import GB, compute_time
from kvsim.scenario.engine import KV_CACHE_BYTES
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.memory import PagedMemory
from kvsim.scenario.settings import Scenario
from kvsim.scenario.swap import SwapSettings

DEFAULT_GIB = 4.0
"""vLLM v0's --swap-space."""


def swap_of(settings: Scenario) -> SwapSettings | None:
    """The section, or its defaults, where preempted requests may be swapped; else None."""
    memory = settings.memory
    if settings.engine.preemption_mode == "recompute" or not isinstance(memory, PagedMemory):
        return None
    return memory.swap or SwapSettings()


def swap_links(settings: Scenario, model: Model | None) -> dict[str, Link]:
    """Both ways between the GPUs and the host, by the names of their transfers."""
    swap = swap_of(settings)
    if swap is None:
        return {}
    assert model is not None  # kvsim.scenario.swap
    token_bytes, copies = _token_bytes(settings, model), _tensors(model)
    return {
        SWAP_OUT: Link(token_bytes, swap.out_gb_per_s * GB, copies, swap.copy_out_s),
        SWAP_IN: Link(token_bytes, swap.in_gb_per_s * GB, copies, swap.copy_in_s),
    }


def _tensors(model: Model) -> int:
    """Tensors with a piece of every block: K and V of each layer, one where it keeps latents."""
    return sum(
        one.layers * (1 if isinstance(one.attention, MlaAttention) else 2)
        for one in model.groups
        if one.kind != "none"
    )


def host_blocks(settings: Scenario, model: Model | None) -> int:
    """Blocks that the host holds; 0 without swapping.

    Raises `SettingsError` for a capacity below one block.
    """
    swap, memory = swap_of(settings), settings.memory
    if swap is None:
        return 0
    if swap.capacity_blocks is not None:
        return swap.capacity_blocks
    assert model is not None  # kvsim.scenario.swap
    assert isinstance(memory, PagedMemory)
    gib = DEFAULT_GIB if swap.capacity_gib is None else swap.capacity_gib
    block_bytes = memory.block_size * _token_bytes(settings, model)
    blocks = int(gib * GIB / block_bytes)
    if not blocks:
        raise SettingsError(
            "memory.swap.capacity_gib",
            f"= {gib:g} GiB does not hold one block of {block_bytes} bytes",
            f"Raise it to {block_bytes / GIB:.3g} or more",
        )
    return blocks


def swap_is_cheaper(
    settings: Scenario, model: Model | None, clock: PredictiveClock
) -> SwapIsCheaper | None:
    """For `preemption_mode: auto`: closed form 10 of both ways against steps of prefills alone."""
    if settings.engine.preemption_mode != "auto":
        return None
    links = swap_links(settings, model)
    compute_s = compute_time(clock, settings.engine.max_num_batched_tokens)

    def cheaper(tokens: int, blocks: int, recompute_tokens: int) -> bool:
        both_ways = sum(link.seconds(tokens, blocks) for link in links.values())
        return both_ways < compute_s(0, recompute_tokens)

    return cheaper


def _token_bytes(settings: Scenario, model: Model) -> int:
    width = KV_CACHE_BYTES[settings.engine.kv_cache_dtype]
    tp = settings.hardware.count if settings.hardware else 1
    return kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=width)
