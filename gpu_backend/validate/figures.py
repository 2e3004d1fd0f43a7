"""Figures of a validation: a document's numbers as plotly figures (`kvsim.report.figures.style`).

The measured side is always blue and solid, the simulated side vermillion and dashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log10
from typing import Any

import numpy as np

from kvsim.report.figures.style import (
    BLUE,
    FONT_SIZE,
    GREY,
    VERMILLION,
    Figure,
    axis_ref,
    base_layout,
    escaped,
    panel_title,
    rounded,
    rows_of_panels,
    significant,
    titled,
)
from kvsim.report.text import plain

KINDS = {"all": "all steps", "decode": "decode-only steps", "prefill": "steps with prefill"}
"""Kind of step in a document -> its name on the page."""

_LEFT, _RIGHT = [0.0, 0.45], [0.55, 1.0]
_MARKS = (
    ("decode", BLUE, "circle", "solid", 5, 0.45),
    ("prefill", VERMILLION, "diamond", "dash", 9, 0.9),
)
_SIDES = (("measured", BLUE, "solid"), ("simulated", VERMILLION, "dash"))
SHARES = {"median": 50, "p90": 90}
"""Percent of the steps that a bound speaks of."""
_CDF_POINTS = 200


def lockstep_figure(lockstep: Mapping[str, Any]) -> Figure:
    """Left: predicted over measured step times (ms); right: share of steps (%) by error (%).

    `lockstep` is the entry of a variant: `points` [measured s, predicted s, 1 with prefill], and
    `noise` and `bounds` by kind of step, as fractions.
    """
    points = _drawable(lockstep["points"])
    times = points[:, :2] * 1e3
    low = float(times.min()) * 0.9 if times.size else 0.1
    high = float(times.max()) * 1.1 if times.size else 10.0
    bound = lockstep["bounds"]["all"]["median"]
    noise = lockstep["noise"]["all"]
    data = [*_band(low, high, bound), *_scatter(points), *_curves(points, lockstep["bounds"])]
    end = _error_end(points, lockstep["bounds"], noise)
    layout = base_layout(460, shapes=[], annotations=[])
    layout["margin"]["t"] = 92
    times_axis = {"type": "log", "range": [log10(low), log10(high)], **_log_ticks(low, high)}
    layout["xaxis"] = _axis("measured (ms)", domain=_LEFT, **times_axis)
    layout["yaxis"] = _axis("predicted (ms)", **times_axis)
    errors = {"domain": _RIGHT, "anchor": "y2", "range": [0, 100 * end]}
    layout["xaxis2"] = _axis("size of the relative error (%)", **errors)
    layout["yaxis2"] = _axis("steps (%)", anchor="x2", range=[0, 101])
    layout["annotations"] += [
        panel_title("step time", "x", "y"),
        panel_title("steps with at most this error", "x2", "y2"),
    ]
    for name, height in (("median", 0.02), ("p90", 0.11)):
        layout["shapes"].append(_upright(100 * noise[name]))
        layout["annotations"].append(_noise_text(name, noise[name], height))
    return {"data": data, "layout": layout}


def step_error_figure(lockstep: Mapping[str, Any]) -> Figure:
    """Relative error (%) of the predicted time of each step, over the steps in their order.

    `lockstep` as for `lockstep_figure`; its `points` are spread evenly over its `steps`. The band
    is the bound of the median of all steps, lines are that of their 90th percentile.
    """
    count, last = len(lockstep["points"]), max(lockstep["steps"] - 1, 1)
    numbers = np.linspace(0, last, count) if count > 1 else np.zeros(count)
    points = np.array(lockstep["points"], dtype=float).reshape(-1, 3)
    kept = (points[:, 0] > 0) & np.isfinite(points).all(axis=1)
    points, numbers = points[kept], numbers[kept]
    errors = 100 * (points[:, 1] / points[:, 0] - 1)
    bounds = {share: 100 * bound for share, bound in lockstep["bounds"]["all"].items()}
    layout = base_layout(360, shapes=_error_bounds(bounds))
    layout["xaxis"] = _axis("step", range=[-0.01 * last, 1.01 * last])
    end = max(1.1 * max(bounds.values()), 1.3 * _usual(np.abs(errors)))
    layout["yaxis"] = _axis("error of the predicted time (%)", range=[-end, end])
    data = []
    for kind, color, symbol, _, size, opacity in _MARKS:
        chosen = _of_kind(points, kind)
        if chosen.any():
            data.append(
                {
                    "type": "scatter",
                    "name": KINDS[kind],
                    "mode": "markers",
                    "x": rounded(numbers[chosen], 0),
                    "y": rounded(errors[chosen], 2),
                    "marker": {"color": color, "symbol": symbol, "size": size, "opacity": opacity},
                    "hovertemplate": "step %{x:,.0f}: %{y:+.1f} %<extra></extra>",
                }
            )
    return {"data": data, "layout": layout}


def _error_bounds(bounds: Mapping[str, float]) -> list[dict[str, Any]]:
    """A band for the median's bound (%), lines for the 90th percentile's."""
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
    band = {"fillcolor": "rgba(138,138,138,0.28)", "line": {"width": 0}, "layer": "below"}
    shapes: list[dict[str, Any]] = [
        {"type": "rect", **across, "y0": -bounds["median"], "y1": bounds["median"], **band}
    ]
    for sign in (-1, 1) if "p90" in bounds else ():
        at, line = sign * bounds["p90"], {"width": 1.4, "dash": "dot", "color": GREY}
        shapes.append({"type": "line", **across, "y0": at, "y1": at, "line": line})
    return shapes


def _usual(sizes: Any) -> float:
    """The size that 99 % do not exceed: far outliers would flatten the rest."""
    return float(np.quantile(sizes, 0.99)) if sizes.size else 0.0


def free_figure(load: Mapping[str, Any]) -> Figure:
    """How both sides' KV usage (%) is distributed, and it and the batch over time (s).

    `load` is the entry of a load: `usage_shares` and `curves` by side.
    """
    data: list[dict[str, Any]] = []
    for side, color, dash in _SIDES:
        look = {"name": side, "legendgroup": side}
        line = {"color": color, "dash": dash}
        data.append(_distribution(load["usage_shares"][side], look, line))
        data += _over_time(load["curves"][side], look, line)
    return {"data": data, "layout": _free_layout()}


def saturation_figure(rates: Mapping[str, Mapping[str, float]]) -> Figure:
    """Bars of the measured and the simulated saturation rate (requests/s) of every variant."""
    data = [
        {
            "type": "bar",
            "name": side,
            "x": list(range(len(rates))),
            "y": significant([rate[side] for rate in rates.values()]),
            "marker": {"color": color, "pattern": {"shape": "/" if dash != "solid" else ""}},
            "texttemplate": "%{y:.2f}",
            "textposition": "outside",
            "cliponaxis": False,
            "customdata": [escaped(plain(name)) for name in rates],
            "hovertemplate": f"%{{customdata}}, {side}: %{{y:.4g}} requests/s<extra></extra>",
        }
        for side, color, dash in _SIDES
    ]
    layout = base_layout(340, barmode="group", bargap=0.35)
    layout["xaxis"] = {
        "tickvals": list(range(len(rates))),
        "ticktext": [escaped(plain(name, 25)) for name in rates],
    }
    layout["yaxis"] = {"rangemode": "tozero", "title": titled("requests/s")}
    return {"data": data, "layout": layout}


def _drawable(points: Sequence[Sequence[float]]) -> Any:
    kept = [point for point in points if all(isfinite(t) and t > 0 for t in point[:2])]
    return np.array(kept, dtype=float).reshape(-1, 3)


def _band(low: float, high: float, bound: float) -> list[dict[str, Any]]:
    """The diagonal and the predictions around it that are off by at most `bound` (fraction)."""
    upper, lower = 1 + bound, max(1 - bound, 0.01)
    return [
        {
            "type": "scatter",
            "name": f"± bound of the median, {100 * bound:.1f} %",
            "mode": "lines",
            "x": significant([low, high, high, low]),
            "y": significant([low * upper, high * upper, high * lower, low * lower]),
            "fill": "toself",
            "fillcolor": "rgba(138,138,138,0.28)",
            "line": {"width": 0},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "name": "predicted = measured",
            "mode": "lines",
            "x": significant([low, high]),
            "y": significant([low, high]),
            "line": {"width": 1.2, "color": GREY},
            "hoverinfo": "skip",
        },
    ]


def _scatter(points: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "name": KINDS[kind],
            "legendgroup": kind,
            "mode": "markers",
            "x": significant(points[_of_kind(points, kind), 0] * 1e3),
            "y": significant(points[_of_kind(points, kind), 1] * 1e3),
            "marker": {"color": color, "symbol": symbol, "size": size, "opacity": opacity},
            "hovertemplate": "measured %{x:.4g} ms, predicted %{y:.4g} ms<extra></extra>",
        }
        for kind, color, symbol, _, size, opacity in _MARKS
        if _of_kind(points, kind).any()
    ]


def _of_kind(points: Any, kind: str) -> Any:
    return points[:, 2].astype(bool) == (kind == "prefill")


def _curves(points: Any, bounds: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Cumulative distributions by kind of step, and where each must have passed by."""
    shares = np.linspace(0, 1, _CDF_POINTS + 1)
    traces: list[dict[str, Any]] = []
    for kind, color, symbol, dash, *_ in _MARKS:
        chosen = points[_of_kind(points, kind)]
        if not len(chosen):
            continue
        sizes = np.abs(chosen[:, 1] / chosen[:, 0] - 1)
        look: dict[str, Any] = {"legendgroup": kind, "xaxis": "x2", "yaxis": "y2"}
        hover = f"{KINDS[kind]}: %{{y:.1f}} % within %{{x:.2f}} %<extra></extra>"
        traces.append(
            {
                **_line({**look, "showlegend": False}, {"color": color, "dash": dash}),
                "x": rounded(100 * np.quantile(sizes, shares), 3),
                "y": rounded(100 * shares, 1),
                "hovertemplate": hover,
            }
        )
        held = {share: at for share, at in SHARES.items() if share in bounds.get(kind, {})}
        if held:
            ring = {"symbol": f"{symbol}-open", "size": 12, "line": {"width": 2.5}}
            traces.append(
                {
                    **look,
                    "type": "scatter",
                    "name": f"bounds, {KINDS[kind]}",
                    "mode": "markers",
                    "x": rounded([100 * bounds[kind][share] for share in held], 2),
                    "y": list(held.values()),
                    "marker": {"color": color, **ring},
                    "hovertemplate": "%{y} % must be within %{x:.1f} %<extra></extra>",
                }
            )
    return traces


def _error_end(points: Any, bounds: Mapping[str, Mapping[str, float]], noise: Any) -> float:
    """Right end of the errors' axis, as a fraction: the bounds are seen, far outliers are not."""
    sizes = np.abs(points[:, 1] / points[:, 0] - 1)
    usual = float(np.quantile(sizes, 0.95)) if sizes.size else 0.0
    stated = max(float(bound) for one in bounds.values() for bound in one.values())
    return max(1.3 * usual, 1.1 * stated, 1.7 * float(noise["p90"]))


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    digits = (1,) if high > 300 * low else (1, 2, 5)
    powers = range(int(np.floor(log10(low))), int(np.ceil(log10(high))) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < 2:
        return {}
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _upright(x: float) -> dict[str, Any]:
    line = {"width": 1.4, "dash": "dot", "color": GREY}
    ends = {"x0": x, "x1": x, "y0": 0, "y1": 1}
    return {"type": "line", "xref": "x2", "yref": "y2 domain", **ends, "line": line}


def _noise_text(name: str, value: float, height: float) -> dict[str, Any]:
    text = panel_title(f"noise {name} {100 * value:.1f} %", "x2", "y2")
    size = {"size": FONT_SIZE}
    return {**text, "xref": "x2", "x": 100 * value, "xshift": 4, "y": height, "font": size}


def _line(look: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **look,
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 1.8, "shape": "hv", **line},
    }


def _distribution(
    shares: Sequence[float], look: Mapping[str, Any], line: Mapping[str, Any]
) -> dict[str, Any]:
    """Bars for the measured side, the outline of bars for the simulated one."""
    width = 100 / max(len(shares), 1)
    heights = rounded([100 * share for share in shares], 2)
    hover = f"{look['name']}: %{{y:.1f}} % of the busy time<extra></extra>"
    common = {**look, "showlegend": False, "hovertemplate": hover}
    if look["name"] == "simulated":
        edges = rounded([place * width for place in range(len(shares) + 1)], 3)
        return {**_line(common, line), "x": edges, "y": [*heights, *heights[-1:]]}
    middles = rounded([(place + 0.5) * width for place in range(len(shares))], 3)
    marker = {"color": line["color"], "opacity": 0.45}
    return {**common, "type": "bar", "x": middles, "y": heights, "width": width, "marker": marker}


def _over_time(
    curve: Sequence[Sequence[float]], look: Mapping[str, Any], line: Mapping[str, Any]
) -> list[dict[str, Any]]:
    seconds = significant([point[0] for point in curve], 6)
    usage = rounded([100 * point[1] for point in curve], 2)
    running = rounded([point[2] for point in curve], 2)
    return [
        {
            **_line(look, line),
            "showlegend": panel == 1,
            "x": seconds,
            "y": values,
            "xaxis": "x2",
            "yaxis": axis_ref("y", panel),
            "hovertemplate": f"{look['name']} at %{{x:.4g}} s: {shown}<extra></extra>",
        }
        for panel, values, shown in (
            (1, usage, "%{y:.1f} % of the KV memory"),
            (2, running, "%{y:.0f} requests"),
        )
    ]


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": titled(title), **more}


def _free_layout() -> dict[str, Any]:
    layout = base_layout(460, bargap=0)
    upper, lower = rows_of_panels(2, gap=0.18)
    layout["xaxis"] = _axis("KV usage (% of the capacity)", domain=_LEFT, range=[0, 100])
    layout["yaxis"] = _axis("busy time (%)", rangemode="tozero")
    time = {"domain": _RIGHT, "anchor": "y3", "rangemode": "tozero"}
    layout["xaxis2"] = _axis("time since the first arrival (s)", **time)
    layout["yaxis2"] = _axis("% of capacity", domain=upper, anchor="x2", range=[0, 103])
    layout["yaxis3"] = _axis("requests", domain=lower, anchor="x2", rangemode="tozero")
    titles = ("KV usage, all seeds", "KV usage over time, first seed", "running, first seed")
    refs = (("x", "y"), ("x2", "y2"), ("x2", "y3"))
    layout["annotations"] = [panel_title(t, *ref) for t, ref in zip(titles, refs, strict=True)]
    return layout
