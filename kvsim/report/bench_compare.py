"""A result of `vllm bench serve` beside what a run predicted for the same server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvsim.report.bench_result import BenchResult, unit_of
from kvsim.report.export_csv import csv_lines
from kvsim.report.export_parquet import rows_parquet

LOAD_TOLERANCE = 0.02
"""Relative difference up to which two loads are called the same."""
_MEANS = {"input": "mean prompt", "output": "mean output"}
_STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")
_METRICS = ("ttft", "tpot", "itl", "e2el")
FIGURES = (
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    *(f"{statistic}_{metric}_ms" for metric in _METRICS for statistic in _STATISTICS),
)
"""What is compared, in this order; latencies in ms."""
_NO_BOUND = ("std",)
"""Statistics that a relative error of step times says nothing about."""

COMPARED_DEFINITIONS: Mapping[str, str] = {
    "measured": "What the benchmark's file says, in the unit of the figure.",
    "simulated": "The same figure of the run's variant: of its measured time, percentiles nearest"
    " rank.",
    "difference": "Simulated less measured, in the unit of the figure.",
    "error": "Difference over measured (%). Above 0 the simulation is too high.",
    "inside": "Whether the error of the simulation is no larger than the relative error that its"
    " clock states for a step's duration (%). TPOT and ITL carry that error as it is; queueing, and"
    " with it TTFT, end-to-end latency and rates at saturation, can amplify it.",
    "ttft": "Time to first token: arrival to first token, queueing included (ms).",
    "tpot": "Time per output token: first to last token over the output tokens less one (ms).",
    "itl": "Inter-token latency: time from one token of a request to its next one (ms).",
    "e2el": "End-to-end latency: arrival to last token (ms).",
    "request_throughput": "Finished requests over the measured time (requests/s).",
    "output_throughput": "Output tokens of these requests over the measured time (tokens/s).",
    "load": f"The traffic that each side served; alike within {100 * LOAD_TOLERANCE:g} %.",
}
"""One sentence and unit for every column and figure."""


class LoadRow(NamedTuple):
    """One quantity of the traffic, on both sides."""

    name: str
    unit: str
    measured: float | None
    """None: the side does not say."""
    simulated: float | None
    same: bool | None
    """Within `LOAD_TOLERANCE`; None where a side does not say."""


class FigureRow(NamedTuple):
    """One figure, on both sides."""

    name: str
    unit: str
    measured: float
    simulated: float
    bound: float | None
    """Relative error that the run's clock states; None where it states none."""

    @property
    def difference(self) -> float:
        """Simulated less measured."""
        return self.simulated - self.measured

    @property
    def error(self) -> float | None:
        """Difference over measured; None where only the measured side is 0."""
        if self.measured == 0:
            return 0.0 if self.simulated == 0 else None
        return self.difference / self.measured

    @property
    def inside(self) -> bool | None:
        """Whether the error is within the bound; None without a bound."""
        if self.bound is None:
            return None
        return self.error is not None and abs(self.error) <= self.bound


class BenchComparison(NamedTuple):
    """A benchmark's result and a run, side by side."""

    load: tuple[LoadRow, ...]
    figures: tuple[FigureRow, ...]
    left_out: tuple[str, ...]
    """Latencies that only the benchmark has."""

    @property
    def different_loads(self) -> tuple[LoadRow, ...]:
        """Where the two sides served different traffic."""
        return tuple(row for row in self.load if row.same is False)


def compare_bench(
    measured: BenchResult, simulated: BenchResult, *, relative_error: float | None
) -> BenchComparison:
    """Both sides in the same names, the load first.

    `simulated` is a run's variant as `export_vllm_json` writes it, `relative_error` what
    its clock states for step times (a fraction; None: nothing).
    """
    shared = measured.figures.keys() & simulated.figures.keys()
    figures = tuple(
        FigureRow(
            name,
            unit_of(name),
            measured.figures[name],
            simulated.figures[name],
            None if name.startswith(_NO_BOUND) else relative_error,
        )
        for name in FIGURES
        if name in shared
    )
    alone = measured.figures.keys() - simulated.figures.keys()
    left_out = tuple(name for name in measured.figures if name in alone and unit_of(name) == "ms")
    return BenchComparison(tuple(_load(measured, simulated)), figures, left_out)


def _load(measured: BenchResult, simulated: BenchResult) -> Iterator[LoadRow]:
    sides = (measured, simulated)
    for kind, name in _MEANS.items():
        yield _load_row(f"{name} length", "tokens", *(_mean(one, kind) for one in sides))
    rates = tuple(one.figures.get("request_rate") for one in sides)
    row = _load_row("request rate", "requests/s", *rates)
    if measured.at_once != simulated.at_once:
        # All at once is no rate; a side that names none is not known to differ.
        other = simulated if measured.at_once else measured
        row = row._replace(same=False if "request_rate" in other.figures else None)
    yield row
    for key, name in (
        ("completed", "finished requests"),
        ("failed", "failed requests"),
        ("max_concurrency", "max. concurrency"),
    ):
        yield _load_row(name, "requests", *(one.figures.get(key) for one in sides))


def _mean(side: BenchResult, kind: str) -> float | None:
    completed = side.figures["completed"]
    return side.figures[f"total_{kind}_tokens"] / completed if completed else None


def _load_row(name: str, unit: str, measured: float | None, simulated: float | None) -> LoadRow:
    same = None
    if measured is not None and simulated is not None:
        most = max(measured, simulated)
        same = abs(measured - simulated) <= LOAD_TOLERANCE * most
    return LoadRow(name, unit, measured, simulated, same)


def load_sentence(found: BenchComparison) -> str:
    """Whether both sides served the same traffic, in words."""
    different = found.different_loads
    if different:
        said = "; ".join(
            f"{row.name} {_number(row.measured)} measured, {_number(row.simulated)} simulated"
            f" ({row.unit})"
            for row in different
        )
        return f"Different loads are compared: {said}. The figures below differ for this reason too"
    unknown = [row.name for row in found.load if row.same is None]
    text = f"The loads are the same within {100 * LOAD_TOLERANCE:g} %"
    return f"{text}; not known: {', '.join(unknown)}" if unknown else text


def _number(value: float | None) -> str:
    return "at once" if value is None else f"{value:,.5g}"


def bench_document(found: BenchComparison) -> dict[str, Any]:
    """The comparison as plain data; errors and bounds are fractions."""
    return {
        "load": [row._asdict() for row in found.load],
        "same_load": not found.different_loads,
        "figures": [
            {
                **row._asdict(),
                "difference": row.difference,
                "error": row.error,
                "inside": row.inside,
            }
            for row in found.figures
        ],
        "left_out": list(found.left_out),
    }


def bench_csv(found: BenchComparison) -> str:
    """The comparison as CSV: a line for each quantity of the load, then for each figure."""
    names = ("part", "name", "unit", "measured", "simulated", "difference", "error", "bound")
    return b"".join(csv_lines((*names, "inside"), _rows(found))).decode("utf-8")


def bench_parquet(found: BenchComparison) -> bytes:
    """The rows of `bench_csv` as a Parquet file."""
    texts = dict.fromkeys(("part", "name", "unit"), "string")
    numbers = ("measured", "simulated", "difference", "error", "bound")
    columns = {**texts, **dict.fromkeys(numbers, "float64"), "inside": "bool"}
    return rows_parquet(columns, _rows(found))


def _rows(found: BenchComparison) -> Iterator[tuple[object, ...]]:
    for one in found.load:
        sides = (one.measured, one.simulated)
        yield "load", one.name, one.unit, *sides, "", "", LOAD_TOLERANCE, one.same
    for row in found.figures:
        numbers = (row.measured, row.simulated, row.difference, row.error, row.bound)
        yield "figure", row.name, row.unit, *numbers, row.inside
