"""Checked settings -> running objects. Objects get numbers; none of them holds a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvsim.core.branches import BranchingAllocator
from kvsim.core.contiguous_branches import ContiguousBranches
from kvsim.core.fan_out import FanOutScheduler
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.protocols import Allocator, Scheduler
from kvsim.core.request import Request
from kvsim.core.speculative_scheduler import Speculation, SpeculativeScheduler
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.scenario.build_memory import build_memory
from kvsim.scenario.build_swap import swap_is_cheaper
from kvsim.scenario.engine import EngineSettings
from kvsim.scenario.foresight import ForesightAllocator
from kvsim.scenario.memory import GrowMemory
from kvsim.scenario.proven import unproven
from kvsim.scenario.sampling import neutral_draw, served_as, uses_groups
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import Sizing, size_server


@dataclass(frozen=True)
class Server:
    """One variant, ready to run: fresh objects that share nothing with another variant's."""

    allocator: Allocator
    scheduler: Scheduler
    sizing: Sizing
    notes: tuple[str, ...]
    """What the reader of the results must know, such as rules that no recording covers."""


class _Parts(NamedTuple):
    """What a scheduler is built from."""

    settings: Scenario
    allocator: Allocator
    max_model_len: int
    speculation: Speculation | None
    seed: int
    sizing: Sizing


def build_server(settings: Scenario, *, seed: int = 0, requests: Iterable[Request] = ()) -> Server:
    """Construct allocator, scheduler and clock of one variant. Raises as `size_server` does.

    `seed` decides which drafts are right and which beams survive. `requests` are those to come,
    which nothing but `memory.eviction: belady` looks at.
    """
    sizing = size_server(settings)
    drafts = settings.engine.speculative_config
    speculation = drafts.build(seed) if drafts is not None else None
    allocator = build_memory(settings, sizing, speculation)
    parts = _Parts(settings, allocator, sizing.max_model_len, speculation, seed, sizing)
    scheduler = SCHEDULERS[settings.engine.scheduler](parts)
    if served_as(settings) == "requests":
        scheduler = FanOutScheduler(scheduler)
    if isinstance(allocator, ForesightAllocator):
        admitted = (request for request in requests if scheduler.refuse(request) is None)
        allocator.expect(admitted, sizing.max_model_len)
    return Server(allocator, scheduler, sizing, unproven(settings, sizing))


def vllm_settings(engine: EngineSettings, max_model_len: int) -> dict[str, Any]:
    """Arguments of `VllmScheduler` as plain values."""
    return {
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": max_model_len,
        "enable_chunked_prefill": engine.enable_chunked_prefill,
        "long_prefill_token_threshold": engine.long_prefill_token_threshold,
        "watermark": engine.watermark,
        "reserve_full_isl": engine.scheduler_reserve_full_isl,
        "policy": engine.scheduling_policy,
        "async_scheduling": engine.async_scheduling,
        "on_never_fits": engine.on_never_fits,
    }


def orca_settings(engine: EngineSettings, max_model_len: int) -> dict[str, Any]:
    """Arguments of `OrcaScheduler` as plain values."""
    return {
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_model_len": max_model_len,
        "on_never_fits": engine.on_never_fits,
    }


def group_settings(engine: EngineSettings, max_model_len: int) -> dict[str, Any]:
    """Arguments of `GroupScheduler` as plain values, but for the draw of beams."""
    settings = vllm_settings(engine, max_model_len)
    return {key: settings[key] for key in settings if key not in ("policy", "async_scheduling")}


def _groups(parts: _Parts) -> Scheduler:
    settings = group_settings(parts.settings.engine, parts.max_model_len)
    assert isinstance(parts.allocator, BranchingAllocator | ContiguousBranches)
    return GroupScheduler(
        parts.allocator,
        draw=neutral_draw(parts.seed),
        preemption=parts.settings.engine.preemption_mode,
        swap_is_cheaper=swap_is_cheaper(parts.settings, parts.sizing.model, parts.sizing.clock),
        **settings,
    )


def _vllm(parts: _Parts) -> Scheduler:
    if uses_groups(parts.settings):
        return _groups(parts)
    settings = vllm_settings(parts.settings.engine, parts.max_model_len)
    if parts.speculation is not None:
        return SpeculativeScheduler(parts.allocator, speculation=parts.speculation, **settings)
    return VllmScheduler(parts.allocator, **settings)


def _orca(parts: _Parts) -> Scheduler:
    settings = orca_settings(parts.settings.engine, parts.max_model_len)
    return OrcaScheduler(parts.allocator, **settings)


def _static(parts: _Parts) -> Scheduler:
    engine = parts.settings.engine
    grows = isinstance(parts.settings.memory, GrowMemory)
    return StaticScheduler(
        parts.allocator,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=parts.max_model_len,
        pad_prompts=grows if engine.pad_prompts is None else engine.pad_prompts,
        on_never_fits=engine.on_never_fits,
    )


SCHEDULERS: dict[str, Callable[[_Parts], Scheduler]] = {
    "vllm": _vllm,
    "orca": _orca,
    "static": _static,
}
