"""The texts around tables and figures of a run: for the page and for whoever shows its parts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsim.report.block_sizes import MAX_BLOCK_SIZE
from kvsim.report.bounds import CAPACITY_NOT_BANDWIDTH, MEANINGS
from kvsim.report.headline import headline
from kvsim.report.html_data import MAX_DRAWN, ReportData, VariantData
from kvsim.report.html_figures import measured_tails
from kvsim.report.html_tables import (
    MAX_VARIANTS,
    all_definitions,
    bound_tables,
    fragmentation_tables,
    serving_tables,
    whole_run_tables,
)
from kvsim.report.remarks import remarks
from kvsim.report.text import plain
from kvsim.results.read_run import Run

_MAX_SCENARIO = 60_000


class Again(NamedTuple):
    """How a run is made again, in a reader's words."""

    command: str
    scenario_text: str
    """Of the scenario that the command names."""

    @classmethod
    def here(cls, run: Run) -> Again:
        """From the run folder, where it is."""
        command = shlex.join(["kvsim", "run", str(run.path / "scenario.yaml")])
        return cls(command, run.scenario_text)


def head(data: ReportData, again: Again | None = None) -> dict[str, Any]:
    """Title, headline, warnings and the scenario's text, by the names the template uses.

    Left out, the run is made again from its folder.
    """
    summary, scenario = data.run.summary, data.scenario
    workload = summary["workload"] if isinstance(summary["workload"], Mapping) else {}
    rows = workload.get("rows")
    kept = rows.get("kept") if isinstance(rows, Mapping) else None
    command, text = again or Again.here(data.run)
    if len(text) > _MAX_SCENARIO:
        text = text[:_MAX_SCENARIO] + f"\n… ({len(text):,} characters in scenario.yaml)"
    return {
        "scenario": plain(summary["scenario"], 100),
        "description": plain(scenario.description, 500) if scenario else "",
        "requests": f"{kept:,} requests" if isinstance(kept, int) else "Requests",
        "source": plain(workload.get("source", "an unknown workload"), 200),
        "seeds": len(data.run.seeds),
        "version": plain(summary["kvsim_version"], 40),
        "sentence": headline(data.variants),
        "warnings": _warnings(data, workload),
        "scenario_text": text,
        "command": command,
        "needs_traces": scenario is not None and scenario.workload.named_trace is not None,
        "window": scenario is not None
        and (scenario.measure.from_s > 0 or scenario.measure.to_s is not None),
    }


def _warnings(data: ReportData, workload: Mapping[str, Any]) -> list[str]:
    said = workload.get("notes")
    found = [plain(note, 300) for note in said[:20]] if isinstance(said, list) else []
    if data.scenario is None:
        found.append("This version of kvsim cannot read scenario.yaml: limits are unknown.")
    found += _endings(data.variants[:MAX_VARIANTS])
    count = len(data.variants)
    if count > MAX_DRAWN:
        found.append(f"The charts show the first {MAX_DRAWN} of {count} variants.")
    if count > MAX_VARIANTS:
        found.append(f"The tables show the first {MAX_VARIANTS} of {count} variants.")
    return found


def _endings(variants: list[VariantData]) -> list[str]:
    """What went wrong with runs and requests; what is the same in every variant is said once."""
    who: dict[str, list[str]] = {}
    for one in variants:
        stuck, requests = one.entry.get("stuck"), one.entry.get("requests")
        if isinstance(stuck, Mapping):
            text = f"the run could not advance any more: {plain(stuck.get('reason', ''), 200)}"
            who.setdefault(text, []).append(one.label)
        reasons = requests.get("rejected_by_reason") if isinstance(requests, Mapping) else None
        for reason, count in list(reasons.items())[:5] if isinstance(reasons, Mapping) else ():
            text = f"rejected {plain(count, 20)}: {plain(reason, 120)}"
            who.setdefault(text, []).append(one.label)
        setup = one.entry.get("setup")
        said = setup.get("notes") if isinstance(setup, Mapping) else None
        for note in said[:5] if isinstance(said, list) else ():
            who.setdefault(plain(note, 300), []).append(one.label)
    return [
        f"{'every variant' if len(labels) == len(variants) > 1 else ', '.join(labels)}: {text}."
        for text, labels in who.items()
    ]


def tables(data: ReportData) -> dict[str, Any]:
    """The tables with what explains them, by the names the template uses."""
    variants = data.variants
    binding = {one.bound.binds for one in variants}
    setups = [one.entry.get("setup") for one in variants]
    known = [setup for setup in setups if isinstance(setup, Mapping)]
    clocks = dict.fromkeys(plain(setup.get("clock_note", ""), 600) for setup in known)
    return {
        "bounds": bound_tables(variants),
        "meanings": [(name, text) for name, text in MEANINGS.items() if name in binding],
        "limit_rules": list(dict.fromkeys(one.limit.why for one in variants)),
        "paged": any(setup.get("memory") == "paged" for setup in known),
        "not_bandwidth": CAPACITY_NOT_BANDWIDTH,
        "remarks": remarks(one.entry for one in variants),
        "fragmentation": fragmentation_tables(variants),
        "serving": serving_tables(variants),
        "whole_run": whole_run_tables(variants),
        "clocks": [f"Step times: {note}." for note in clocks if note][:20],
        "definitions": all_definitions(variants),
    }


def notes(data: ReportData) -> dict[str, str]:
    """What must be said beside each figure, by its name in `html_figures.draw`, and `serving`."""
    series = next((one.series for one in data.variants if one.series), None)
    rows = max((one.series.rows for one in data.variants if one.series), default=0)
    intervals = len(series.columns["running"]) if series else 0
    first = (
        f" Seed {data.run.seeds[0]} of {len(data.run.seeds)}." if len(data.run.seeds) > 1 else ""
    )
    sampled = (
        f"Down-sampled: averages over {intervals} equal intervals, exact integrals of up to "
        f"{rows:,} rows; what is shorter than an interval shows as its average."
    )
    return {
        "memory": f"Share of the capacity over simulated time. {sampled}{first}",
        "load": f"{sampled}{first}",
        "sharing": "The distance between the two is what sharing saves; blocks shared with the"
        f" prefix cache's help count too. {sampled}{first}",
        "waterfall": "Average slots, rounded to whole ones that add up. A use that gives up slots"
        " leaves them to live KV or to another use; the bars lead exactly from the live slots of"
        " one variant to those of the other. Terms that are equal have no bar.",
        "map": "Who holds which slots, in address order: live KV, what its request reserved, and"
        f" holes. Moments of most x are within 1 % of the run's maximum.{first}",
        "block_size": _block_size_note(data),
        "latency": _latency_note(data),
        "serving": "Rates and latencies are predicted by the clock, whose expected error is in the"
        " table; percentiles are within 0.1 % of the simulated times."
        + (
            " Percentiles and mean latencies are those of all seeds' requests together."
            if len(data.run.seeds) > 1
            else ""
        ),
    }


def _latency_note(data: ReportData) -> str:
    counts = [
        found.requests
        for one in data.variants
        for found in one.distributions.values()
        if found is not None
    ]
    if not counts:
        return ""
    points = max(
        len(found.share) for one in data.variants for found in one.distributions.values() if found
    )
    return (
        f"Share of the finished requests that took at most so long. Drawn from up to "
        f"{max(counts):,} requests by at most {points} exact quantiles; times below 1 ms are drawn "
        "at 1 ms."
    )


def _block_size_note(data: ReportData) -> str:
    curve = data.curve
    if curve is None:
        return ""
    closed = (
        "Expected from the lengths of the requests alone: a sequence of length l leaves "
        f"B·⌈l/B⌉ - l slots empty, averaged over every step of every request, B = 1 to "
        f"{MAX_BLOCK_SIZE}; the mean length is {curve.mean_tokens:,.0f} tokens. Chosen here:"
    )
    sizes = sorted({size for size, _ in measured_tails(data.variants).values()})
    clauses = [
        f" block size {size} leaves {curve.empty_slots[size - 1]:,.2f} slots empty per running "
        f"request ({100 * curve.empty_slots[size - 1] / curve.mean_tokens:.2f} % of its length) "
        f"and lists {curve.blocks[size - 1]:,.1f} blocks"
        for size in sizes[:8]
    ]
    return closed + (";".join(clauses) or " no paged memory") + "."
