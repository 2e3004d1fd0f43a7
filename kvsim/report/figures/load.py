"""Lines over time: batch and queue, logical and physical memory, the largest free extent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.report.binned import EXTENT, Binned
from kvsim.report.figures.style import (
    FONT_SIZE,
    Figure,
    axis_key,
    base_layout,
    escaped,
    line_style,
    panel_title,
    rounded,
    rows_of_panels,
    titled,
    window_marks,
)

_PANELS = (("running", "batch: requests that run"), ("waiting", "queue: requests that wait"))
_SHARED = (
    ("logical_slots", "logical: slots of a block counted for every sequence that holds it"),
    ("allocated_slots", "physical: slots of each block once"),
)

_EXTENTS = (
    (EXTENT, "largest free extent: what one more request could reserve in one piece"),
    ("external_slots", "external fragmentation: free slots in pieces too small for the next one"),
)


def load_figure(
    series: Mapping[str, Binned],
    limits: Mapping[str, float],
    window: tuple[float, float | None] | None = None,
) -> Figure:
    """Running and waiting requests over time (s), one line per variant.

    `limits` are horizontal lines over the batch, text -> requests; one far above the data is left
    out. Dotted vertical lines mark the measured `window` (s).
    """
    drawn = _panels(series, _PANELS, "requests", window)
    layout = drawn["layout"]
    highest = _highest(series, "running")
    for text, value in limits.items():
        if value <= 1.6 * highest:
            layout["shapes"].append(_limit_line(value))
            layout["annotations"].append(_limit_text(text, value))
    return drawn


def sharing_figure(
    series: Mapping[str, Binned], window: tuple[float, float | None] | None = None
) -> Figure:
    """Logical and physical slots over time (s), one line per variant, on equal scales.

    Dotted vertical lines mark the measured `window` (s).
    """
    drawn = _panels(series, _SHARED, "slots", window)
    top = 1.05 * max(_highest(series, column) for column, _ in _SHARED) or 1.0
    for row in range(len(_SHARED)):
        drawn["layout"][axis_key("y", row)]["range"] = [0, top]
    return drawn


def extent_figure(
    series: Mapping[str, Binned], window: tuple[float, float | None] | None = None
) -> Figure:
    """Largest free extent and external fragmentation (slots) over time (s), a line per variant.

    The extent is a gap where nothing ran. Dotted vertical lines mark the measured `window` (s).
    """
    return _panels(series, _EXTENTS, "slots", window)


def _panels(
    series: Mapping[str, Binned],
    panels: Sequence[tuple[str, str]],
    unit: str,
    window: tuple[float, float | None] | None,
) -> Figure:
    """One panel under the other, each with a line per variant."""
    data: list[dict[str, Any]] = []
    layout = base_layout(480, annotations=[], shapes=[], hovermode="x unified")
    for row, domain in enumerate(rows_of_panels(len(panels), gap=0.14)):
        column, title = panels[row]
        y_ref = f"y{row + 1}" if row else "y"
        for index, (name, one) in enumerate(series.items()):
            data.append(_line(name, one, column, y_ref, index))
        layout["annotations"].append(panel_title(title, "x", y_ref))
        layout[axis_key("y", row)] = {
            "domain": domain,
            "rangemode": "tozero",
            "title": titled(unit),
        }
    end = max((one.end_s for one in series.values()), default=1.0)
    layout["xaxis"] = {"title": titled("simulated time (s)"), "range": [0, end], "anchor": "y2"}
    layout["shapes"] += window_marks(window, end)
    return {"data": data, "layout": layout}


def _highest(series: Mapping[str, Binned], column: str) -> float:
    """The largest average of a column in any variant."""
    values = (value for one in series.values() for value in rounded(one.columns[column], 3))
    return max((value for value in values if value), default=0.0)


def _line(name: str, one: Binned, column: str, y_ref: str, index: int) -> dict[str, Any]:
    values = rounded(one.columns[column], 2)
    return {
        "type": "scatter",
        "name": escaped(name),
        "legendgroup": str(index),
        "showlegend": y_ref == "y",
        "mode": "lines",
        "x0": 0,
        "dx": one.width_s,
        "y": [*values, values[-1]],
        "yaxis": y_ref,
        "line": {"width": 1.8, "shape": "hv", **line_style(index)._asdict()},
        "hovertemplate": "%{y:,.1f}",
    }


def _limit_line(value: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": "y",
        "y0": value,
        "y1": value,
        "line": {"width": 1.2, "dash": "dot", "color": "#8A8A8A"},
    }


def _limit_text(text: str, value: float) -> dict[str, Any]:
    return {
        "text": escaped(text),
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "yref": "y",
        "y": value,
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": FONT_SIZE - 1},
    }
