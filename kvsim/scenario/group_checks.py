"""Rules for models whose layers do not all keep every token."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.catalog import KvGroups
from kvsim.scenario.findings import Finding
from kvsim.scenario.sampling import uses_groups, why_groups
from kvsim.scenario.settings import Scenario


def group_findings(settings: Scenario, groups: KvGroups) -> Iterator[Finding]:
    """What the settings ask for and layers that do not keep every token cannot have."""
    engine, memory = settings.engine, settings.memory
    every = engine.prefix_cache_retention_interval
    if every and memory.kind != "vmm" and every % memory.block_size:
        yield Finding(
            "engine.prefix_cache_retention_interval",
            f"must be a multiple of memory.block_size = {memory.block_size} tokens, got {every}",
            f"For example {-(-every // memory.block_size) * memory.block_size}, or 0",
        )
    if groups.is_uniform:
        return
    layers = f"the model has layers {_layers(groups)}"
    if memory.kind != "paged":
        shrinks = "" if groups.has("state") else ", which give memory back while a request runs"
        yield Finding(
            "memory.kind",
            f"must be paged, got {memory.kind}: {layers}{shrinks}",
            "Set memory.kind to paged, or choose a model whose layers keep every token",
        )
        return
    yield from _kinds_findings(settings, groups, layers)
    if uses_groups(settings):
        swaps = engine.preemption_mode != "recompute"
        _, instead = why_groups(settings)
        yield Finding(
            "engine.preemption_mode" if swaps else "sampling.served_as",
            f"= {engine.preemption_mode if swaps else 'groups'} is not covered where {layers}",
            f"Choose a model whose layers keep every token, {instead}",
        )
    if memory.eviction == "belady":
        yield Finding(
            "memory.eviction",
            f"= belady needs one group of layers that keeps every token: {layers}",
            "Set it to lru, fifo or lfu",
        )
    if memory.page_kib is not None:
        yield Finding(
            "memory.page_kib",
            f"needs one group of layers that keeps every token: {layers}",
            "Set it to null, or choose a model whose layers keep every token",
        )
    if memory.offload is not None:
        yield Finding(
            "memory.offload",
            f"needs one group of layers that keeps every token: {layers}",
            "Set it to null, or choose a model whose layers keep every token",
        )
    drafts = engine.speculative_config
    if drafts is not None and drafts.method == "eagle":
        yield Finding(
            "engine.speculative_config.method",
            f"= eagle is not covered where {layers}",
            "Set it to ngram or draft_model, or choose a model whose layers keep every token",
        )


def _kinds_findings(settings: Scenario, groups: KvGroups, layers: str) -> Iterator[Finding]:
    """What chunked-local and linear attention cannot have, beside what no layer groups have."""
    engine = settings.engine
    if groups.has("chunked", "state") and engine.enable_prefix_caching:
        unified = "" if groups.has("state") else ", or memory.layer_groups to unified"
        yield Finding(
            "engine.enable_prefix_caching",
            f"= true is not covered where {layers}",
            f"Set it to false{unified}",
        )
    if not groups.has("state"):
        return
    if settings.clock.kind in ("roofline", "calibrated"):
        yield Finding(
            "clock.kind",
            f"= {settings.clock.kind} is not covered where {layers}: no time by shape is known for"
            " them",
            "Set it to fixed or linear",
        )
    if engine.speculative_config is not None:
        yield Finding(
            "engine.speculative_config",
            f"is not covered where {layers}",
            "Set it to null, or choose a model whose layers all keep tokens",
        )


def _layers(groups: KvGroups) -> str:
    """What layers have that do not keep every token."""
    if groups.has("state"):
        return "that keep a state"
    return "with chunked-local attention" if groups.has("chunked") else "with a sliding window"
