"""Every reproduction, by name, and the runs behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from math import nan
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.papers.claims import CLAIMS_FIGURE
from kvsim.papers.fig2 import FIGURE2, FIGURE13A
from kvsim.papers.fig12 import FIGURE12_13B, FIGURE12_66B
from kvsim.papers.fig15 import FIGURE15
from kvsim.papers.fig16 import FIGURE16
from kvsim.papers.fig18b import FIGURE18B
from kvsim.papers.fig19 import FIGURE19
from kvsim.papers.orca import ORCA
from kvsim.papers.rules import RULES
from kvsim.papers.runs import TRACE
from kvsim.papers.table1 import TABLE1
from kvsim.papers.target import Figure, FigureResult, Job, LengthSource, NoResultError, Result
from kvsim.scenario.pool import cpu_count, run_jobs
from kvsim.workload import find_trace

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        TABLE1,
        RULES,
        FIGURE2,
        FIGURE12_13B,
        FIGURE12_66B,
        FIGURE13A,
        FIGURE15,
        FIGURE16,
        FIGURE18B,
        FIGURE19,
        ORCA,
        CLAIMS_FIGURE,
    )
}


def get_figure(name: str) -> Figure:
    """Raises `InputError` with the known names."""
    if name not in FIGURES:
        raise InputError(
            f"{name!r} is no reproduction", where="NAME", fix=f"Use one of: {', '.join(FIGURES)}"
        )
    return FIGURES[name]


def available_lengths() -> LengthSource:
    """`real` where the published list of lengths is in $KVSIM_TRACES, else `preset`."""
    return "preset" if find_trace(TRACE) is None else "real"


def reproduce(
    figures: Iterable[Figure],
    *,
    lengths: LengthSource,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[FigureResult]:
    """Run every part of every figure under every seed, and compare.

    `workers` processes, left out as many as there are CPUs; 1 stays in this process. `progress`
    is told how many jobs have ended, and of how many. Raises `InputError` where `lengths` is
    `real` and the list is not there.
    """
    figures = list(figures)
    jobs = [
        Job(figure.name, part, seed, lengths)
        for figure in figures
        for part in figure.parts
        for seed in figure.seeds
    ]
    workers = cpu_count() if workers is None else workers
    found: dict[Job, Measured] = {}
    with closing(run_jobs(measured, jobs, workers=min(workers, len(jobs)))) as ended:
        for done in ended:
            found[done.job] = done
            if progress is not None:
                progress(len(found), len(jobs))
    return [
        _compared(figure, [found[job] for job in jobs if job.figure == figure.name], lengths)
        for figure in figures
    ]


class Measured(NamedTuple):
    """A job's values, or why it has none."""

    job: Job
    values: dict[str, float]
    problem: str | None = None


def measured(job: Job) -> Measured:
    """What a worker process does."""
    try:
        return Measured(job, FIGURES[job.figure].measure(job))
    except NoResultError as error:
        part = "" if job.part == "all" else f", {job.part}"
        return Measured(job, {}, f"seed {job.seed}{part}: {error}")


def _compared(figure: Figure, done: list[Measured], lengths: LengthSource) -> FigureResult:
    by_seed = []
    for seed in figure.seeds:
        parts = [part for part in done if part.job.seed == seed]
        values = {key: value for part in parts for key, value in part.values.items()}
        by_seed.append({} if any(part.problem for part in parts) else figure.derive(values))
    results = tuple(
        Result(target, tuple(values.get(target.key, nan) for values in by_seed), lengths)
        for target in figure.targets
    )
    problems = tuple(part.problem for part in done if part.problem is not None)
    return FigureResult(figure, lengths, results, problems)
