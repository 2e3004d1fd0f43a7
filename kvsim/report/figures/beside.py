"""Predicted figures beside printed ones, and errors beside the bound that was stated for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvsim.report.figures.style import (
    BLUE,
    GREY,
    VERMILLION,
    Figure,
    base_layout,
    escaped,
    rounded,
    significant,
    titled,
)

_ROW_PX = 34
_MARGINS_PX = 130


class Predicted(NamedTuple):
    """One figure that was predicted with an interval, and what was printed."""

    name: str
    printed: float
    predicted: float
    low: float
    high: float


class Error(NamedTuple):
    """One relative error (a fraction)."""

    name: str
    error: float
    inside: bool | None
    """Whether it is within the bound; None where none is stated."""


def predicted_figure(rows: Sequence[Predicted], unit: str) -> Figure:
    """A row for each figure, the first on top: its interval, the prediction and what was printed.

    All are in `unit`.
    """
    names = [escaped(row.name) for row in rows]
    spans = {
        "type": "scatter",
        "name": "predicted, with its 80 % interval",
        "mode": "markers",
        "x": significant([row.predicted for row in rows], 5),
        "y": names,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": significant([max(row.high - row.predicted, 0) for row in rows], 5),
            "arrayminus": significant([max(row.predicted - row.low, 0) for row in rows], 5),
            "thickness": 2.5,
            "width": 6,
        },
        "marker": {"color": VERMILLION, "symbol": "diamond", "size": 10},
        "customdata": [[f"{row.low:,.5g}", f"{row.high:,.5g}"] for row in rows],
        "hovertemplate": "%{y}: predicted %{x:,.5~g} "
        + f"{unit} (%{{customdata[0]}} to %{{customdata[1]}})<extra></extra>",
    }
    printed = {
        "type": "scatter",
        "name": "printed",
        "mode": "markers",
        "x": significant([row.printed for row in rows], 5),
        "y": names,
        "marker": {
            "color": BLUE,
            "symbol": "circle-open",
            "size": 13,
            "line": {"width": 3, "color": BLUE},
        },
        "hovertemplate": f"%{{y}}: printed %{{x:,.5~g}} {unit}<extra></extra>",
    }
    layout = _rows_layout(names, unit)
    layout["xaxis"]["rangemode"] = "tozero"
    return {"data": [spans, printed], "layout": layout}


def errors_figure(rows: Sequence[Error], bound: float | None) -> Figure:
    """Relative errors (%) by figure, the first on top, over the band of the bound (a fraction)."""
    names = [escaped(row.name) for row in rows]
    data: list[dict[str, Any]] = []
    for inside, label, color, symbol in (
        (True, "within the bound", BLUE, "circle"),
        (False, "outside the bound", VERMILLION, "diamond"),
        (None, "no bound is stated", GREY, "circle-open"),
    ):
        chosen = [place for place, row in enumerate(rows) if row.inside is inside]
        if chosen:
            data.append(
                {
                    "type": "scatter",
                    "name": label,
                    "mode": "markers",
                    "x": rounded([100 * rows[place].error for place in chosen], 2),
                    "y": [names[place] for place in chosen],
                    "marker": {"color": color, "symbol": symbol, "size": 11},
                    "hovertemplate": "%{y}: %{x:+.1f} %<extra></extra>",
                }
            )
    layout = _rows_layout(names, "simulated over measured, less 1 (%)")
    end = 115 * max([bound or 0.0, *(abs(row.error) for row in rows)], default=0.0) or 1.0
    layout["xaxis"]["range"] = [-end, end]
    across: dict[str, Any] = {"yref": "paper", "y0": 0, "y1": 1, "xref": "x"}
    zero = {"type": "line", **across, "x0": 0, "x1": 0, "line": {"width": 1.4, "color": GREY}}
    layout["shapes"] = [zero]
    if bound is not None:
        ends = {"x0": -100 * bound, "x1": 100 * bound}
        band = {"fillcolor": "rgba(138,138,138,0.28)", "line": {"width": 0}, "layer": "below"}
        layout["shapes"].insert(0, {"type": "rect", **across, **ends, **band})
    return {"data": data, "layout": layout}


def _rows_layout(names: Sequence[str], title: str) -> dict[str, Any]:
    layout = base_layout(_MARGINS_PX + _ROW_PX * len(names))
    layout["margin"] = {**layout["margin"], "l": 190}
    layout["xaxis"] = {"title": titled(title)}
    layout["yaxis"] = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": list(names),
        "autorange": "reversed",
    }
    return layout
