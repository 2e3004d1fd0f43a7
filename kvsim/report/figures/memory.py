"""Memory over time: what every slot is used for, variant above variant, on one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvsim.report.binned import Binned
from kvsim.report.figures.style import (
    Figure,
    axis_key,
    axis_ref,
    base_layout,
    escaped,
    panel_title,
    pattern,
    rounded,
    rows_of_panels,
    titled,
    window_marks,
)
from kvsim.report.figures.terms import TERMS, Term

_PANEL_HEIGHT = 150
_FRAME_HEIGHT = 170


def memory_figure(
    series: Mapping[str, Binned], window: tuple[float, float | None] | None = None
) -> Figure:
    """Stacked shares of the capacity (%) over time (s), one panel per variant.

    `series` holds the average slots of every term in equal intervals (`binned`), by the variant's
    label; an interval in which nothing was observed is a gap. Terms that are 0 everywhere are left
    out. Dotted lines mark the measured `window` (s).
    """
    columns = [one.columns for one in series.values()]
    drawn = [term for term in TERMS if any(np.nansum(one[term.column]) for one in columns)]
    height = _FRAME_HEIGHT + _PANEL_HEIGHT * len(series)
    data: list[dict[str, Any]] = []
    layout = base_layout(height, annotations=[], hovermode="x unified")
    layout["margin"]["t"] = 84
    domains = rows_of_panels(len(series), gap=30 / height if len(series) > 1 else 0)
    for index, (name, one) in enumerate(series.items()):
        y_ref = axis_ref("y", index)
        for term in drawn:
            data.append(_area(one, term, index, y_ref))
        layout["annotations"].append(panel_title(escaped(name), "x", y_ref))
        layout[axis_key("y", index)] = {
            "domain": domains[index],
            "range": [0, 100],
            "tickvals": [0, 50, 100],
            "ticktext": ["0 %", "50 %", "100 %"],
            "fixedrange": True,
        }
    end = max((one.end_s for one in series.values()), default=1.0)
    layout["xaxis"] = {
        "title": titled("simulated time (s)"),
        "range": [0, end],
        "anchor": axis_ref("y", max(0, len(series) - 1)),
    }
    layout["shapes"] = window_marks(window, end)
    return {"data": data, "layout": layout}


def _area(one: Binned, term: Term, index: int, y_ref: str) -> dict[str, Any]:
    shares = rounded(100 * one.columns[term.column] / one.capacity_slots, 2)
    return {
        "type": "scatter",
        "name": term.label,
        "legendgroup": term.key,
        "showlegend": index == 0,
        "mode": "lines",
        "stackgroup": y_ref,
        "x0": 0,
        "dx": one.width_s,
        "y": [*shares, shares[-1]],
        "yaxis": y_ref,
        "line": {"width": 0, "shape": "hv", "color": term.ink.color},
        "fillcolor": term.ink.color,
        "fillpattern": {**pattern(term.ink), "bgcolor": term.ink.color},
        "hovertemplate": "%{y:.2f} %",
    }
