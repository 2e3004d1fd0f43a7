"""`memory.offload` -> tiers for the memory and links for the clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kvsim.catalog import GIB, Model, kv_bytes_per_token
from kvsim.core.offload import Tier
from kvsim.core.plan import Chunk, StepPlan
from kvsim.cost import Link, PredictiveClock
from kvsim.scenario.engine import KV_CACHE_BYTES
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.memory import PagedMemory
from kvsim.scenario.offload import OffloadSettings, OffloadTier
from kvsim.scenario.settings import Scenario

GB = 10**9
_CACHED_TIMES = 1 << 14


def offload_of(settings: Scenario) -> OffloadSettings | None:
    """The section, where the memory has one."""
    memory = settings.memory
    return memory.offload if isinstance(memory, PagedMemory) else None


def offload_links(settings: Scenario, model: Model | None) -> dict[str, Link]:
    """How each tier is read, by its name; none without offloading.

    Raises `SettingsError` for a tier that does not hold one block.
    """
    offload = offload_of(settings)
    if offload is None:
        return {}
    token_bytes = _token_bytes(settings, offload, model)
    for name, tier in offload.tiers().items():
        _capacity_blocks(settings, name, tier, token_bytes)
    return {
        name: Link(token_bytes, tier.bandwidth_gb_per_s * GB, latency_s=tier.latency_s)
        for name, tier in offload.tiers().items()
    }


def _token_bytes(settings: Scenario, offload: OffloadSettings, model: Model | None) -> int:
    """Bytes of a token's KV on each GPU."""
    if offload.kv_bytes_per_token is not None:
        return offload.kv_bytes_per_token
    assert model is not None  # kvsim.scenario.offload
    width = KV_CACHE_BYTES[settings.engine.kv_cache_dtype]
    return kv_bytes_per_token(model, tp=_gpus(settings), kv_dtype_bytes=width)


def _gpus(settings: Scenario) -> int:
    return settings.hardware.count if settings.hardware else 1


def _capacity_blocks(settings: Scenario, name: str, tier: OffloadTier, token_bytes: int) -> int:
    if tier.capacity_blocks is not None:
        return tier.capacity_blocks
    assert tier.capacity_gib is not None  # kvsim.scenario.offload
    assert isinstance(settings.memory, PagedMemory)
    block_bytes = settings.memory.block_size * token_bytes * _gpus(settings)
    blocks = int(tier.capacity_gib * GIB / block_bytes)
    if not blocks:
        raise SettingsError(
            f"memory.offload.{name}.capacity_gib",
            f"= {tier.capacity_gib:g} GiB does not hold one block of {block_bytes} bytes",
            f"Raise it to {block_bytes / GIB:.3g} or more",
        )
    return blocks


def offload_tiers(settings: Scenario, model: Model | None) -> list[Tier]:
    """The tiers, fastest first, their capacities in blocks. Raises as `offload_links` does."""
    offload = offload_of(settings)
    links = offload_links(settings, model)
    tiers = []
    for name, tier in (offload.tiers() if offload else {}).items():
        link = links[name]
        blocks = _capacity_blocks(settings, name, tier, link.bytes_per_token)
        tiers.append(Tier(name, blocks, link.seconds))
    return tiers


def compute_time(clock: PredictiveClock, budget: int) -> Callable[[int, int], float]:
    """Seconds to compute new tokens behind prior ones: (prior tokens, new tokens) -> seconds.

    In steps of at most `budget` tokens that compute nothing else, as on an idle server.
    """

    @lru_cache(_CACHED_TIMES)
    def step_s(prior_tokens: int, new_tokens: int) -> float:
        plan = StepPlan(0, {})
        plan.chunks = [Chunk(new_tokens, prior_tokens)]
        plan.prefill_tokens = new_tokens
        return clock.step_seconds(plan)

    def seconds(prior_tokens: int, new_tokens: int) -> float:
        end = prior_tokens + new_tokens
        return sum(
            step_s(first, min(budget, end - first)) for first in range(prior_tokens, end, budget)
        )

    return seconds
