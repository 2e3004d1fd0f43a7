"""A workload's own figures: what it asks for, before any server serves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvsim.report.export_csv import csv_lines
from kvsim.report.export_parquet import table_parquet
from kvsim.report.figures.style import Figure
from kvsim.report.figures.traffic import (
    arrivals_figure,
    density_figure,
    gaps_figure,
    interval_text,
    lengths_figure,
    sessions_figure,
)
from kvsim.workload import (
    Demand,
    GeneratedWorkload,
    Intervals,
    Lengths,
    Poisson,
    RowCounts,
    Workload,
    demand_of,
    describe,
    intervals,
)

LENGTHS_RPS = 1.0
"""Rate at which lengths without arrivals are sent, where something has to be sent."""

TRAFFIC_DEFINITIONS = {
    "requests": "Rows that were kept and can be replayed; rows dropped, by reason, stand beside.",
    "span": "Seconds from the first arrival to the last.",
    "rate": "Gaps per second of the span: (requests - 1) / span.",
    "gap cv": "Standard deviation of the gaps between arrivals over their mean; 1 for Poisson.",
    "dispersion": "Variance over mean of the arrivals per window of so many seconds from the first"
    " arrival on; 1 for Poisson, more where arrivals come in bursts.",
    "prompt tokens, output tokens": "Per request; percentiles are linear between rows.",
    "tokens per second": "Prompt, or output, tokens of all requests over the span: what arrives,"
    " not what a server would compute (a prefix cache saves part of the prompts).",
    "correlation": "Pearson's, of prompt with output tokens of a request.",
    "session": "Requests of which each continues another one, as far as the source says it: by the"
    " parent it names, by a prompt that repeats an earlier answer, or by a session's id.",
    "turns": "Requests of a session; one that nobody continues and that continues nobody counts as"
    " a session of one.",
    "think time": "From a request's arrival to that of the one that continues it. A trace has no"
    " times of answers, so the time the answer took is part of it. Shorter than 0 s does not occur;"
    " requests at the same instant are left out of the curve.",
}


class Traffic(NamedTuple):
    """A workload read once."""

    source: str
    about: dict[str, Any]
    """What `describe` says of it."""
    demand: Demand
    binned: Intervals | None
    """None without arrivals at different times."""


class FigureRow(NamedTuple):
    """A number about a workload."""

    name: str
    value: float | None
    """None where it is not defined."""
    unit: str


def traffic_of(workload: Workload, *, counts: RowCounts | None = None) -> Traffic:
    """Read all requests of a workload.

    With `counts`, those of the file behind it, only its lengths mean something: see
    `with_arrivals`.
    """
    demand = demand_of(workload, timed=counts is None)
    about = describe(workload)
    if counts is not None:
        about["rows"] = counts.as_dict()
    return Traffic(workload.source, about, demand, intervals(demand))


def with_arrivals(lengths: Lengths, count: int, seed: int = 0) -> Workload:
    """A workload of lengths that have no arrivals of their own: one a second, on average."""
    return GeneratedWorkload(Poisson(LENGTHS_RPS), lengths, num_requests=count, seed=seed)


def traffic_rows(traffic: Traffic) -> list[FigureRow]:
    """The figures of `describe`, and the tokens asked for per second, with units."""
    about, timed = traffic.about, traffic.demand.arrivals_ns is not None
    span = about["span_s"]
    rows = [FigureRow("requests", about["requests"], "")]
    if timed:
        rows += [
            FigureRow("span", span, "s"),
            FigureRow("rate", about["rate_rps"], "requests/s"),
            FigureRow("gap cv", about["gap_cv"], ""),
        ]
        rows += [
            FigureRow(f"dispersion, {width} s", value, "")
            for width, value in about["dispersion"].items()
        ]
    for name in ("prompt_tokens", "output_tokens"):
        label, values = name.replace("_", " "), about[name]
        rows += [FigureRow(f"{label}, {key}", value, "tokens") for key, value in values.items()]
        if timed:
            rate = values["total"] / span if span and values["total"] else None
            rows.append(FigureRow(f"{label} per second", rate, "tokens/s"))
    rows.append(FigureRow("correlation", about["correlation"], ""))
    sessions = traffic.demand.sessions
    if sessions is not None:
        rows += [
            FigureRow("sessions", len(sessions.turns), ""),
            FigureRow("turns per session, mean", float(sessions.turns.mean()), "requests"),
            FigureRow("turns per session, max", int(sessions.turns.max()), "requests"),
        ]
        if len(sessions.think_s):
            rows.append(FigureRow("think time, mean", float(sessions.think_s.mean()), "s"))
    return rows


def traffic_figures(traffic: Traffic) -> dict[str, Figure]:
    """By name; a figure for which the source says nothing is not there."""
    demand = traffic.demand
    found: dict[str, Figure | None] = {
        "arrivals": None if traffic.binned is None else arrivals_figure(traffic.binned),
        "lengths": lengths_figure(demand) if len(demand) else None,
        "density": density_figure(demand) if len(demand) else None,
        "gaps": gaps_figure(demand),
        "sessions": None if demand.sessions is None else sessions_figure(demand.sessions),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def interval_of(traffic: Traffic) -> str:
    """The width of the intervals in which arrivals are drawn; empty without any."""
    return "" if traffic.binned is None else interval_text(traffic.binned.width_s)


def traffic_csv(traffic: Traffic) -> bytes:
    """The figures, and the arrivals per interval: UTF-8, RFC 4180, one row per number.

    `at_s` is the start of the interval, empty for a number about all requests.
    """
    return b"".join(csv_lines(("figure", "at_s", "value", "unit"), _csv_rows(traffic)))


def _csv_rows(traffic: Traffic) -> Iterator[tuple[object, ...]]:
    for row in traffic_rows(traffic):
        yield row.name, None, row.value, row.unit
    for reason, count in traffic.about["rows"]["dropped"].items():
        yield f"rows dropped: {reason}", None, count, ""
    binned = traffic.binned
    if binned is None:
        return
    columns = (
        ("requests per interval", binned.requests, "requests"),
        ("prompt tokens per interval", binned.prompt_tokens, "tokens"),
        ("output tokens per interval", binned.output_tokens, "tokens"),
    )
    for name, values, unit in columns:
        for place, value in enumerate(values.tolist()):
            yield name, binned.start_s + place * binned.width_s, value, unit


def prefix_csv(document: Mapping[str, Any]) -> bytes:
    """The rows of `prefix_document`'s capacities: UTF-8, RFC 4180; tokens, shares of 1, GiB."""
    causes = ("hit_rate", "hit_tokens", "evicted_tokens", "rejected_tokens")
    names = ("blocks", "tokens", "gib", *(f"lru_{cause}" for cause in causes), "best_hit_rate")
    rows = [
        (
            row["blocks"],
            row["tokens"],
            row["gib"],
            *(row["lru"][cause] for cause in causes),
            row["best_hit_rate"],
        )
        for row in document["capacities"]
    ]
    return b"".join(csv_lines(names, rows))


def requests_parquet(demand: Demand) -> bytes:
    """The requests as the trace format `table` reads them back.

    Columns: arrival_s (from the start; left out where there are no arrivals), prompt_tokens,
    output_tokens.
    """
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if demand.arrivals_ns is not None:
        columns["arrival_s"] = demand.arrivals_ns / 1e9
    columns |= {"prompt_tokens": demand.prompt_tokens, "output_tokens": demand.output_tokens}
    return table_parquet(pa.table(columns))
