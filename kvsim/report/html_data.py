"""Everything a report shows of a run folder, gathered variant by variant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.report.binned import Binned, binned
from kvsim.report.block_sizes import BlockSizeCurve, block_size_curve
from kvsim.report.bounds import Bound, bound
from kvsim.report.compute_limit import ComputeLimit, Mix, compute_limit, traffic_mix, unknown_limit
from kvsim.report.figures.style import names_once
from kvsim.report.quantiles import Distribution, distribution, latencies, pooled
from kvsim.report.text import figure, plain
from kvsim.report.variant_memory import read_scenario
from kvsim.results.read_run import Replica, Run, read_run
from kvsim.results.read_snapshots import read_snapshots
from kvsim.scenario import Scenario
from kvsim.scenario.sizing import size_server
from kvsim.scenario.variants import variants

MAX_DRAWN = 12
"""Variants in the charts; all are in the tables."""
_LABEL = 40
_UNREADABLE = "this version of kvsim cannot read the run's scenario"


class VariantData(NamedTuple):
    """One variant."""

    label: str
    entry: Mapping[str, Any]
    """Its entry of the summary."""
    bound: Bound
    limit: ComputeLimit
    series: Binned | None
    """Of the first seed; None where no rows were kept or the variant is not drawn."""
    distributions: Mapping[str, Distribution | None]
    """Over the requests of all seeds, by latency; empty where no rows were kept."""
    snapshots: Mapping[str, Any] | None
    """Of the first seed."""

    @property
    def limit_text(self) -> str:
        """The compute limit as a table shows it."""
        if self.limit.batch is None:
            return "no limit" if self.limit.why.startswith("none") else "-"
        text = f"{self.limit.batch:,}"
        if self.limit.low is None:
            return text
        high = "no limit" if self.limit.high is None else f"{self.limit.high:,}"
        return f"{text} ({self.limit.low:,} to {high})"


class ReportData(NamedTuple):
    """A run."""

    run: Run
    scenario: Scenario | None
    """None where it cannot be read any more."""
    variants: list[VariantData]
    curve: BlockSizeCurve | None
    mode: str
    """`record.mode` of the run: steps, series or summary."""


class _Rows(NamedTuple):
    """What one variant's rows give, all seeds together."""

    series: Binned | None
    distributions: Mapping[str, Distribution | None]
    bound: Bound
    mix: Mix | None
    curve: BlockSizeCurve | None
    snapshots: Mapping[str, Any] | None


def read_report_data(run_dir: Path) -> ReportData:
    """Read and reduce a run folder; one variant's rows are in memory at a time.

    Raises `InputError` as `read_run` does. A scenario that cannot be read costs the compute limits
    and the names of the limits only.
    """
    run = read_run(run_dir)
    scenario = read_scenario(run)
    settings = variants(scenario) if scenario else {}
    mode = scenario.record.mode if scenario else "steps"
    labels = names_once([plain(name, _LABEL) for name in run.folders])
    found, curve = [], None
    for index, (name, label) in enumerate(zip(run.folders, labels, strict=True)):
        entry = run.summary["variants"][name]
        own = settings.get(name)
        rows = _rows(run, name, own, mode=mode, drawn=index < MAX_DRAWN)
        limit = _limit(own, rows.mix)
        curve = curve or rows.curve
        found.append(
            VariantData(
                label, entry, rows.bound, limit, rows.series, rows.distributions, rows.snapshots
            )
        )
    return ReportData(run, scenario, found, curve, mode)


def _limit(settings: Scenario | None, mix: Mix | None) -> ComputeLimit:
    if settings is None:
        return unknown_limit(_UNREADABLE)
    if mix is None:
        return unknown_limit("no row says how many tokens a decode reads")
    clock = size_server(settings).clock
    return compute_limit(settings, clock, clock.relative_error, mix)


def _rows(run: Run, name: str, settings: Scenario | None, *, mode: str, drawn: bool) -> _Rows:
    entry = run.summary["variants"][name]
    replicas = run.replicas(name)
    steps = replicas[0].steps
    capacity = figure(entry, "memory.capacity_slots") or 0
    series = None
    if drawn and steps is not None and capacity:
        series = binned(steps, capacity_slots=round(capacity), idle_between=mode == "steps")
    prompts, outputs = _lengths(replicas[0])
    return _Rows(
        series,
        _distributions(replicas, settings, entry) if drawn else {},
        bound(entry),
        traffic_mix(prompts, outputs),
        block_size_curve(prompts, outputs),
        read_snapshots(replicas[0].folder) if drawn else None,
    )


def _lengths(replica: Replica) -> tuple[Any, Any]:
    """Prompt and output tokens of the requests that finished."""
    if replica.requests is None:
        return [], []
    import pyarrow.compute as pc

    finished = replica.requests.filter(pc.equal(replica.requests.column("outcome"), "finished"))
    columns = (finished.column(name).to_numpy() for name in ("prompt_tokens", "output_tokens"))
    prompts, outputs = columns
    return prompts, outputs


def _distributions(
    replicas: tuple[Replica, ...], settings: Scenario | None, entry: Mapping[str, Any]
) -> dict[str, Distribution | None]:
    """Of the requests that arrive in the measured window, as the summary counts them."""
    tables = [replica.requests for replica in replicas if replica.requests is not None]
    if not tables:
        return {}
    window = None
    if settings and (settings.measure.from_s or settings.measure.to_s is not None):
        end_s = settings.measure.to_s
        window = (settings.measure.from_s, float("inf") if end_s is None else end_s)
    frontend_s = settings.frontend_s if settings else 0.0
    parts = [latencies(table, frontend_s=frontend_s, window_s=window) for table in tables]
    return {name: distribution(values) for name, values in pooled(parts).items()}
