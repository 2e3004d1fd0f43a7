"""Cumulative distributions of the latencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kvsim.report.figures.style import (
    Figure,
    axis_key,
    axis_ref,
    base_layout,
    escaped,
    line_style,
    panel_title,
    rows_of_panels,
    significant,
    titled,
)
from kvsim.report.quantiles import Distribution

FLOOR_S = 0.001
"""Shorter times are drawn here: the axis is logarithmic."""

_PANELS = (
    ("ttft_s", "TTFT: arrival to first token"),
    ("tpot_s", "TPOT: time per output token"),
    ("e2e_s", "end-to-end: arrival to last token"),
    ("queue_s", "queueing: arrival to first step"),
)
_COLUMNS = ((0.0, 0.46), (0.54, 1.0))


def latency_figure(
    distributions: Mapping[str, Mapping[str, Distribution | None]], slo: Mapping[str, float]
) -> Figure:
    """Share of the requests (%) that took at most so many seconds, a panel per latency.

    `distributions` by the variant's label, then by latency; `slo` are limits in seconds, drawn as
    vertical lines.
    """
    data: list[dict[str, Any]] = []
    layout = base_layout(620, annotations=[], shapes=[])
    rows = rows_of_panels(2, gap=0.2)
    for panel, (latency, title) in enumerate(_PANELS):
        x_ref, y_ref = axis_ref("x", panel), axis_ref("y", panel)
        ticks = _ticks(by_latency.get(latency) for by_latency in distributions.values())
        for index, (name, by_latency) in enumerate(distributions.items()):
            found = by_latency.get(latency)
            if found is not None:
                data.append(_curve(name, found, panel, index))
        layout["annotations"].append(panel_title(title, x_ref, y_ref))
        layout[axis_key("x", panel)] = {
            "type": "log",
            "domain": list(_COLUMNS[panel % 2]),
            "anchor": y_ref,
            "title": titled("seconds"),
            "tickvals": ticks,
            "ticktext": [f"{tick:g}" for tick in ticks],
        }
        layout[axis_key("y", panel)] = {
            "domain": rows[panel // 2],
            "anchor": x_ref,
            "range": [0, 101],
            "ticksuffix": " %",
        }
        if latency in slo:
            layout["shapes"].append(_slo_line(slo[latency], x_ref, y_ref))
            layout["annotations"].append(_slo_text(slo[latency], x_ref, y_ref))
    _show_each_variant_once(data)
    return {"data": data, "layout": layout}


def _ticks(found: Iterable[Distribution | None]) -> list[float]:
    """Powers of ten; 2 and 5 times them too where the times span less than two of them."""
    ends = [(one.seconds[0], one.seconds[-1]) for one in found if one is not None]
    low = max(FLOOR_S, min((end[0] for end in ends), default=FLOOR_S))
    high = max(FLOOR_S, max((end[1] for end in ends), default=FLOOR_S))
    digits = (1,) if high > 100 * low else (1, 2, 5)
    powers = range(-3, max(1, int(np.ceil(np.log10(high)))) + 1)
    return [float(f"{digit}e{power}") for power in powers for digit in digits]


def _curve(name: str, found: Distribution, panel: int, index: int) -> dict[str, Any]:
    seconds = np.maximum(found.seconds, FLOOR_S)
    return {
        "type": "scatter",
        "name": escaped(name),
        "legendgroup": str(index),
        "mode": "lines",
        "x": significant(seconds),
        "y": significant(100 * found.share, 6),
        "xaxis": axis_ref("x", panel),
        "yaxis": axis_ref("y", panel),
        "line": {"width": 2, "shape": "hv", **line_style(index)._asdict()},
        "hovertemplate": f"{escaped(name)}: %{{y:.2f}} % within %{{x:.4g}} s<extra></extra>",
    }


def _show_each_variant_once(data: list[dict[str, Any]]) -> None:
    shown: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace["legendgroup"] not in shown
        shown.add(trace["legendgroup"])


def _slo_line(seconds: float, x_ref: str, y_ref: str) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": x_ref,
        "x0": seconds,
        "x1": seconds,
        "yref": f"{y_ref} domain",
        "y0": 0,
        "y1": 1,
        "line": {"width": 1.2, "dash": "dot", "color": "#8A8A8A"},
    }


def _slo_text(seconds: float, x_ref: str, y_ref: str) -> dict[str, Any]:
    return {
        "text": f"SLO {seconds:g} s",
        "xref": x_ref,
        "x": float(np.log10(seconds)),
        "xanchor": "left",
        "xshift": 4,
        "yref": f"{y_ref} domain",
        "y": 0.02,
        "yanchor": "bottom",
        "showarrow": False,
    }
