"""What the block size costs, for the lengths of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.report.block_sizes import MAX_BLOCK_SIZE, BlockSizeCurve
from kvsim.report.figures.style import (
    BLUE,
    GREY,
    VERMILLION,
    Figure,
    base_layout,
    escaped,
    panel_title,
    significant,
    titled,
)

_POWERS = [1 << power for power in range(MAX_BLOCK_SIZE.bit_length())]


def block_size_figure(
    curve: BlockSizeCurve,
    measured: Mapping[str, tuple[int, float]],
    *,
    lengths: str = "lengths of this run",
    marked: str = "paged, as simulated",
) -> Figure:
    """Empty slots and blocks per running request over the block size (tokens).

    `measured` is what paged variants show: label -> (block size up to `MAX_BLOCK_SIZE`, empty slots
    per running request). `lengths` and `marked` name the curve and these points in the legend.
    """
    data = [
        _line(f"closed form, {lengths}", curve.sizes, curve.empty_slots, BLUE, "solid"),
        _line("(block size - 1) / 2", curve.sizes, (curve.sizes - 1) / 2, GREY, "dash"),
        {
            **_line("blocks", curve.sizes, curve.blocks, BLUE, "solid"),
            "xaxis": "x2",
            "yaxis": "y2",
            "showlegend": False,
            "hovertemplate": "block size %{x}: %{y:.4g} blocks<extra></extra>",
        },
    ]
    if measured:
        data += [
            _points(measured, marked),
            _chosen(curve, sorted({size for size, _ in measured.values()})),
        ]
    axis = {
        "type": "log",
        "title": titled("block size (tokens)"),
        "tickvals": _POWERS,
        "range": [-0.03, 2.44],
    }
    layout = base_layout(400)
    layout["xaxis"] = {**axis, "domain": [0, 0.46], "anchor": "y"}
    layout["xaxis2"] = {**axis, "domain": [0.54, 1], "anchor": "y2"}
    layout["yaxis"] = {"rangemode": "tozero", "title": titled("slots")}
    layout["yaxis2"] = {"type": "log", "anchor": "x2", "title": titled("blocks"), "dtick": 1}
    layout["annotations"] = [
        panel_title("empty slots in the last block, per running request", "x", "y"),
        panel_title("blocks in the block table, per running request", "x2", "y2"),
    ]
    return {"data": data, "layout": layout}


def _line(name: str, x: Any, y: Any, color: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "x": x.tolist(),
        "y": significant(y, 5),
        "line": {"width": 2, "color": color, "dash": dash},
        "hovertemplate": "block size %{x}: %{y:.4g} slots<extra></extra>",
    }


def _points(measured: Mapping[str, tuple[int, float]], name: str) -> dict[str, Any]:
    return {
        **_markers(name),
        "x": [size for size, _ in measured.values()],
        "y": [empty for _, empty in measured.values()],
        "customdata": [escaped(label) for label in measured],
        "hovertemplate": "%{customdata}: %{y:.2f} slots<extra></extra>",
    }


def _chosen(curve: BlockSizeCurve, sizes: list[int]) -> dict[str, Any]:
    return {
        **_markers("chosen"),
        "showlegend": False,
        "x": sizes,
        "y": [float(curve.blocks[size - 1]) for size in sizes],
        "xaxis": "x2",
        "yaxis": "y2",
        "hovertemplate": "block size %{x}: %{y:.4g} blocks<extra></extra>",
    }


def _markers(name: str) -> dict[str, Any]:
    marker = {"size": 11, "color": VERMILLION, "symbol": "diamond"}
    return {"type": "scatter", "mode": "markers", "name": name, "marker": marker}
