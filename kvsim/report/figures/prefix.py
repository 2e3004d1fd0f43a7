"""How much a prefix cache finds, by its capacity and by its block size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvsim.report.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Figure,
    base_layout,
    panel_title,
    significant,
    titled,
)
from kvsim.workload.prefix.rounding import Rounding

_TICKS = (1, 2, 5)
_MAX_TICKS = 9


def prefix_figure(document: Mapping[str, Any]) -> Figure:
    """Hit rate (% of all prompt tokens) over capacity in tokens, and GiB where they are known.

    `document` is `prefix_document`'s.
    """
    rows, total = document["capacities"], document["prompt_tokens"]
    x = [row["tokens"] for row in rows]
    lru = [100 * row["lru"]["hit_rate"] for row in rows]
    data = [_line("LRU", x, lru, BLUE, "solid", "lines+markers")]
    best = [row for row in rows if row["best_hit_rate"] is not None]
    if best:
        rates = [100 * row["best_hit_rate"] for row in best]
        tokens = [row["tokens"] for row in best]
        data.append(_line("best possible (Belady)", tokens, rates, GREEN, "dot", "lines+markers"))
    bound = 100 * document["bound"]["hit_tokens"] / total
    data.append(_line("without eviction", [x[0], x[-1]], [bound, bound], GREY, "dash", "lines"))
    layout = base_layout(420)
    per_token = _gib_per_token(rows)
    layout["margin"]["b"] = 72 if per_token else 52
    unit = "capacity (tokens, GiB of KV below)" if per_token else "capacity (tokens)"
    layout["xaxis"] = {"type": "log", "title": titled(unit), **_capacity_ticks(x, per_token)}
    top = max(bound, *lru, 1.0)
    layout["yaxis"] = {
        "title": titled("prompt tokens found (%)"),
        "range": [0, min(101, 1.15 * top)],
    }
    return {"data": data, "layout": layout}


def rounding_figure(rows: Sequence[Rounding], prompt_tokens: int) -> Figure:
    """Prompt tokens lost to whole blocks, over the block size (tokens).

    `prompt_tokens` are those of all requests.
    """
    sizes = [row.block_size for row in rows]
    mode = "lines" if len(rows) > 40 else "lines+markers"
    shares = [
        ("not to the end of a block", [row.rounding for row in rows], BLUE, "solid"),
        ("block of the last token", [row.last_token for row in rows], ORANGE, "dash"),
    ]
    data = [
        _line(name, sizes, [100 * part / prompt_tokens for part in lost], color, dash, mode)
        for name, lost, color, dash in shares
    ]
    data += [
        _second(_line("per repeat", sizes, [r.lost_per_repeat for r in rows], BLUE, "solid", mode)),
        _second(
            _line(
                "(block size - 1) / 2", sizes, [(s - 1) / 2 for s in sizes], GREY, "dash", "lines"
            )
        ),
    ]
    data[2]["showlegend"] = False
    axis = {
        "type": "log",
        "title": titled("block size (tokens)"),
        "tickvals": [1 << power for power in range(9)],
        "range": [-0.03, 2.44],
    }
    layout = base_layout(400)
    layout["xaxis"] = {**axis, "domain": [0, 0.46], "anchor": "y"}
    layout["xaxis2"] = {**axis, "domain": [0.54, 1], "anchor": "y2"}
    layout["yaxis"] = {"rangemode": "tozero", "title": titled("prompt tokens (%)")}
    layout["yaxis2"] = {"rangemode": "tozero", "anchor": "x2", "title": titled("tokens")}
    layout["annotations"] = [
        panel_title("seen before and yet computed", "x", "y"),
        panel_title("rounded off, per request that repeats something", "x2", "y2"),
    ]
    return {"data": data, "layout": layout}


def _line(name: str, x: Any, y: Any, color: str, dash: str, mode: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": list(x),
        "y": significant(y, 6),
        "line": {"width": 2, "color": color, "dash": dash},
        "marker": {"size": 6, "color": color},
        "hovertemplate": f"%{{x:,}} tokens: %{{y:.4~g}} %<extra>{name}</extra>",
    }


def _second(trace: dict[str, Any]) -> dict[str, Any]:
    hover = "block size %{x}: %{y:.4~g} tokens<extra></extra>"
    return {**trace, "xaxis": "x2", "yaxis": "y2", "hovertemplate": hover}


def _gib_per_token(rows: Sequence[Mapping[str, Any]]) -> float | None:
    return next((row["gib"] / row["tokens"] for row in rows if row["gib"] is not None), None)


def _capacity_ticks(tokens: Sequence[int], gib_per_token: float | None) -> dict[str, Any]:
    """At 1, 2 and 5 times powers of ten, or fewer; the GiB in a second line."""
    low, high = tokens[0], tokens[-1]
    powers = range(len(str(low)) - 1, len(str(high)) + 1)
    for digits in (_TICKS, (1, 3), (1,)):
        values = [
            d * 10**p for p in powers for d in digits if low * 0.99 <= d * 10**p <= high * 1.01
        ]
        if len(values) <= _MAX_TICKS:
            break
    values = values or [low, high]
    texts = [_short(value) for value in values]
    if gib_per_token is not None:
        texts = [
            f"{text}<br>{value * gib_per_token:,.3g}"
            for text, value in zip(texts, values, strict=True)
        ]
    margin = 0.03 * max(float(np.log10(high / low)), 0.1)
    return {
        "tickvals": values,
        "ticktext": texts,
        "range": [float(np.log10(low)) - margin, float(np.log10(high)) + margin],
    }


def _short(tokens: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if tokens >= size:
            return f"{tokens / size:g}{unit}"
    return str(tokens)
