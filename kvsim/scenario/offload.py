"""Settings of `memory.offload`: where cached prefixes go beside the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import MAX_BLOCKS, Seconds, Section
from kvsim.scenario.findings import Finding

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario

TIERS = ("host", "disk")
"""Fastest first."""


class OffloadTier(Section):
    """One tier: how much it holds, and how fast the GPUs read it."""

    capacity_gib: (
        Annotated[float, Field(gt=0, le=1e9, json_schema_extra={"unit": "GiB"})] | None
    ) = Field(
        default=None, description="KV that the tier holds, of all GPUs of the replica together"
    )
    capacity_blocks: (
        Annotated[int, Field(ge=1, le=MAX_BLOCKS, json_schema_extra={"unit": "block"})] | None
    ) = Field(default=None, description="KV blocks that the tier holds, instead of capacity_gib")
    bandwidth_gb_per_s: Annotated[
        float, Field(gt=0, le=1e6, json_schema_extra={"unit": "GB/s"})
    ] = Field(
        description="10^9 bytes per second that each GPU reads from the tier, its own share of the"
        " KV, e.g. 25 for host memory over PCIe 4.0 x16"
    )
    latency_s: Seconds = Field(
        default=0.0, description="seconds until the first byte comes, once per request that reads"
    )


class OffloadSettings(Section):
    """Blocks are written when they are full, in the background; steps wait for what they read."""

    host: OffloadTier | None = Field(default=None, description="memory of the host")
    disk: OffloadTier | None = Field(
        default=None, description="a disk, which holds what the host has no more room for"
    )
    fetch: Literal["auto", "always"] = Field(
        default="auto",
        description="auto: what is fetched faster than the device would compute it; always:"
        " whatever a tier has",
    )
    kv_bytes_per_token: (
        Annotated[int, Field(ge=1, le=10**9, json_schema_extra={"unit": "byte"})] | None
    ) = Field(
        default=None, description="bytes of one token's KV on each GPU; left out, the model's"
    )

    def tiers(self) -> dict[str, OffloadTier]:
        """The tiers there are, by name, fastest first."""
        given = {name: getattr(self, name) for name in TIERS}
        return {name: tier for name, tier in given.items() if tier is not None}


def offload_findings(scenario: Scenario) -> Iterator[Finding]:
    """What offloading needs and excludes."""
    engine, memory = scenario.engine, scenario.memory
    if memory.kind != "paged" or memory.offload is None:
        return
    offload, where, remove = memory.offload, "memory.offload", "Set memory.offload to null"
    if not engine.enable_prefix_caching:
        yield Finding(
            where,
            "needs engine.enable_prefix_caching = true: without a cache nothing is found again",
            f"{remove}, or switch prefix caching on",
        )
    if memory.eviction == "belady":
        yield Finding(
            "memory.eviction",
            "= belady does not know what memory.offload would make of an eviction",
            "Set it to lru, fifo or lfu, or memory.offload to null",
        )
    if engine.speculative_config is not None:
        yield Finding(
            where,
            "together with engine.speculative_config is not covered",
            f"{remove}, or engine.speculative_config to null",
        )
    if scenario.model is None and offload.kv_bytes_per_token is None:
        yield Finding(
            f"{where}.kv_bytes_per_token",
            "is missing, and no model gives it",
            "Set it, or name a model",
        )
    if not offload.tiers():
        yield Finding(where, "names no tier", f"Give {' or '.join(TIERS)}, or set it to null")
    for name, tier in offload.tiers().items():
        if (tier.capacity_gib is None) == (tier.capacity_blocks is None):
            yield Finding(
                f"{where}.{name}",
                "needs either capacity_gib or capacity_blocks, got"
                f" {'neither' if tier.capacity_gib is None else 'both'}",
                "Give one of them",
            )
