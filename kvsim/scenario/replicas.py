"""Every variant of a scenario under one seed, on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from kvsim.core.protocols import Recorder
from kvsim.core.request import Request
from kvsim.cost import PredictiveClock
from kvsim.errors import InputError
from kvsim.results import (
    RequestsRecorder,
    SeriesRecorder,
    Slo,
    SnapshotRecorder,
    StepsRecorder,
    SummaryRecorder,
    Tee,
)
from kvsim.results.merge import SeedOutcome
from kvsim.scenario.build import Server, build_server
from kvsim.scenario.build_workload import Traffic, build_workload
from kvsim.scenario.sampling import branching_of
from kvsim.scenario.sections import extras
from kvsim.scenario.seeds import SeedRun
from kvsim.scenario.settings import MeasureSettings, Scenario, SloSettings
from kvsim.scenario.variants import variants
from kvsim.scenario.watcher import SilentWatcher, Watcher
from kvsim.sim import RunEnd, run_replica
from kvsim.workload import check_blocks_fit_chunks

NS_PER_S = 1_000_000_000
END_OF_TIME_NS = 2**63 - 1


ClockMaker = Callable[[Scenario, Server], PredictiveClock]
"""The clock of one variant on its server, instead of the scenario's."""


class Job(NamedTuple):
    """What a run under one seed needs. Can be pickled if `make_clock` can."""

    scenario: Scenario
    seed: int
    strict_traces: bool
    rows: bool
    """Whether rows are recorded for a run folder, as `record.mode` says."""
    make_clock: ClockMaker | None = None
    """None: the scenario's clock."""
    max_steps: int | None = None
    """Most rows of a variant's steps; beyond, `InputError`. None: as many as there are."""

    def traffic(self) -> Traffic:
        """The requests, the same for every variant. Raises as `build_workload` does."""
        return build_workload(
            self.scenario.workload, seed=self.seed, strict_traces=self.strict_traces
        )

    def server(self, settings: Scenario, requests: Iterable[Request]) -> Server:
        """One variant's server, with the clock of this job."""
        server = build_server(settings, seed=self.seed, requests=requests)
        if self.make_clock is None:
            return server
        clock = self.make_clock(settings, server)
        return replace(server, sizing=replace(server.sizing, clock=clock))


class Finished(NamedTuple):
    """One variant whose run has ended."""

    name: str
    server: Server
    outcome: SeedOutcome
    files: dict[str, Any]
    """What `RunFolder.write_variant` takes, by its keywords."""


def finished_variants(job: Job, traffic: Traffic, watcher: Watcher) -> Iterator[Finished]:
    """Run the variants one after the other, in the scenario's order.

    Raises `InputError` for blocks that do not fit the chunks in which the traffic says what
    prompts share, before the first of them runs.
    """
    named = variants(job.scenario)
    for name, settings in named.items():
        _check_chunks(name, settings, traffic)
    for name, settings in named.items():
        watcher.start(name, traffic.workload.counts.kept)
        server = job.server(settings, traffic.workload)
        recorders = _Recorders(settings, server, rows=job.rows, max_steps=job.max_steps)
        end = run_replica(
            map(branching_of(settings), traffic.workload),
            server.scheduler,
            server.sizing.clock,
            recorders.all,
            max_concurrency=traffic.max_concurrency,
            progress=watcher.advance,
        )
        server.allocator.check_integrity(server.scheduler.running())
        entry = _entry(settings, server, recorders, end)
        if job.make_clock:
            entry["setup"]["clock"] = "device"
        outcome = SeedOutcome(job.seed, entry, recorders.summary.histograms())
        yield Finished(name, server, outcome, recorders.columns())


def _check_chunks(name: str, settings: Scenario, traffic: Traffic) -> None:
    memory = settings.memory
    if memory.kind != "paged" or not settings.engine.enable_prefix_caching:
        return
    try:
        check_blocks_fit_chunks(memory.block_size, traffic.workload.chunk_tokens)
    except InputError as error:
        raise InputError(
            f"{name}: memory.block_size {error.problem}, while prefixes are cached",
            where="memory.block_size",
            fix=f"{error.fix}, or set engine.enable_prefix_caching to false",
        ) from None


def run_seed(job: Job) -> SeedRun:
    """Run all variants of a job; what a worker process does."""
    traffic = job.traffic()
    done = list(finished_variants(job, traffic, SilentWatcher()))
    return SeedRun(
        job.seed,
        workload_entry(traffic),
        traffic.content_sha256,
        {variant.name: variant.outcome for variant in done},
        {variant.name: variant.files for variant in done if job.rows},
    )


class _Recorders:
    """What is recorded of one variant: the summary always, rows and maps for a run folder."""

    def __init__(
        self, settings: Scenario, server: Server, *, rows: bool, max_steps: int | None
    ) -> None:
        allocator = server.allocator
        window = _window(settings.measure)
        self.summary = SummaryRecorder(
            allocator,
            window=window,
            slo=_slo(settings.slo),
            frontend_ns=round(settings.frontend_s * NS_PER_S),
            max_num_seqs=settings.engine.max_num_seqs,
            max_num_batched_tokens=settings.engine.max_num_batched_tokens,
        )
        self._steps: StepsRecorder | SeriesRecorder | None = None
        self._requests: RequestsRecorder | None = None
        self._snapshots: SnapshotRecorder | None = None
        self.extras = extras(settings, server, window)
        watching = (extra.recorder for extra in self.extras)
        always = [self.summary, *(recorder for recorder in watching if recorder is not None)]
        self.all: Recorder = Tee(*always) if len(always) > 1 else self.summary
        if not rows or settings.record.mode == "summary":
            return
        if settings.record.mode == "steps":
            self._steps = StepsRecorder(allocator, max_rows=max_steps)
        else:
            interval_ns = round(settings.record.interval_s * NS_PER_S)
            self._steps = SeriesRecorder(allocator, interval_ns=interval_ns)
        self._requests = RequestsRecorder()
        self._snapshots = SnapshotRecorder(allocator, server.scheduler.running)
        self.all = Tee(*always, self._steps, self._requests, self._snapshots)

    def columns(self) -> dict[str, Any]:
        """What `RunFolder.write_variant` takes, by its keywords."""
        return {
            "steps": self._steps.columns() if self._steps else None,
            "requests": self._requests.columns() if self._requests else None,
            "snapshots": self._snapshots.snapshots() if self._snapshots else None,
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
    settings: Scenario, server: Server, recorders: _Recorders, end: RunEnd
) -> dict[str, Any]:
    sizing = server.sizing
    budget = sizing.budget
    return {
        **recorders.summary.summary(),
        "setup": {
            "model": sizing.model_name,
            "gpu": sizing.gpu_name,
            "gpu_count": settings.hardware.count if settings.hardware else None,
            "kv_cache_dtype": settings.engine.kv_cache_dtype,
            "scheduler": settings.engine.scheduler,
            "max_num_seqs": settings.engine.max_num_seqs,
            "max_num_batched_tokens": settings.engine.max_num_batched_tokens,
            "memory": settings.memory.kind,
            "block_size": sizing.block_size,
            "num_blocks": sizing.num_blocks,
            "num_blocks_80_percent": budget and [budget.num_blocks_low, budget.num_blocks_high],
            "max_model_len": sizing.max_model_len,
            "clock": settings.clock.kind,
            "clock_relative_error": sizing.clock.relative_error,
            "clock_note": sizing.clock.note,
            "notes": list(server.notes),
        },
        "stuck": asdict(end.stuck) if end.stuck else None,
        **{extra.name: extra.counts() for extra in recorders.extras},
    }


def workload_entry(traffic: Traffic) -> dict[str, Any]:
    """`workload` of the summary of one seed."""
    workload = traffic.workload
    return {
        "source": workload.source,
        "digest": workload.digest,
        "rows": workload.counts.as_dict(),
        "max_concurrency": traffic.max_concurrency,
        "notes": traffic.notes,
    }
