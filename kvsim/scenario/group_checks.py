"""Rules for models whose layers do not all keep every token."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.catalog import KvGroups
from kvsim.scenario.findings import Finding
from kvsim.scenario.settings import Scenario


def group_findings(settings: Scenario, groups: KvGroups) -> Iterator[Finding]:
    """What the settings ask for and layers with a sliding window cannot have."""
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
    layers = "the model has layers with a sliding window"
    if memory.kind != "paged":
        yield Finding(
            "memory.kind",
            f"must be paged, got {memory.kind}: {layers}, which give memory back while a request"
            " runs",
            "Set memory.kind to paged, or choose a model whose layers keep every token",
        )
        return
    if memory.eviction == "belady":
        yield Finding(
            "memory.eviction",
            f"= belady needs one group of layers that keeps every token: {layers}",
            "Set it to lru, fifo or lfu",
        )
    drafts = engine.speculative_config
    if drafts is not None and drafts.method == "eagle":
        yield Finding(
            "engine.speculative_config.method",
            f"= eagle is not covered where {layers}",
            "Set it to ngram or draft_model, or choose a model whose layers keep every token",
        )
