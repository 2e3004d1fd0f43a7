"""Rules that involve several settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsim.scenario.branch_checks import BRANCH_RULES
from kvsim.scenario.feature_checks import FEATURE_RULES
from kvsim.scenario.findings import Finding, SettingsError

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario


MAX_REPLICAS = 2000
"""Seeds times variants: each has its entry in the summary, whose size is limited."""


def check(scenario: Scenario) -> None:
    """Raise `SettingsError` for the first rule that the settings break."""
    general = (_seeds, _names_and_windows, _token_budget, _memory_kind)
    rules = (*general, *BRANCH_RULES, *FEATURE_RULES, _pages, _sources)
    for rule in rules:
        for finding in rule(scenario):
            raise SettingsError(*finding)


def _names_and_windows(scenario: Scenario) -> Iterator[Finding]:
    if scenario.variant_name in scenario.compare:
        yield Finding(
            f"compare.{scenario.variant_name}",
            "has the name of the variant without changes",
            "Choose another name, or set base_name",
        )
    window = scenario.measure
    if window.to_s is not None and window.to_s <= window.from_s:
        yield Finding(
            "measure.to_s",
            f"must be > measure.from_s = {window.from_s:g} s, got {window.to_s:g}",
            "Give a window that is not empty",
        )


def _seeds(scenario: Scenario) -> Iterator[Finding]:
    seeds = scenario.seeds
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if repeated:
        yield Finding(
            "seeds",
            f"must differ from each other, got {repeated[0]} {seeds.count(repeated[0])} times",
            "Name each seed once: the same seed again would add nothing",
        )
    replicas = len(seeds) * (1 + len(scenario.compare))
    if replicas > MAX_REPLICAS:
        yield Finding(
            "seeds",
            f"times variants must be <= {MAX_REPLICAS}, got {len(seeds)} seeds"
            f" for {1 + len(scenario.compare)} variants",
            f"Give at most {MAX_REPLICAS // (1 + len(scenario.compare))} seeds",
        )


def _token_budget(scenario: Scenario) -> Iterator[Finding]:
    engine = scenario.engine
    budget = engine.max_num_batched_tokens
    if engine.scheduler == "static":
        return
    if budget < engine.max_num_seqs:
        yield Finding(
            "engine.max_num_batched_tokens",
            f"must be >= engine.max_num_seqs = {engine.max_num_seqs} tokens, got {budget}",
            "Every running sequence needs one token per step: raise it, or lower max_num_seqs",
        )


def _memory_kind(scenario: Scenario) -> Iterator[Finding]:
    memory, scheduler = scenario.memory, scenario.engine.scheduler
    if scheduler == "orca" and memory.kind != "contiguous":
        yield Finding(
            "memory.kind",
            f"must be contiguous with engine.scheduler = orca, got {memory.kind}",
            "Set memory.kind to contiguous, or engine.scheduler to vllm",
        )
    if scheduler == "static" and memory.kind in ("paged", "vmm"):
        yield Finding(
            "memory.kind",
            f"must be contiguous or grow with engine.scheduler = static, got {memory.kind}",
            "Set memory.kind to contiguous, or engine.scheduler to vllm",
        )
    if memory.kind == "grow" and scheduler != "static":
        yield Finding(
            "engine.scheduler",
            f"must be static with memory.kind = grow, got {scheduler}",
            "Set engine.scheduler to static, or memory.kind to contiguous",
        )
    if scenario.engine.pad_prompts and scheduler != "static":
        yield Finding(
            "engine.pad_prompts",
            f"= true needs engine.scheduler = static, got {scheduler}",
            "Set pad_prompts to false",
        )
    if memory.kind != "contiguous":
        return
    if memory.placement == "buddy" and memory.compaction:
        yield Finding(
            "memory.compaction",
            "= true excludes memory.placement = buddy, whose sizes are fixed",
            "Set placement to first_fit, best_fit or next_fit",
        )
    if memory.max_chunk_tokens is not None:
        if memory.placement != "buddy":
            yield Finding(
                "memory.max_chunk_tokens",
                f"belongs to memory.placement = buddy, got {memory.placement}",
                "Remove it, or set placement to buddy",
            )
        blocks, rest = divmod(memory.max_chunk_tokens, memory.block_size)
        if rest or blocks.bit_count() != 1:
            yield Finding(
                "memory.max_chunk_tokens",
                f"must be memory.block_size = {memory.block_size} tokens times a power of two,"
                f" got {memory.max_chunk_tokens}",
                f"For example {memory.block_size * 128}",
            )


def _pages(scenario: Scenario) -> Iterator[Finding]:
    if scenario.memory.kind == "vmm" and scenario.model is None:
        yield Finding(
            "model",
            "is missing, and memory.kind is vmm, whose pages hold as many tokens as the model's"
            " layers allow",
            "Name a model, or set memory.kind to paged",
        )


def _read_efficiency(scenario: Scenario) -> Iterator[Finding]:
    memory, clock = scenario.memory, scenario.clock
    if memory.kind == "vmm" or clock.kind != "linear" or clock.read_efficiency is None:
        return
    if str(memory.block_size) not in clock.read_efficiency:
        yield Finding(
            "clock.read_efficiency",
            f"has no entry for memory.block_size = {memory.block_size}",
            f"Add {memory.block_size} with a number > 0 and <= 1",
        )


def _sources(scenario: Scenario) -> Iterator[Finding]:
    """What must be known to size the memory, to time steps and to bound lengths."""
    reasons = []
    if scenario.memory.num_blocks is None:
        name = "num_page_sets" if scenario.memory.kind == "vmm" else "num_blocks"
        reasons.append(f"memory.{name} is left out")
    if scenario.clock.kind in ("roofline", "calibrated"):
        reasons.append(f"clock.kind is {scenario.clock.kind}")
    measured = scenario.clock.kind == "profile"
    for section in ("model", "hardware"):
        needed = reasons or (measured and section == "model")
        if needed and getattr(scenario, section) is None:
            yield Finding(
                section,
                f"is missing, and {' and '.join(reasons or ['clock.kind is profile'])}",
                "Name a model and a GPU, or give memory.num_blocks and a fixed or linear clock",
            )
    clock = scenario.clock
    if clock.kind == "linear" and clock.base_s + clock.decode_s == 0:
        yield Finding(
            "clock.base_s",
            "and clock.decode_s are both 0 seconds: decode steps would take no time",
            "Give one of them a positive value",
        )
    yield from _read_efficiency(scenario)
    if scenario.model is None and scenario.engine.max_model_len is None:
        yield Finding(
            "engine.max_model_len",
            "is missing, and no model gives it",
            "Set it to the most tokens of prompt and output together",
        )
