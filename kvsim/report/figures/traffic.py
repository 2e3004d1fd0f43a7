"""What a workload asks for: arrivals, lengths, gaps, conversations."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.report.figures.style import (
    BLUE,
    GREY,
    VERMILLION,
    Figure,
    base_layout,
    panel_title,
    significant,
    titled,
)
from kvsim.report.quantiles import distribution
from kvsim.workload.demand import Demand, Intervals, Sessions

PERCENTILES = (50, 90, 99)
DENSITY_BINS = 48
_SYMBOLS = ("circle", "square", "diamond")


def arrivals_figure(found: Intervals) -> Figure:
    """Requests per interval, and the tokens that they ask for per second, over time (s)."""
    count = len(found.requests)
    starts = found.start_s + found.width_s * np.arange(count)
    x = significant(starts + found.width_s / 2, 9)
    bars = {
        "type": "bar",
        "name": "requests",
        "x": x,
        "y": found.requests.tolist(),
        "width": found.width_s,
        "marker": {"color": BLUE, "line": {"width": 0}},
        "showlegend": False,
        "hovertemplate": "around %{x:.6~g} s: %{y} requests<extra></extra>",
    }
    tokens = [
        _rate("prompt tokens", x, found.prompt_tokens / found.width_s, BLUE, "solid"),
        _rate("output tokens", x, found.output_tokens / found.width_s, VERMILLION, "dot"),
    ]
    layout = base_layout(460, bargap=0)
    span = [float(starts[0]), float(starts[-1] + found.width_s)]
    layout["xaxis"] = {"anchor": "y", "matches": "x2", "range": span, "showticklabels": False}
    layout["xaxis2"] = {"anchor": "y2", "range": span, "title": titled("arrival (s)")}
    layout["yaxis"] = {"domain": [0.58, 1], "rangemode": "tozero", "title": titled("requests")}
    layout["yaxis2"] = {"domain": [0, 0.42], "rangemode": "tozero", "title": titled("tokens/s")}
    layout["annotations"] = [
        panel_title(f"arrivals per {interval_text(found.width_s)}", "x", "y"),
        panel_title("tokens asked for, per second of arrivals", "x2", "y2"),
    ]
    return {"data": [bars, *tokens], "layout": layout}


def interval_text(seconds: float) -> str:
    """A width of time in the unit in which it is a small number."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} µs"


def lengths_figure(demand: Demand) -> Figure:
    """Cumulative distributions of prompt and output tokens, with their percentiles marked."""
    prompt, output = demand.prompt_tokens, demand.output_tokens
    prompt_marks, output_marks = (np.percentile(one, PERCENTILES) for one in (prompt, output))
    hover = "%{y:.3~f} %: at most %{x:,} tokens"
    data = [
        _cumulative("prompt", prompt, BLUE, "solid", hover),
        _percentiles("prompt", prompt_marks, BLUE, prompt_marks < output_marks),
        _cumulative("output", output, VERMILLION, "dash", hover),
        _percentiles("output", output_marks, VERMILLION, output_marks <= prompt_marks),
    ]
    layout = base_layout(400)
    both = np.concatenate([prompt, output])
    layout["xaxis"] = _log_axis("tokens", both.min(), both.max())
    layout["xaxis"]["range"][1] += 0.12 * (
        layout["xaxis"]["range"][1] - layout["xaxis"]["range"][0]
    )
    layout["yaxis"] = {"title": titled("requests (%)"), "range": [0, 107]}
    return {"data": data, "layout": layout}


def density_figure(demand: Demand) -> Figure:
    """Requests by prompt and output tokens, in at most 48 x 48 cells of even logarithmic size."""
    edges = [_edges(values) for values in (demand.prompt_tokens, demand.output_tokens)]
    counts, _, _ = np.histogram2d(demand.prompt_tokens, demand.output_tokens, bins=edges)
    cells = counts.T.astype(np.int64)
    labels = [
        [f"{low:,}" if high - low == 1 else f"{low:,} to {high - 1:,}" for low, high in pairs]
        for pairs in (zip(axis[:-1].tolist(), axis[1:].tolist(), strict=True) for axis in edges)
    ]
    heat = {
        "type": "heatmap",
        "x": significant(np.log10(edges[0] - 0.5), 6),
        "y": significant(np.log10(edges[1] - 0.5), 6),
        "z": [[float(f"{np.log10(n):.4f}") if n else None for n in row] for row in cells.tolist()],
        "customdata": [
            [[n, x, y] for n, x in zip(row, labels[0], strict=True)]
            for row, y in zip(cells.tolist(), labels[1], strict=True)
        ],
        "colorscale": "Cividis",
        "hoverongaps": False,
        "colorbar": {"title": {"text": "requests"}, **_ticks(1, cells.max())},
        "hovertemplate": "%{customdata[0]} requests<br>prompt %{customdata[1]} tokens<br>"
        "output %{customdata[2]} tokens<extra></extra>",
    }
    layout = base_layout(420)
    layout["margin"]["t"] = 24
    for key, name, axis in (("xaxis", "prompt", edges[0]), ("yaxis", "output", edges[1])):
        layout[key] = {"title": titled(f"{name} tokens"), **_ticks(axis[0], axis[-1])}
    return {"data": [heat], "layout": layout}


def gaps_figure(demand: Demand) -> Figure | None:
    """The gaps between arrivals (s) against those of a Poisson process of the same rate.

    Shorter gaps than the axis shows, 0 among them, stand at its left end. None without two requests
    that arrive at different times.
    """
    if demand.arrivals_ns is None or len(demand) < 2:
        return None
    gaps = np.diff(demand.arrivals_ns) / 1e9
    mean = float(gaps.mean())
    positive = gaps[gaps > 0]
    if not len(positive):
        return None
    floor = max(min(float(positive.min()), mean / 100), mean / 1e5)
    top = max(float(positive.max()), 10 * mean)
    grid = np.geomspace(floor, top, 120)
    exponential = {
        **_line("exponential, same mean", grid, 100 * -np.expm1(-grid / mean), GREY, "dash"),
        "hovertemplate": "%{y:.4~g} %: at most %{x:.4~g} s<extra>exponential</extra>",
    }
    zero = float((gaps == 0).mean())
    name = f"gaps, {zero:.1%} of them 0 s" if zero else "gaps"
    hover = "%{y:.4~g} %: at most %{x:.4~g} s"
    found = _cumulative(name, np.maximum(gaps, floor), BLUE, "solid", hover)
    layout = base_layout(400)
    layout["xaxis"] = _log_axis("gap to the next arrival (s)", floor, top)
    layout["yaxis"] = {"title": titled("gaps (%)"), "range": [0, 101]}
    return {"data": [found, exponential], "layout": layout}


def sessions_figure(sessions: Sessions) -> Figure:
    """How many requests a session has, and how long after one the next one comes (s)."""
    turns, counts = np.unique(sessions.turns, return_counts=True)
    bars = {
        "type": "bar",
        "name": "sessions",
        "x": turns.tolist(),
        "y": counts.tolist(),
        "marker": {"color": BLUE},
        "showlegend": False,
        "hovertemplate": "%{x} requests: %{y} sessions<extra></extra>",
    }
    data = [bars]
    layout = base_layout(400)
    layout["margin"]["t"] = 36
    think = sessions.think_s[sessions.think_s > 0]
    layout["xaxis"] = {"anchor": "y", "title": titled("requests of a session")}
    layout["yaxis"] = {"rangemode": "tozero", "title": titled("sessions")}
    layout["annotations"] = [panel_title("turns", "x", "y")]
    if len(think):
        hover = "%{y:.4~g} %: at most %{x:.4~g} s"
        line = _cumulative("think time", think, VERMILLION, "solid", hover)
        data.append({**line, "xaxis": "x2", "yaxis": "y2", "showlegend": False})
        layout["yaxis"]["domain"] = [0.64, 1]
        layout["xaxis2"] = _log_axis("to the session's next request (s)", think.min(), think.max())
        layout["xaxis2"]["anchor"] = "y2"
        layout["yaxis2"] = {
            "domain": [0, 0.36],
            "anchor": "x2",
            "range": [0, 101],
            "title": titled("requests (%)"),
        }
        layout["annotations"].append(panel_title("think time", "x2", "y2"))
    return {"data": data, "layout": layout}


def _rate(name: str, x: list[float], y: Any, color: str, dash: str) -> dict[str, Any]:
    return {
        **_line(name, x, y, color, dash),
        "line": {"width": 1.6, "color": color, "dash": dash, "shape": "hvh"},
        "xaxis": "x2",
        "yaxis": "y2",
        "hovertemplate": f"around %{{x:.6~g}} s: %{{y:,.4~g}} {name}/s<extra></extra>",
    }


def _line(name: str, x: Any, y: Any, color: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x if isinstance(x, list) else significant(x, 6),
        "y": significant(y, 6),
        "line": {"width": 2, "color": color, "dash": dash},
    }


def _cumulative(name: str, values: Any, color: str, dash: str, hover: str) -> dict[str, Any]:
    """Of at most 200 points, each of them exact."""
    steps = distribution(values)
    assert steps is not None
    line = _line(name, steps.seconds, 100 * steps.share, color, dash)
    line["line"]["shape"] = "hv"
    return {**line, "hovertemplate": f"{hover}<extra>{name}</extra>"}


def _percentiles(name: str, found: Any, color: str, is_left: Any) -> dict[str, Any]:
    """Marks; labels stand on the side where the other curve is not."""
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": f"{name}: p50, p90, p99",
        "x": significant(found, 6),
        "y": list(PERCENTILES),
        "text": [f"{value:,.0f}" for value in found.tolist()],
        "textposition": ["top left" if left else "bottom right" for left in is_left],
        "marker": {"size": 9, "color": color, "symbol": list(_SYMBOLS)},
        "customdata": list(PERCENTILES),
        "hovertemplate": f"{name} p%{{customdata}}: %{{x:,.4~g}} tokens<extra></extra>",
        "showlegend": False,
    }


def _edges(values: Any) -> Any:
    """Whole-number edges, every cell with at least one whole number in it."""
    low, high = int(values.min()), int(values.max()) + 1
    return np.unique(np.ceil(np.geomspace(low, high, DENSITY_BINS + 1) - 1e-9).astype(np.int64))


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks of an axis in decimal logarithms: as few round numbers as tell where one is."""
    values = _round_numbers(float(low), float(high))
    return {
        "tickvals": significant(np.log10(values), 6),
        "ticktext": [_compact(value) for value in values],
    }


def _log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis from `low` to `high` with round numbers that are written out."""
    low, high = float(low), max(float(high), float(low) * 1.01)
    values = _round_numbers(low, high)
    margin = 0.03 * float(np.log10(high / low))
    return {
        "type": "log",
        "title": titled(title),
        "tickvals": values,
        "ticktext": [_compact(value) for value in values],
        "range": [float(np.log10(low)) - margin, float(np.log10(high)) + margin],
    }


def _compact(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def _round_numbers(low: float, high: float) -> list[float]:
    """Powers of ten within the limits, with 2 and 5 times them where there are few."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    found = [low, high]
    for digits in ((1,), (1, 3), (1, 2, 5)):
        exact = [float(f"{digit}e{power}") for power in powers for digit in digits]
        inside = [value for value in exact if low <= value <= high]
        if inside:
            found = inside
        if len(inside) >= 3:
            break
    return found
