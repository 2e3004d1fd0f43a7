"""Where the slots go from one variant to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsim.report.figures.style import (
    BLUE,
    GREEN,
    VERMILLION,
    Figure,
    Ink,
    base_layout,
    escaped,
    pattern,
    titled,
)
from kvsim.report.figures.terms import LIVE, TERMS

_TOTAL, _MORE, _LESS = Ink(BLUE, ""), Ink(GREEN, "/"), Ink(VERMILLION, "\\")


class Bar(NamedTuple):
    """A step of the waterfall: `slots` are what it adds to (or takes from) the live slots."""

    label: str
    slots: int
    kind: str
    """`total`, `capacity` or a key of `TERMS`."""


def whole_slots(shares: Mapping[str, float], capacity: int) -> dict[str, int]:
    """Average slots of each key of `TERMS`, rounded to whole ones that add up to `capacity`.

    `shares` are parts of the capacity and sum to 1. The largest remainders are rounded up, so each
    is within one slot of the exact average.
    """
    exact = {term.key: shares[term.key] * capacity for term in TERMS}
    slots = {key: int(value) for key, value in exact.items()}
    left = capacity - sum(slots.values())
    by_remainder = sorted(exact, key=lambda key: slots[key] - exact[key])
    for key in by_remainder[:left] if left > 0 else []:
        slots[key] += 1
    return slots


def waterfall_bars(
    source: Mapping[str, int], target: Mapping[str, int], names: tuple[str, str]
) -> list[Bar]:
    """From the live slots of `source` to those of `target`; the bars between add up exactly.

    Both are the slots by term (`whole_slots`). A slot that another use gives up can hold live KV,
    so a term that shrinks adds; a larger capacity adds too. Terms that are equal have no bar.
    """
    gains = {"capacity": sum(target.values()) - sum(source.values())}
    for term in TERMS:
        if term is not LIVE:
            gains[term.key] = source[term.key] - target[term.key]
    labels = {term.key: term.label for term in TERMS}
    bars = [Bar(f"live in {names[0]}", source[LIVE.key], "total")]
    bars += [Bar(labels.get(key, key), gain, key) for key, gain in gains.items() if gain]
    return [*bars, Bar(f"live in {names[1]}", target[LIVE.key], "total")]


def waterfall_figure(bars: list[Bar], capacity: int) -> Figure:
    """The bars in slots, averaged over time; hovering shows the share of `capacity`."""
    groups: dict[Ink, list[tuple[int, int, Bar]]] = {_TOTAL: [], _MORE: [], _LESS: []}
    level = 0
    for index, bar in enumerate(bars):
        base = 0 if bar.kind == "total" else min(level, level + bar.slots)
        level = bar.slots if bar.kind == "total" else level + bar.slots
        ink = _TOTAL if bar.kind == "total" else _MORE if bar.slots > 0 else _LESS
        groups[ink].append((index, base, bar))
    names = {_TOTAL: "live slots", _MORE: "more room for live KV", _LESS: "less room for live KV"}
    layout = base_layout(430, bargap=0.25, uniformtext={"mode": "show", "minsize": 11})
    layout["xaxis"] = {
        "tickvals": list(range(len(bars))),
        "ticktext": [_wrapped(bar.label) for bar in bars],
        "range": [-0.6, len(bars) - 0.4],
        "fixedrange": True,
        "tickangle": 0,
        "showgrid": False,
    }
    layout["yaxis"] = {"title": titled("slots (average over time)"), "rangemode": "tozero"}
    layout["margin"]["b"] = 84
    data = [_bars(names[ink], ink, rows, capacity) for ink, rows in groups.items() if rows]
    return {"data": data, "layout": layout}


def _bars(name: str, ink: Ink, rows: list[tuple[int, int, Bar]], capacity: int) -> dict[str, Any]:
    signed = ink is not _TOTAL
    return {
        "type": "bar",
        "name": name,
        "x": [index for index, _, _ in rows],
        "base": [base for _, base, _ in rows],
        "y": [abs(bar.slots) for _, _, bar in rows],
        "text": [f"{bar.slots:+,}" if signed else f"{bar.slots:,}" for _, _, bar in rows],
        "customdata": [f"{100 * bar.slots / capacity:.2f}" for _, _, bar in rows],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": ink.color, "pattern": pattern(ink)},
        "hovertemplate": "%{text} slots, %{customdata} % of the capacity<extra></extra>",
    }


def _wrapped(label: str) -> str:
    """Broken into short lines, for a tick."""
    lines = [""]
    for word in label.replace("-", "- ").split():
        if lines[-1] and len(lines[-1]) + len(word) > 13:
            lines.append("")
        glue = "" if not lines[-1] or lines[-1].endswith("-") else " "
        lines[-1] += glue + word
    return "<br>".join(escaped(line) for line in lines)
