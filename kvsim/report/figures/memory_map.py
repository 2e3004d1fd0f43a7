"""The physical memory at one moment, as lines of slots."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kvsim.report.figures.style import (
    BLUE,
    FREE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Figure,
    Ink,
    axis_key,
    axis_ref,
    base_layout,
    panel_title,
    pattern,
    titled,
)
from kvsim.report.memory_map import NOBODY, Cell, Segment, coarse, cut, lines, segments, window

INKS: Mapping[str, tuple[str, Ink]] = {
    "live": ("live", Ink(BLUE, "")),
    "shared": ("live, shared by several requests", Ink("#F0E442", ".")),
    "reservation": ("reservation", Ink(SKY, "/")),
    "internal_tail": ("internal: tail", Ink(PURPLE, "-")),
    "over_reservation": ("internal: over-reservation", Ink(ORANGE, "x")),
    "roundup": ("internal: roundup", Ink(GREEN, "\\")),
    "external": ("external: holes too small", Ink(VERMILLION, "+")),
    "free": ("free", Ink(FREE, "")),
    "not_listed": ("held, holder not listed", Ink(GREY, "|")),
}
"""Use (`memory_map.USES`) -> label and ink; the terms have the inks of the other figures."""

HIGHLIGHT = "held by the chosen request"
_OUTLINE, _DIMMED = 2.5, 0.3
LINES, COARSE_LINES, DETAIL_LINES = 24, 12, 8
_DETAIL_BLOCKS = 128
_USES_PER_CELL = 2.5
_THICKNESS = 0.86


class MapDrawing(NamedTuple):
    """A map and what its reader must know."""

    figure: Figure
    cell: int
    """Slots of a cell of the overview; 1 where every slot is drawn."""
    detail: tuple[int, int] | None
    """First slot and end of the magnified part; None where the overview shows every slot."""


class _Held:
    """The slots of the chosen requests, shared ones included."""

    def __init__(self, snapshot: Mapping[str, Any], holders: Collection[int]) -> None:
        extents = (one for index in holders for one in snapshot["requests"][index]["extents"])
        self.numbers = [index + 1 for index in holders]
        self.parts: list[Segment] = []
        reached = 0
        for start, slots in sorted(extents):
            first, end = max(start, reached), start + slots
            if first < end:
                self.parts.append(Segment(first, end - first, HIGHLIGHT, NOBODY))
                reached = end
        self._starts = [one.start for one in self.parts]

    def slots(self, start: int, slots: int) -> int:
        """How many of these slots they hold."""
        end, total = start + slots, 0
        first = max(0, bisect_right(self._starts, start) - 1)
        for one in self.parts[first : bisect_left(self._starts, end)]:
            total += max(0, min(end, one.start + one.slots) - max(start, one.start))
        return total

    def opacity(self, start: int, slots: int) -> float:
        """Of a place in a map with a highlight."""
        return 1.0 if not self.numbers or self.slots(start, slots) else _DIMMED


def memory_map_figure(
    snapshot: Mapping[str, Any],
    *,
    kind: str,
    capacity: int,
    block_size: int,
    max_pieces: int,
    highlight: Collection[int] = (),
) -> MapDrawing:
    """All slots in address order, line by line.

    `snapshot` is one of `SnapshotRecorder.snapshots`. Where the overview would have more than
    `max_pieces` pieces it is drawn in cells, whose height is divided among the uses, with a stretch
    below in which every slot is to scale. Pieces are labelled with their request: its place in the
    snapshot, counted from 1. What the requests of `highlight` (places, counted from 0) hold is
    outlined, the rest is dimmed, and the magnified stretch is one of theirs.
    """
    parts = segments(snapshot, kind=kind, capacity=capacity)
    held = _Held(snapshot, highlight)
    layout = base_layout(620, barmode="overlay", annotations=[])
    layout["margin"]["t"] = 84
    layout["uniformtext"] = {"mode": "hide", "minsize": 9}
    figure: Figure = {"data": [], "layout": layout}
    width = _whole_blocks(-(-capacity // LINES), block_size)
    overview = list(lines(parts, width, 0))
    cell, detail = 1, None
    if len(overview) > max_pieces:
        per_line = max(1, round(max_pieces / _USES_PER_CELL / COARSE_LINES))
        cell = _whole_blocks(-(-capacity // (COARSE_LINES * per_line)), block_size)
        width = per_line * cell
        detail = _detail(held.parts or parts, capacity, block_size)
        cells = coarse(parts, cell)
        figure["data"] += [*_cells(cells, width, held), *_outlined_cells(cells, width, held)]
        _add_detail(figure, parts, detail, held)
    else:
        figure["data"] += [*_pieces(overview, 0, width, 0, held), *_outlined(held, 0, width, 0)]
    layout[axis_key("y", 0)] = _line_axis(
        -(-capacity // width), width, 0, [0.42 if detail else 0, 1]
    )
    layout[axis_key("x", 0)] = _slot_axis(width, "y")
    title = f"all {capacity:,} slots, {width:,} per line"
    layout["annotations"].append(panel_title(title, "x", "y"))
    _show_each_use_once(figure["data"])
    return MapDrawing(figure, cell, detail)


def _detail(parts: list[Segment], capacity: int, block_size: int) -> tuple[int, int]:
    slots = min(4096, max(256, _DETAIL_BLOCKS * block_size))
    start = window(parts, slots)
    return start, min(start + slots, capacity)


def _add_detail(figure: Figure, parts: list[Segment], detail: tuple[int, int], held: _Held) -> None:
    start, end = detail
    width = -(-(end - start) // DETAIL_LINES)
    layout = figure["layout"]
    layout["height"] = 740
    pieces = list(lines(cut(parts, start, end), width, start))
    figure["data"] += _pieces(pieces, 1, width, start, held)
    figure["data"] += _outlined(held, 1, width, start, end)
    layout[axis_key("y", 1)] = _line_axis(DETAIL_LINES, width, start, [0, 0.28])
    layout[axis_key("x", 1)] = _slot_axis(width, "y2")
    title = f"slots {start:,} to {end - 1:,} magnified, {width:,} per line, every slot to scale"
    layout["annotations"].append(panel_title(title, "x2", "y2"))


def _whole_blocks(slots: int, block_size: int) -> int:
    return max(1, -(-slots // block_size) * block_size)


def _pieces(
    pieces: list[tuple[int, Segment]], panel: int, width: int, first: int, held: _Held
) -> list[dict[str, Any]]:
    """Every slot to scale: a piece is a horizontal bar on its line."""
    traces = []
    for use in INKS:
        chosen = [(line, one) for line, one in pieces if one.use == use]
        if not chosen:
            continue
        trace = _bars(use, panel)
        trace["orientation"] = "h"
        trace["width"] = _THICKNESS
        trace["base"] = [one.start - first - line * width for line, one in chosen]
        trace["x"] = [one.slots for _, one in chosen]
        trace["y"] = [line for line, _ in chosen]
        if held.numbers:
            trace["marker"]["opacity"] = [held.opacity(one.start, one.slots) for _, one in chosen]
        if any(one.holder != NOBODY for _, one in chosen):
            trace["customdata"] = [one.holder + 1 for _, one in chosen]
            trace["hovertemplate"] = f"{INKS[use][0]}, request #%{{customdata}}<extra></extra>"
        if use == "live":
            trace |= _LABELS
        traces.append(trace)
    return traces


_LABELS: Mapping[str, Any] = {
    "texttemplate": "#%{customdata}",
    "textposition": "inside",
    "insidetextanchor": "start",
    "textangle": 0,
    "insidetextfont": {"size": 10, "color": "#ffffff"},
}


def _outlined(
    held: _Held, panel: int, width: int, first: int, end: int | None = None
) -> list[dict[str, Any]]:
    """The pieces of the highlight: an outline, with nothing to hover over."""
    parts = held.parts if end is None else cut(held.parts, first, end)
    pieces = list(lines(parts, width, first))
    if not pieces:
        return []
    trace = _outline(panel)
    trace["orientation"] = "h"
    trace["width"] = _THICKNESS
    trace["base"] = [one.start - first - line * width for line, one in pieces]
    trace["x"] = [one.slots for _, one in pieces]
    trace["y"] = [line for line, _ in pieces]
    return [trace]


def _outlined_cells(cells: list[Cell], width: int, held: _Held) -> list[dict[str, Any]]:
    """The cells of the overview in which the highlight holds slots."""
    if not held.parts:
        return []
    found = [(one, held.slots(one.start, one.slots)) for one in cells]
    chosen = [(one, count) for one, count in found if count]
    trace = _outline(0)
    trace["x"] = [one.start % width + one.slots / 2 for one, _ in chosen]
    trace["width"] = [one.slots for one, _ in chosen]
    trace["base"] = [one.start // width + _THICKNESS / 2 for one, _ in chosen]
    trace["y"] = [-_THICKNESS] * len(chosen)
    trace["customdata"] = [count for _, count in chosen]
    return [trace]


def _outline(panel: int) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": HIGHLIGHT,
        "legendgroup": HIGHLIGHT,
        "xaxis": axis_ref("x", panel),
        "yaxis": axis_ref("y", panel),
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": _OUTLINE, "color": VERMILLION}},
        "hoverinfo": "skip",
    }


def _cells(cells: list[Cell], width: int, held: _Held) -> list[dict[str, Any]]:
    """A cell is a column on its line; its height is divided among the uses."""
    traces = {use: _bars(use, 0) for use in INKS}
    for trace in traces.values():
        trace.update({name: [] for name in ("x", "y", "base", "width", "customdata")})
        trace["marker"]["line"]["width"] = 0
        trace["hovertemplate"] = f"{trace['name']}: %{{customdata}} slots<extra></extra>"
        if held.numbers:
            trace["marker"]["opacity"] = []
    for cell in cells:
        opacity = held.opacity(cell.start, cell.slots)
        line, offset = divmod(cell.start, width)
        bottom = line + _THICKNESS / 2
        for use, trace in traces.items():
            count = cell.uses.get(use, 0)
            if not count:
                continue
            height = _THICKNESS * count / cell.slots
            trace["x"].append(offset + cell.slots / 2)
            trace["width"].append(cell.slots)
            trace["base"].append(round(bottom, 4))
            trace["y"].append(round(-height, 4))
            trace["customdata"].append(count)
            if held.numbers:
                trace["marker"]["opacity"].append(opacity)
            bottom -= height
    return [trace for trace in traces.values() if trace["x"]]


def _bars(use: str, panel: int) -> dict[str, Any]:
    label, ink = INKS[use]
    return {
        "type": "bar",
        "name": label,
        "legendgroup": use,
        "xaxis": axis_ref("x", panel),
        "yaxis": axis_ref("y", panel),
        "marker": {
            "color": ink.color,
            "pattern": pattern(ink),
            "line": {"width": 0.6, "color": "rgba(255,255,255,0.85)"},
        },
        "hovertemplate": f"{label}<extra></extra>",
    }


def _line_axis(count: int, width: int, start: int, domain: list[float]) -> dict[str, Any]:
    every = max(1, count // 6)
    shown = range(0, count, every)
    return {
        "domain": domain,
        "range": [count - 0.5, -0.5],
        "tickvals": list(shown),
        "ticktext": [f"{start + line * width:,}" for line in shown],
        "title": titled("first slot"),
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def _slot_axis(width: int, anchor: str) -> dict[str, Any]:
    return {
        "range": [0, width],
        "anchor": anchor,
        "title": titled("slots from the first one of the line"),
        "showgrid": False,
        "zeroline": False,
    }


def _show_each_use_once(data: list[dict[str, Any]]) -> None:
    shown: set[str] = set()
    for trace in data:
        trace["showlegend"] = trace["legendgroup"] not in shown
        shown.add(trace["legendgroup"])
