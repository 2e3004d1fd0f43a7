"""Colours, dashes and hatches of all figures, and the layout they share.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; a hatch or a dash says the
same again in black and white. A figure is a plain dict for plotly (`data`, `layout`). It sets no
colour of text, grid or background: the page that shows it has a light and a dark one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np

Figure = dict[str, Any]
"""`data` and `layout` as plotly.js takes them; `layout.height` is in CSS pixels."""

BLUE, SKY, GREEN, ORANGE, VERMILLION, PURPLE, GREY = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#8A8A8A",
)
FREE = "rgba(138,138,138,0.18)"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"
FONT_SIZE = 13


class Ink(NamedTuple):
    """A fill: colour and, for black and white, a hatch (plotly's pattern shape; "" is none)."""

    color: str
    hatch: str


class Line(NamedTuple):
    """A line: colour and dash."""

    color: str
    dash: str


_COLORS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, GREY)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def line_style(index: int) -> Line:
    """The line of the variant at this place; 42 of them differ."""
    return Line(_COLORS[index % len(_COLORS)], _DASHES[index % len(_DASHES)])


def pattern(ink: Ink) -> dict[str, Any]:
    """The hatch of a bar or an area: light lines on a dark colour, dark ones on a light colour."""
    dark = ink.color in (BLUE, GREEN, VERMILLION)
    return {
        "shape": ink.hatch,
        "fillmode": "overlay",
        "size": 6,
        "solidity": 0.25,
        "fgcolor": "rgba(255,255,255,0.8)" if dark else "rgba(0,0,0,0.6)",
    }


def base_layout(height: int, **more: Any) -> dict[str, Any]:
    """Margins, font and a legend above the plot."""
    layout = {
        "height": height,
        "margin": {"l": 76, "r": 24, "t": 64, "b": 52},
        "font": {"family": FONT, "size": FONT_SIZE},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "yref": "container",
            "traceorder": "normal",
        },
        "hovermode": "closest",
    }
    layout.update(more)
    return layout


def rows_of_panels(count: int, gap: float) -> list[list[float]]:
    """The vertical domains of `count` panels, from the top down; `gap` is a share of the height."""
    height = (1 - gap * (count - 1)) / count
    tops = [1 - index * (height + gap) for index in range(count)]
    return [[max(0.0, top - height), top] for top in tops]


def axis_key(letter: str, index: int) -> str:
    """Key of the layout for the axis with this number, counted from 0: xaxis, xaxis2 ..."""
    return f"{letter}axis{index + 1}" if index else f"{letter}axis"


def axis_ref(letter: str, index: int) -> str:
    """How a trace names that axis: x, x2 ..."""
    return f"{letter}{index + 1}" if index else letter


def titled(text: str) -> dict[str, Any]:
    """An axis title, close to its ticks."""
    return {"text": text, "standoff": 6}


def panel_title(text: str, x_ref: str, y_ref: str) -> dict[str, Any]:
    """A title at the upper left edge of a panel."""
    return {
        "text": text,
        "xref": f"{x_ref} domain",
        "yref": f"{y_ref} domain",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": FONT_SIZE + 1},
    }


def window_marks(window: tuple[float, float | None] | None, end_s: float) -> list[dict[str, Any]]:
    """Vertical lines at the ends of the measured window (s) that lie inside the run."""
    ends = [] if window is None else [0.0 if end is None else end for end in window]
    return [
        {
            "type": "line",
            "xref": "x",
            "x0": end,
            "x1": end,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 1.2, "dash": "dot", "color": GREY},
        }
        for end in ends
        if 0 < end < end_s
    ]


def rounded(values: Any, digits: int) -> list[float | None]:
    """Numbers as JSON can hold them; one that is not finite is None."""
    array = np.round(np.asarray(values, dtype=float), digits)
    return [value if np.isfinite(value) else None for value in array.tolist()]


def significant(values: Any, digits: int = 4) -> list[float]:
    """Finite numbers with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=float).tolist()]


def escaped(text: str) -> str:
    """Text that plotly must not read as markup, links or its `%{...}` templates."""
    table = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "%{": "%&#123;"}
    for raw, safe in table.items():
        text = text.replace(raw, safe)
    return text


def names_once(names: Seq[str]) -> list[str]:
    """Labels that differ even where the names do not."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        labels.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return labels
