"""Where requests with several outputs work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsim.scenario.findings import Finding
from kvsim.scenario.sampling import TraceSampling, served_as, uses_groups, why_groups

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario


def _scheduler(scenario: Scenario) -> Iterator[Finding]:
    serving, engine = served_as(scenario), scenario.engine
    if serving is not None and engine.scheduler != "vllm":
        yield Finding(
            "engine.scheduler",
            f"must be vllm while requests have branches (sampling), got {engine.scheduler}",
            "Set it to vllm, or remove sampling",
        )


def _groups(scenario: Scenario) -> Iterator[Finding]:
    if not uses_groups(scenario):
        return
    engine, memory = scenario.engine, scenario.memory
    why, instead = why_groups(scenario)
    if memory.kind not in ("paged", "contiguous"):
        yield Finding(
            "memory.kind",
            f"must be paged or contiguous {why}, got {memory.kind}",
            f"Set it to paged, {instead}",
        )
    for name in ("enable_prefix_caching", "async_scheduling"):
        if getattr(engine, name):
            yield Finding(
                f"engine.{name}",
                f"= true is not covered {why}",
                f"Set it to false or leave it out, {instead}",
            )
    if engine.scheduling_policy != "fcfs":
        yield Finding(
            "engine.scheduling_policy",
            f"must be fcfs {why}, got {engine.scheduling_policy}",
            f"Set it to fcfs, {instead}",
        )
    if engine.speculative_config is not None:
        yield Finding(
            "engine.speculative_config",
            f"is not covered {why}",
            f"Set it to null, {instead}",
        )


def _width(scenario: Scenario) -> Iterator[Finding]:
    sampling, engine = scenario.sampling, scenario.engine
    if sampling is None or isinstance(sampling, TraceSampling) or not uses_groups(scenario):
        return
    if sampling.most_branches > engine.max_num_seqs:
        yield Finding(
            "engine.max_num_seqs",
            f"must be >= {sampling.most_branches}, the branches of a request, which it counts, got"
            f" {engine.max_num_seqs}",
            "Raise it, or ask for fewer branches",
        )


def _foresight(scenario: Scenario) -> Iterator[Finding]:
    memory = scenario.memory
    if served_as(scenario) and memory.kind == "paged" and memory.eviction == "belady":
        yield Finding(
            "memory.eviction",
            "= belady does not know what several outputs of one prompt will look for",
            "Set it to lru, fifo or lfu, or remove sampling",
        )


BRANCH_RULES = (_scheduler, _groups, _width, _foresight)
"""What `kvsim.scenario.checks.check` applies, in this order."""
