"""The result JSON of `vllm bench serve`, so that its plots and tables read a simulated run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.report.export_metrics import request_figures, unrecorded_gaps
from kvsim.report.export_settings import settings_of
from kvsim.report.export_source import (
    NS_PER_S,
    Export,
    Ints,
    Source,
    column,
    every_step,
    nanoseconds,
    request_times,
    sources,
    unrecorded,
)
from kvsim.report.text import figure
from kvsim.results.read_run import Run
from kvsim.scenario import Scenario

_LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
_LOST = ("rejected", "aborted", "unfinished")
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}


def vllm_json_export(run: Run, variants: Sequence[str]) -> Export:
    """One object per variant and seed, each on a line, as `--append-result` writes several."""
    lines = (json.dumps(one) + "\n" for one in vllm_results(run, variants))
    notes = unrecorded(run, variants, "standard deviations and per-request arrays")
    return Export([("", (line.encode() for line in lines))], notes)


def vllm_results(
    run: Run, variants: Sequence[str], *, detailed: bool = True
) -> Iterator[dict[str, Any]]:
    """The results of the variants and seeds; `detailed` with the arrays of single requests."""
    settings = settings_of(run, variants)
    facts = {
        "date": _date(run.created_at),
        "kvsim_version": run.summary["kvsim_version"],
        "kvsim_scenario": run.summary["scenario"],
        "max_concurrency": run.summary["workload"].get("max_concurrency"),
    }
    for source in sources(run, variants):
        yield result(source, settings[source.variant], facts, detailed=detailed)


def result(
    source: Source, settings: Scenario, facts: Mapping[str, Any], *, detailed: bool = True
) -> dict[str, Any]:
    """The fields of vLLM's serve.py @009e6d4a that a simulation has, in its order.

    Figures are those of the summary: of its measured time, percentiles nearest-rank. Standard
    deviations and the arrays of `--save-detailed` come from the rows; `itls` and `generated_texts`
    are recorded nowhere and left out. `failed` and the arrays cover the whole run.
    """
    frontend_ns = round(settings.frontend_s * NS_PER_S)
    has_rows = source.requests is not None
    identity = {
        "date": facts["date"],
        "endpoint_type": "kvsim",
        "backend": "kvsim",
        "label": source.label,
        "model_id": settings.model,
        "tokenizer_id": settings.model,
        "num_prompts": figure(source.entry, "requests.submitted"),
        **{name: value for name, value in facts.items() if name.startswith("kvsim_")},
        "kvsim_variant": source.variant,
        "kvsim_seed": source.seed,
    }
    return {
        **{name: value for name, value in identity.items() if value is not None},
        **(_offered(source) if has_rows else {}),
        "max_concurrency": facts["max_concurrency"],
        **_totals(source.entry),
        **(_detailed(source, frontend_ns) if has_rows and detailed else {}),
        "rtfx": 0.0,
        **_latencies(source, frontend_ns),
    }


def _totals(entry: Mapping[str, Any]) -> dict[str, float | None]:
    paths = {
        "duration": "measured.duration_s",
        "completed": "measured.finished",
        "total_input_tokens": "measured.prompt_tokens",
        "total_output_tokens": "measured.output_tokens",
        "request_throughput": "throughput.requests_per_s",
        "request_goodput": "throughput.goodput_rps",
        "output_throughput": "throughput.output_tokens_per_s",
        "total_token_throughput": "throughput.total_tokens_per_s",
    }
    lost = [figure(entry, f"requests.{name}") or 0 for name in _LOST]
    return {**{name: figure(entry, path) for name, path in paths.items()}, "failed": sum(lost)}


def _date(created_at: str | None) -> str | None:
    return created_at and f"{datetime.fromisoformat(created_at):%Y%m%d-%H%M%S}"


def _offered(source: Source) -> dict[str, Any]:
    """The traffic as vLLM's flags would name it: mean rate and the shape of a gamma law.

    `burstiness` is 1 / CV^2 of the gaps between arrivals, 1 for a Poisson process.
    """
    arrivals = np.sort(column(source.requests, "arrival_s"))
    gaps = np.diff(arrivals)
    if not len(gaps) or arrivals[-1] == arrivals[0]:
        return {"request_rate": "inf", "burstiness": 1.0}
    deviation = float(np.std(gaps))
    burstiness = (float(np.mean(gaps)) / deviation) ** 2 if deviation else None
    return {
        "request_rate": len(gaps) / float(arrivals[-1] - arrivals[0]),
        "burstiness": burstiness,
    }


def _latencies(source: Source, frontend_ns: int) -> dict[str, float | None]:
    deviations = {}
    if source.requests is not None:
        figures = request_figures(source, frontend_ns, _measured(source))
        for name, values in (("ttft", figures.ttft), ("tpot", figures.tpot), ("e2el", figures.e2e)):
            deviations[name] = float(np.std(values)) / 1e6 if len(values) else None
    row: dict[str, float | None] = {}
    for name, metric in _LATENCIES.items():
        for statistic, key in _STATISTICS.items():
            value = figure(source.entry, f"{metric}.{key}")
            row[f"{statistic}_{name}_ms"] = None if value is None else value * 1000
            if statistic == "median" and name in deviations:
                row[f"std_{name}_ms"] = deviations[name]
    return row


def _measured(source: Source) -> npt.NDArray[np.bool_] | None:
    """Which requests arrive in the measured time; None when that is the whole run."""
    start, end = figure(source.entry, "measured.from_s"), figure(source.entry, "measured.to_s")
    whole = figure(source.entry, "duration_s")
    if start is None or end is None or (start == 0 and end == whole):
        return None
    arrivals = column(source.requests, "arrival_s")
    inside: npt.NDArray[np.bool_] = (arrivals >= start) & (arrivals < end)
    return inside


def _detailed(source: Source, frontend_ns: int) -> dict[str, Any]:
    order = np.argsort(column(source.requests, "arrival_s"), kind="stable")
    table = source.requests.take(order)
    times = request_times(table)
    outcomes, reasons = (table.column(name).to_pylist() for name in ("outcome", "reason"))
    done = np.array([outcome == "finished" for outcome in outcomes], dtype=bool)
    ttfts = np.where(done, times.first_token - times.arrived + frontend_ns, 0) / NS_PER_S
    latencies = np.where(done, times.finished - times.arrived + frontend_ns, 0) / NS_PER_S
    return {
        "input_lens": table.column("prompt_tokens").to_pylist(),
        "output_lens": np.where(done, column(table, "output_tokens"), 0).tolist(),
        "ttfts": ttfts.tolist(),
        "latencies": latencies.tolist(),
        "start_times": table.column("arrival_s").to_pylist(),
        "errors": list(_errors(outcomes, reasons)),
        **_peaks(source, times.arrived[done], times.finished[done] + frontend_ns),
    }


def _errors(outcomes: Sequence[str], reasons: Sequence[str | None]) -> Iterator[str]:
    for outcome, reason in zip(outcomes, reasons, strict=True):
        if outcome == "finished":
            yield ""
        else:
            yield f"{outcome}: {reason}" if reason else outcome


def _peaks(source: Source, starts: Ints, ends: Ints) -> dict[str, float | int]:
    """Tokens in the busiest second and most requests at once, both of the finished requests.

    The tokens need the time of every token: they are left out where the rows lack one.
    """
    if not len(starts):
        return {}
    # An end at the time of a start comes first: intervals are half-open.
    times = np.concatenate([ends, starts])
    deltas = np.repeat([-1, 1], [len(ends), len(starts)])
    peaks: dict[str, float | int] = {
        "max_concurrent_requests": int(np.cumsum(deltas[np.argsort(times, kind="stable")]).max())
    }
    unfinished = len(starts) < source.requests.num_rows - _rejected(source)
    if not every_step(source.steps) or unfinished or unrecorded_gaps(source) != 0:
        return peaks
    firsts = request_times(source.requests).first_token
    steps = source.steps
    step_ends = nanoseconds(column(steps, "time_s")) + nanoseconds(column(steps, "duration_s"))
    moments = np.concatenate([firsts[firsts >= 0], step_ends])
    weights = np.concatenate([np.ones((firsts >= 0).sum()), column(steps, "decode_tokens")])
    seconds = np.maximum(moments - starts.min(), 0) // NS_PER_S
    _, places = np.unique(seconds, return_inverse=True)
    tokens = float(np.bincount(places, weights=weights).max())
    return {"max_output_tokens_per_s": tokens, **peaks}


def _rejected(source: Source) -> int:
    return int(figure(source.entry, "requests.rejected") or 0)
