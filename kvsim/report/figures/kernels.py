"""How fast attention kernels are, by block size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.report.figures.style import (
    GREY,
    Figure,
    base_layout,
    escaped,
    line_style,
    significant,
    titled,
)
from kvsim.report.kernel_sizes import MAX_CURVES, SizeCurve


def kernel_figure(curves: Sequence[SizeCurve], fitted: SizeCurve | None) -> Figure:
    """Speed (%) over the block size (tokens): at most `MAX_CURVES` measured curves, the first.

    `fitted` is drawn grey and dotted, since it is no measurement.
    """
    data = []
    for index, curve in enumerate(curves[:MAX_CURVES]):
        color, dash = line_style(index)
        data.append(_line(curve, color, dash))
    if fitted is not None:
        data.append(_line(fitted, GREY, "dot"))
    layout = base_layout(400, showlegend=True)
    layout["xaxis"] = {
        "type": "log",
        "title": titled("block size (tokens)"),
        "tickvals": [1 << power for power in range(11)],
    }
    layout["yaxis"] = {"rangemode": "tozero", "title": titled("relative speed (%)")}
    return {"data": data, "layout": layout}


def _line(curve: SizeCurve, color: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(curve.label),
        "x": list(curve.sizes),
        "y": significant([100 * share for share in curve.speed], 5),
        "line": {"width": 2, "color": color, "dash": dash},
        "marker": {"size": 8, "color": color},
        "hovertemplate": "block size %{x}: %{y:.4~g} %<extra></extra>",
    }
