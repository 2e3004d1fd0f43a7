"""Runs every variant of a scenario on the same traffic and gathers `summary.json`."""

from __future__ import annotations

import platform
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import kvsim
from kvsim.results import RunFolder
from kvsim.scenario.build import Server
from kvsim.scenario.lengths import PairFileSettings
from kvsim.scenario.loader import resolved
from kvsim.scenario.pool import cpu_count, run_jobs
from kvsim.scenario.proven import variant_notes
from kvsim.scenario.replicas import ClockMaker, Job, finished_variants, run_seed, workload_entry
from kvsim.scenario.seeds import SeedRun, merged_variants, merged_workload
from kvsim.scenario.settings import Scenario
from kvsim.scenario.traffic import FileWorkload, LawWorkload, WorkloadSettings
from kvsim.scenario.variants import variants
from kvsim.scenario.watcher import SilentWatcher, Watcher

VERSIONED = ("numpy", "pyarrow", "pydantic", "ruamel.yaml", "simpy")
"""Distributions whose version may decide a byte of the results."""


class RunResult(NamedTuple):
    """A finished run."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    servers: dict[str, Server]
    """By variant, as they were built; their memory is empty or left as the run ended."""
    content_sha256: str | None
    """Digest of the file of the user's own that the requests came from."""
    traffic: WorkloadSettings
    """What the requests came from: without a fallback, the preset where it was used."""


def run_scenario(
    scenario: Scenario,
    *,
    out: Path | None = None,
    strict_traces: bool = False,
    watcher: Watcher | None = None,
    workers: int | None = None,
    make_clock: ClockMaker | None = None,
    max_steps: int | None = None,
) -> RunResult:
    """Run all variants; with `out`, write the run folder, complete or not at all.

    `make_clock` replaces the scenario's clock, for example by a device that runs the steps;
    everything then stays in this process.

    Several seeds run in at most `workers` processes, left out as many as there are CPUs; their
    number changes no byte of the results, and 1 stays in this process. A script that may start
    processes must guard what it runs with `if __name__ == "__main__":`.

    Raises `InputError` for a trace that is missing or bad, for an `out` that exists, and about
    `record.mode` where rows of more than `max_steps` steps of a variant would be kept.
    """
    watcher = watcher or SilentWatcher()
    workers = cpu_count() if workers is None else workers
    workers = 1 if make_clock else workers
    job = Job(scenario, scenario.seeds[0], strict_traces, out is not None, make_clock, max_steps)
    if out is None:
        return _run(job, None, watcher, workers)
    with RunFolder(out) as folder:
        result = _run(job, folder, watcher, workers)
        folder.commit(
            scenario_text=resolved(as_used(scenario, result)),
            summary=result.summary,
            versions=_versions(),
            seeds=scenario.seeds,
            trace_digest=result.summary["workload"]["digest"],
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    return result


def _run(job: Job, folder: RunFolder | None, watcher: Watcher, workers: int) -> RunResult:
    traffic = job.traffic()
    scenario = job.scenario
    for note in [*traffic.notes, *variant_notes(variants(scenario))]:
        watcher.note(note)
    head: dict[str, Any] = {"scenario": scenario.name, "kvsim_version": kvsim.__version__}
    if len(scenario.seeds) > 1:
        servers = {name: job.server(settings, ()) for name, settings in variants(scenario).items()}
        requests = traffic.workload.counts.kept * len(servers) * len(scenario.seeds)
        watcher.start(f"{len(scenario.seeds)} seeds", requests)
        runs = _run_seeds(job, folder, watcher, workers)
        workload = merged_workload(traffic.settings, runs)
        for note in workload["notes"][len(traffic.notes) :]:
            watcher.note(note)
        rest = {"seeds": scenario.seeds, "workload": workload, "variants": merged_variants(runs)}
        return RunResult({**head, **rest}, servers, traffic.content_sha256, traffic.settings)
    entries, servers = {}, {}
    for done in finished_variants(job, traffic, watcher):
        if folder is not None:
            folder.write_variant(done.name, **done.files)
        entries[done.name], servers[done.name] = done.outcome.entry, done.server
    summary = {**head, "workload": workload_entry(traffic), "variants": entries}
    return RunResult(summary, servers, traffic.content_sha256, traffic.settings)


def _run_seeds(job: Job, folder: RunFolder | None, watcher: Watcher, workers: int) -> list[SeedRun]:
    """In the order of the seeds; rows are written as they come."""
    seeds = job.scenario.seeds
    runs: dict[int, SeedRun] = {}
    jobs = [job._replace(seed=seed) for seed in seeds]
    with closing(run_jobs(run_seed, jobs, workers=min(workers, len(jobs)))) as ended:
        for run in ended:
            if folder is not None:
                for name, files in run.files.items():
                    folder.write_variant(name, seed=run.seed, **files)
            runs[run.seed] = run._replace(files={})
            watcher.advance(run.requests)
    return [runs[seed] for seed in seeds]


def as_used(scenario: Scenario, result: RunResult) -> Scenario:
    """The scenario with the traffic that was used, and the digest of the file it names.

    It runs from any folder, and gives the same results where the trace is there and where not.
    """
    workload = result.traffic
    digest = {"sha256": result.content_sha256}
    if isinstance(workload, FileWorkload):
        workload = workload.model_copy(update=digest)
    elif isinstance(workload, LawWorkload) and isinstance(workload.lengths, PairFileSettings):
        lengths = workload.lengths.model_copy(update=digest)
        workload = workload.model_copy(update={"lengths": lengths})
    return scenario.model_copy(update={"workload": workload})


def _versions() -> dict[str, str]:
    installed = {name: version(name) for name in VERSIONED}
    return {"kvsim": kvsim.__version__, "python": platform.python_version(), **installed}
