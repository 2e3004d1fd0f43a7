"""Where prefix caching, asynchronous scheduling, priorities and speculation work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsim.scenario.findings import Finding
from kvsim.scenario.offload import offload_findings
from kvsim.scenario.pages import page_findings
from kvsim.scenario.swap import swap_findings

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario

_OR_LEAVE_OUT = "Set it to false, or leave it out here and in the base"


def _caching_and_async(scenario: Scenario) -> Iterator[Finding]:
    engine, memory = scenario.engine, scenario.memory
    for name in ("enable_prefix_caching", "async_scheduling"):
        if not getattr(engine, name):
            continue
        if engine.scheduler != "vllm":
            yield Finding(
                f"engine.{name}",
                f"= true needs engine.scheduler = vllm, got {engine.scheduler}",
                _OR_LEAVE_OUT,
            )
        if memory.kind != "paged":
            yield Finding(
                f"engine.{name}",
                f"= true needs memory.kind = paged, got {memory.kind}",
                _OR_LEAVE_OUT,
            )


def _policy(scenario: Scenario) -> Iterator[Finding]:
    engine = scenario.engine
    if engine.scheduling_policy == "priority" and engine.scheduler != "vllm":
        yield Finding(
            "engine.scheduling_policy",
            f"= priority needs engine.scheduler = vllm, got {engine.scheduler}",
            "Set it to fcfs",
        )


def _eviction(scenario: Scenario) -> Iterator[Finding]:
    engine, memory = scenario.engine, scenario.memory
    if memory.kind != "paged" or memory.eviction == "lru":
        return
    if not engine.enable_prefix_caching:
        yield Finding(
            "memory.eviction",
            f"= {memory.eviction} needs engine.enable_prefix_caching = true: without a cache there"
            " is nothing to choose from",
            "Set memory.eviction to lru, or switch prefix caching on",
        )
    if memory.eviction == "belady" and engine.scheduling_policy != "fcfs":
        yield Finding(
            "memory.eviction",
            "= belady knows the future only under engine.scheduling_policy = fcfs, got"
            f" {engine.scheduling_policy}",
            "Set scheduling_policy to fcfs, or memory.eviction to lru, fifo or lfu",
        )


def _speculation(scenario: Scenario) -> Iterator[Finding]:
    engine, memory = scenario.engine, scenario.memory
    drafts = engine.speculative_config
    if drafts is None:
        return
    if engine.scheduler != "vllm" or memory.kind != "paged":
        yield Finding(
            "engine.speculative_config",
            "needs engine.scheduler = vllm and memory.kind = paged, got"
            f" {engine.scheduler} and {memory.kind}",
            "Set speculative_config to null",
        )
    if engine.async_scheduling:
        yield Finding(
            "engine.async_scheduling",
            f"= true together with speculative decoding ({drafts.method}) is not covered: no"
            " recording of the real scheduler shows it",
            "Set async_scheduling to false",
        )
    # A request whose last token is all that is left to compute takes as many dummy drafts.
    budget, most = engine.max_num_batched_tokens, drafts.num_speculative_tokens + 2
    if budget < most:
        yield Finding(
            "engine.max_num_batched_tokens",
            f"must be >= num_speculative_tokens + 2 = {most} tokens, got {budget}",
            "Raise it, or lower num_speculative_tokens",
        )


FEATURE_RULES = (
    _caching_and_async,
    _policy,
    _eviction,
    _speculation,
    swap_findings,
    offload_findings,
    page_findings,
)
"""What `kvsim.scenario.checks.check` applies, in this order."""
