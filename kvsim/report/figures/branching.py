"""Blocks and copies of branches that share: closed form and simulation on one chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.report.branch_forms import BlockCounts, Floats
from kvsim.report.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Figure,
    base_layout,
    panel_title,
    significant,
    titled,
)
from kvsim.report.sharing_lab import WidthRow

MAX_STEPS_DRAWN = 300
_LEFT, _RIGHT = [0, 0.58], [0.68, 1]


def branch_width_figure(rows: Sequence[WidthRow], unit: str) -> Figure:
    """The last step over the number of branches; lines are formulas, markers the simulation.

    `unit` says what is counted on the x axis, for example "samples (n)".
    """
    x = [row.width for row in rows]
    data = []
    for field, name, color, dash, symbol in (
        (0, "without sharing (logical)", GREY, "dash", "square-open"),
        (1, "with sharing (physical)", BLUE, "solid", "circle-open"),
    ):
        data.append(_line(name, x, [row.formula[field] for row in rows], color, dash))
        data.append(_dots(name, x, [row.simulated[field] for row in rows], color, symbol))
    copies = [
        _line("copies", x, [row.formula[2] for row in rows], VERMILLION, "solid"),
        _dots("copies", x, [row.simulated[2] for row in rows], VERMILLION, "diamond-open"),
    ]
    layout = _two_panels("blocks in the last step", "copies on write, all steps", unit)
    layout["xaxis"]["dtick"] = layout["xaxis2"]["dtick"] = 1
    return {"data": data + [_right(trace) for trace in copies], "layout": layout}


def branch_steps_figure(
    formula: BlockCounts, simulated: BlockCounts, bounds: tuple[Floats, Floats] | None
) -> Figure:
    """Every step: blocks on the left, copies so far on the right; at most 300 steps are drawn.

    `bounds` are the least and most physical blocks, where the ancestry is not known.
    """
    count = len(formula.physical)
    steps = np.unique(np.linspace(0, count - 1, min(count, MAX_STEPS_DRAWN)).round().astype(int))
    marks = steps[:: max(1, len(steps) // 24)]
    data = []
    if bounds is not None:
        for name, values in zip(
            ("least of any ancestry", "most of any ancestry"), bounds, strict=True
        ):
            data.append(_line(name, steps.tolist(), values[steps], ORANGE, "dot"))
    for name, wanted, found, color, dash, symbol in (
        (
            "without sharing (logical)",
            formula.logical,
            simulated.logical,
            GREY,
            "dash",
            "square-open",
        ),
        (
            "with sharing (physical)",
            formula.physical,
            simulated.physical,
            BLUE,
            "solid",
            "circle-open",
        ),
    ):
        data.append(_line(name, steps.tolist(), wanted[steps], color, dash))
        data.append(_dots(name, marks.tolist(), found[marks], color, symbol))
    copies = [
        _line("copies", steps.tolist(), formula.copies[steps], VERMILLION, "solid"),
        _dots("copies", marks.tolist(), simulated.copies[marks], VERMILLION, "diamond-open"),
    ]
    for trace in (*data, *copies):
        if trace["mode"] == "lines":
            trace["line"]["shape"] = "hv"
    layout = _two_panels("blocks held", "copies on write so far", "step")
    return {"data": data + [_right(trace) for trace in copies], "layout": layout}


def _two_panels(left: str, right: str, x_title: str) -> dict[str, Any]:
    layout = base_layout(420)
    layout["xaxis"] = {"domain": _LEFT, "anchor": "y", "title": titled(x_title)}
    layout["xaxis2"] = {"domain": _RIGHT, "anchor": "y2", "title": titled(x_title)}
    layout["yaxis"] = {"rangemode": "tozero", "title": titled("blocks")}
    layout["yaxis2"] = {"rangemode": "tozero", "anchor": "x2", "title": titled("copies")}
    layout["annotations"] = [panel_title(left, "x", "y"), panel_title(right, "x2", "y2")]
    layout["margin"]["t"] = 84
    return layout


def _line(name: str, x: Any, y: Any, color: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, formula",
        "x": x,
        "y": significant(y, 6),
        "line": {"width": 2, "color": color, "dash": dash},
        "hovertemplate": "%{x}: %{y:.5~g}<extra>formula</extra>",
    }


def _dots(name: str, x: Any, y: Any, color: str, symbol: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name}, simulated",
        "x": x,
        "y": significant(y, 6),
        "marker": {"size": 10, "color": color, "symbol": symbol, "line": {"width": 2}},
        "hovertemplate": "%{x}: %{y:.5~g}<extra>simulated</extra>",
    }


def _right(trace: dict[str, Any]) -> dict[str, Any]:
    return {**trace, "xaxis": "x2", "yaxis": "y2"}
