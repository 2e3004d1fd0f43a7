"""Reproductions as Markdown, as plain data, and as the cells that every form shares."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from kvsim.papers.target import FigureResult, Interval, Result

COLUMNS = ("quantity", "unit", "paper", "read", "ours", "over seeds", "accepted", "basis", "")
LENGTHS = {
    "real": "the published list of lengths (`sharegpt-opt-lengths`)",
    "preset": "the preset `sharegpt`, not the published list",
}
INTRODUCTION = """\
# Published results, reproduced

Written by `kvsim reproduce --write-docs`; do not edit. `KVSIM_TRACES=FOLDER kvsim reproduce` runs
all of it again and ends with exit status 1 if a judged number is off. Without the list of lengths
in that folder it draws lengths from the preset `sharegpt`, derived from statistics of the list.

* **read** says how the paper's number was obtained: READ in the paper or its artifact, DIGITISED
  off a figure (about 1.5 % of the axis), DERIVED or by FORMULA; OURS has none to compare with.
* **ours** is the mean over seeds, **over seeds** the smallest and largest value.
* **accepted** is the interval in which the mean must lie; numbers without are shown, not judged.
* **basis**: for a *prediction* no parameter that matters to it was set to meet the figure, for a
  *fit* one was; a *closed form* is arithmetic that the simulation must meet.
"""


def cells(result: Result) -> tuple[str, ...]:
    """A row of the table, in the order of `COLUMNS`."""
    target = result.target
    digits = target.digits

    def number(value: float) -> str:
        if isnan(value):
            return "none"
        text = f"{value:,.{digits}f}"
        return text.removeprefix("-") if not float(text.replace(",", "")) else text

    low, high = min(result.values), max(result.values)
    spread = f"{number(low)} to {number(high)}" if len(result.values) > 1 else ""
    return (
        target.what,
        target.unit,
        "" if target.paper is None else number(target.paper),
        target.tag,
        number(result.mean),
        spread,
        "not judged" if result.accepted is None else _interval(result.accepted),
        target.basis,
        {True: "pass", False: "FAIL", None: ""}[result.passed],
    )


def _interval(accepted: Interval) -> str:
    low, high = accepted
    return "exact" if high - low <= 1e-5 else f"{low:.5g} to {high:.5g}"


def figure_section(found: FigureResult) -> str:
    """One figure as a Markdown section."""
    figure = found.figure
    lines = [f"## {figure.title}", "", figure.how, ""]
    lines.append(f"`kvsim reproduce {figure.name}`" + _sources(found))
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|---|---|--:|---|--:|---|---|---|---|"]
    lines += ["| " + " | ".join(cells(result)) + " |" for result in found.results]
    lines += ["", *(f"* {remark}" for remark in (*found.problems, *figure.remarks))]
    return "\n".join(lines).rstrip() + "\n"


def _sources(found: FigureResult) -> str:
    figure = found.figure
    parts = []
    if figure.scenario is not None:
        parts.append(f"scenario `{figure.scenario}`")
    if len(figure.seeds) > 1:
        parts.append(f"seeds {figure.seeds[0]} to {figure.seeds[-1]}")
    if figure.uses_lengths:
        parts.append(LENGTHS[found.lengths])
    return ": " + ", ".join(parts) if parts else ""


def reproductions_page(found: Sequence[FigureResult]) -> str:
    """The page of reproductions, a section for each figure."""
    return "\n".join([INTRODUCTION, *map(figure_section, found)])


def figure_data(found: FigureResult) -> dict[str, Any]:
    """One figure as plain data."""
    figure = found.figure
    return {
        "name": figure.name,
        "title": figure.title,
        "scenario": figure.scenario,
        "seeds": list(figure.seeds),
        "lengths": found.lengths if figure.uses_lengths else None,
        "passed": found.passed,
        "how": figure.how,
        "problems": list(found.problems),
        "targets": [_result_data(result) for result in found.results],
        "remarks": list(figure.remarks),
    }


def _result_data(result: Result) -> dict[str, Any]:
    target = result.target
    return {
        "key": target.key,
        "what": target.what,
        "unit": target.unit,
        "paper": target.paper,
        "provenance": target.tag,
        "basis": target.basis,
        "ours": _or_none(result.mean),
        "per_seed": [_or_none(value) for value in result.values],
        "accepted": None if result.accepted is None else list(result.accepted),
        "passed": result.passed,
    }


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value
