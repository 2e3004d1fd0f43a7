"""Runs sections one after another: rows saved as they come, faults recorded, time kept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from gpu_backend.bench.bench import Bench, OutOfTime, Skipped
from gpu_backend.bench.budget import Budget
from gpu_backend.bench.headline import headline
from gpu_backend.bench.results import Results, Row, describe, say


class Section(NamedTuple):
    """One part of the run: `measure` yields its rows, `weight` is its share of the time.

    `timed`: its rows are about times, which mean nothing in an interpreter.
    """

    name: str
    weight: float
    measure: Callable[[Bench], Iterator[Row]]
    timed: bool = True


def run_sections(sections: list[Section], bench: Bench, budget: Budget, results: Results) -> int:
    """Run all sections; returns the exit status.

    1 if a section failed or a row of any section says `"correct": false`, else 0. `summary.json`
    is renewed before and after every section: one that says "running" was killed in it.
    """
    summary: Row = {section.name: {"status": "not begun"} for section in sections}
    status = 0
    for section in sections:
        share_s = budget.begin(section.name)
        summary[section.name] = {"status": "running"}
        _save(results, summary, bench)
        say(f"{section.name}: up to {share_s:.0f} s")
        entry = _run(section, bench, results)
        summary[section.name] = entry
        _save(results, summary, bench)
        say(f"{section.name}: {_sentence(entry)}")
        if entry["status"] == "failed" or entry["wrong"]:
            status = 1
        _release_memory()
    return status


def _run(section: Section, bench: Bench, results: Results) -> Row:
    begin = bench.now()
    counts = {"rows": 0, "wrong": 0}
    outcome: dict[str, Any] = {"status": "done"}
    try:
        for row in section.measure(bench):
            meaningless = bench.meaningless and section.timed
            results.append(section.name, row | {"meaningless": True} if meaningless else row)
            counts["rows"] += 1
            counts["wrong"] += row.get("correct") is False
    except OutOfTime:
        outcome = {"status": "partial", "why": "time ran out"}
    except Skipped as reason:
        outcome = {"status": "skipped", "why": str(reason)}
    except Exception as error:  # noqa: BLE001 - whatever fails, the sections behind it still count
        outcome = {"status": "failed", **describe(error)}
    return {**outcome, **counts, "seconds": round(bench.now() - begin, 3)}


def _save(results: Results, sections: Row, bench: Bench) -> None:
    figures = headline(results.folder) | ({"meaningless": True} if bench.meaningless else {})
    results.replace("summary", {"sections": sections, "headline": figures})


def _sentence(entry: Row) -> str:
    why = f" ({entry['error']}: {entry['why']})" if "error" in entry else ""
    why = f" ({entry['why']})" if "why" in entry and not why else why
    wrong = f", {entry['wrong']} WRONG" if entry["wrong"] else ""
    return f"{entry['status']}{why}, {entry['rows']} rows{wrong}, {entry['seconds']:.1f} s"


def _release_memory() -> None:
    """A failed section's tensors must not be in the way of the next one's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
