"""How many requests a scenario asks for, from its settings alone."""

from __future__ import annotations

import numpy as np

from kvsim.scenario.chat import ChatRecipe
from kvsim.scenario.settings import Scenario
from kvsim.scenario.traffic import (
    ChatFallback,
    ChatSettings,
    LawWorkload,
    PresetFallback,
    PresetWorkload,
    Sosp23Workload,
    TraceWorkload,
    WorkloadSettings,
)
from kvsim.workload import KNOWN_TRACES, preset_facts

_DRAWN_TURNS = 4096


def planned_requests(scenario: Scenario, *, file_rows: int | None = None) -> int:
    """Requests that all variants submit under all seeds, together; made without reading a trace.

    Exact for laws and presets. At most so many for a trace, whose rows may be unusable, and for one
    that has a fallback. Expected ones for the `sosp23` recipe and for conversations, whose lengths
    are drawn. `file_rows` is what a file of the user's own holds; without it, its `limit` counts,
    and a file without either counts as empty.
    """
    runs = len(scenario.seeds) * (1 + len(scenario.compare))
    return runs * _of_one_run(scenario.workload, file_rows)


def _of_one_run(workload: WorkloadSettings, file_rows: int | None) -> int:
    if isinstance(workload, LawWorkload):
        return workload.num_requests
    if isinstance(workload, PresetWorkload):
        return _of_preset(workload.preset, workload.num_requests)
    if isinstance(workload, ChatSettings):
        return _of_chat(workload.chat)
    if isinstance(workload, Sosp23Workload):
        return round(workload.sosp23.rate_rps * workload.sosp23.duration_s)
    if isinstance(workload, TraceWorkload):
        rows = _least(KNOWN_TRACES[workload.trace].rows, workload.limit)
        return max(rows, _of_fallback(workload))
    return _least(file_rows, workload.limit)


def _of_fallback(workload: TraceWorkload) -> int:
    fallback = workload.fallback
    if isinstance(fallback, PresetFallback):
        return _least(_of_preset(fallback.preset, fallback.num_requests), workload.limit)
    return _of_chat(fallback.chat) if isinstance(fallback, ChatFallback) else 0


def _of_preset(name: str, num_requests: int | None) -> int:
    if num_requests is not None:
        return num_requests
    requests: int = preset_facts(name)["statistics"]["requests"]
    return requests


def _of_chat(chat: ChatRecipe) -> int:
    generator = np.random.Generator(np.random.PCG64(0))
    return round(
        chat.conversations * float(chat.turns.build().draw(generator, _DRAWN_TURNS).mean())
    )


def _least(*counts: int | None) -> int:
    return min((count for count in counts if count is not None), default=0)
