"""Runs every variant of a scenario on the same traffic and gathers `summary.json`."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import kvsim
from kvsim.core.protocols import Allocator, Recorder
from kvsim.results import (
    RequestsRecorder,
    RunFolder,
    SeriesRecorder,
    Slo,
    StepsRecorder,
    SummaryRecorder,
    Tee,
)
from kvsim.results.rows import Columns
from kvsim.scenario.build import Server, build_server
from kvsim.scenario.build_workload import Traffic, build_workload
from kvsim.scenario.lengths import PairFileSettings
from kvsim.scenario.loader import resolved
from kvsim.scenario.settings import MeasureSettings, Scenario, SloSettings
from kvsim.scenario.traffic import FileWorkload, LawWorkload
from kvsim.scenario.variants import variants
from kvsim.sim import RunEnd, run_replica

NS_PER_S = 1_000_000_000
END_OF_TIME_NS = 2**63 - 1
VERSIONED = ("numpy", "pyarrow", "pydantic", "ruamel.yaml", "simpy")
"""Distributions whose version may decide a byte of the results."""


class Watcher(Protocol):
    """Is told how a run gets on."""

    def note(self, text: str) -> None:
        """Something the reader of the results must know."""

    def start(self, variant: str, requests: int) -> None:
        """A variant begins; `requests` will reach their end."""

    def advance(self, requests: int) -> None:
        """So many requests reached their end."""


class SilentWatcher:
    """Does not watch."""

    def note(self, text: str) -> None:
        """Nothing."""

    def start(self, variant: str, requests: int) -> None:
        """Nothing."""

    def advance(self, requests: int) -> None:
        """Nothing."""


class RunResult(NamedTuple):
    """A finished run."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    servers: dict[str, Server]
    """By variant, as they were built; their memory is empty or left as the run ended."""
    content_sha256: str | None
    """Digest of the file of the user's own that the requests came from."""


def run_scenario(
    scenario: Scenario,
    *,
    out: Path | None = None,
    strict_traces: bool = False,
    watcher: Watcher | None = None,
) -> RunResult:
    """Run all variants; with `out`, write the run folder, complete or not at all.

    Raises `InputError` for a trace that is missing or bad, and for an `out` that exists.
    """
    watcher = watcher or SilentWatcher()
    if out is None:
        return _run_variants(scenario, None, strict_traces, watcher)
    with RunFolder(out) as folder:
        result = _run_variants(scenario, folder, strict_traces, watcher)
        folder.commit(
            scenario_text=resolved(_with_digest(scenario, result.content_sha256)),
            summary=result.summary,
            versions=_versions(),
            seeds=scenario.seeds,
            trace_digest=result.summary["workload"]["digest"],
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    return result


def _run_variants(
    scenario: Scenario, folder: RunFolder | None, strict_traces: bool, watcher: Watcher
) -> RunResult:
    traffic = build_workload(scenario.workload, seed=scenario.seeds[0], strict_traces=strict_traces)
    for note in traffic.notes:
        watcher.note(note)
    entries, servers = {}, {}
    for name, settings in variants(scenario).items():
        watcher.start(name, traffic.workload.counts.kept)
        servers[name] = server = build_server(settings)
        recorders = _Recorders(settings, server.allocator, rows=folder is not None)
        end = run_replica(
            traffic.workload,
            server.scheduler,
            server.sizing.clock,
            recorders.all,
            max_concurrency=traffic.max_concurrency,
            progress=watcher.advance,
        )
        server.allocator.check_integrity(server.scheduler.running())
        if folder is not None:
            folder.write_variant(name, **recorders.columns())
        entries[name] = _entry(settings, server, recorders.summary, end)
    summary = {
        "scenario": scenario.name,
        "kvsim_version": kvsim.__version__,
        "workload": _workload_entry(traffic),
        "variants": entries,
    }
    return RunResult(summary, servers, traffic.content_sha256)


def _with_digest(scenario: Scenario, content_sha256: str | None) -> Scenario:
    """The scenario with the digest of the file it names, so that it runs from any folder."""
    workload = scenario.workload
    digest = {"sha256": content_sha256}
    if isinstance(workload, FileWorkload):
        workload = workload.model_copy(update=digest)
    elif isinstance(workload, LawWorkload) and isinstance(workload.lengths, PairFileSettings):
        lengths = workload.lengths.model_copy(update=digest)
        workload = workload.model_copy(update={"lengths": lengths})
    return scenario.model_copy(update={"workload": workload})


class _Recorders:
    """What is recorded of one variant: the summary always, rows for a run folder."""

    def __init__(self, settings: Scenario, allocator: Allocator, *, rows: bool) -> None:
        self.summary = SummaryRecorder(
            allocator,
            window=_window(settings.measure),
            slo=_slo(settings.slo),
            frontend_ns=round(settings.frontend_s * NS_PER_S),
        )
        self._steps: StepsRecorder | SeriesRecorder | None = None
        self._requests: RequestsRecorder | None = None
        self.all: Recorder = self.summary
        if not rows or settings.record.mode == "summary":
            return
        if settings.record.mode == "steps":
            self._steps = StepsRecorder(allocator)
        else:
            interval_ns = round(settings.record.interval_s * NS_PER_S)
            self._steps = SeriesRecorder(allocator, interval_ns=interval_ns)
        self._requests = RequestsRecorder()
        self.all = Tee(self.summary, self._steps, self._requests)

    def columns(self) -> dict[str, Columns | None]:
        return {
            "steps": self._steps.columns() if self._steps else None,
            "requests": self._requests.columns() if self._requests else None,
        }


def _window(measure: MeasureSettings) -> tuple[int, int] | None:
    if measure.from_s == 0 and measure.to_s is None:
        return None
    end_ns = END_OF_TIME_NS if measure.to_s is None else round(measure.to_s * NS_PER_S)
    return round(measure.from_s * NS_PER_S), end_ns


def _slo(slo: SloSettings) -> Slo | None:
    limits = Slo(slo.ttft_s, slo.tpot_s, slo.e2e_s)
    return None if limits == Slo() else limits


def _entry(
    settings: Scenario, server: Server, summary: SummaryRecorder, end: RunEnd
) -> dict[str, Any]:
    sizing = server.sizing
    budget = sizing.budget
    return {
        **summary.summary(),
        "setup": {
            "scheduler": settings.engine.scheduler,
            "memory": settings.memory.kind,
            "block_size": settings.memory.block_size,
            "num_blocks": sizing.num_blocks,
            "num_blocks_80_percent": budget and [budget.num_blocks_low, budget.num_blocks_high],
            "max_model_len": sizing.max_model_len,
            "clock": settings.clock.kind,
            "clock_relative_error": sizing.clock.relative_error,
            "clock_note": sizing.clock.note,
        },
        "stuck": asdict(end.stuck) if end.stuck else None,
    }


def _workload_entry(traffic: Traffic) -> dict[str, Any]:
    workload = traffic.workload
    counts = workload.counts
    return {
        "source": workload.source,
        "digest": workload.digest,
        "rows": {
            "read": counts.read,
            "kept": counts.kept,
            "dropped": dict(counts.dropped),
            "reordered": counts.reordered,
        },
        "max_concurrency": traffic.max_concurrency,
        "notes": traffic.notes,
    }


def _versions() -> dict[str, str]:
    installed = {name: version(name) for name in VERSIONED}
    return {"kvsim": kvsim.__version__, "python": platform.python_version(), **installed}
