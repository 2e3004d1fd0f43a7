"""Where the memory of one GPU goes, as a plotly figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.catalog import GIB, Term
from kvsim.planning.fit import Fit
from kvsim.planning.others import OtherFit
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
    base_layout,
    escaped,
    pattern,
    titled,
)

INKS: Mapping[str, Ink] = {
    "weights": Ink(GREY, ""),
    "lora_adapters": Ink(GREEN, "\\"),
    "draft_model": Ink(PURPLE, "-"),
    "activation_peak": Ink(ORANGE, "x"),
    "non_torch": Ink(VERMILLION, "+"),
    "cuda_graphs": Ink(SKY, "/"),
    "kv_pool": Ink(BLUE, ""),
    "outside": Ink(FREE, ""),
}
_OTHER = Ink(GREEN, ".")
_ROW_HEIGHT, _FRAME_HEIGHT = 62, 150


def memory_bar_figure(columns: Mapping[str, Fit | OtherFit]) -> Figure:
    """A bar (GiB) for each set-up: its terms, the KV pool, and what is outside the budget.

    A term below zero is not drawn: nothing is left for it, and the terms before it exceed the line
    of the GPU's memory. Whiskers are the 80 % interval of the KV pool.
    """
    rows = [_parts(found) for found in columns.values()]
    names = list(dict.fromkeys(name for parts in rows for name in parts))
    labels = [escaped(title) for title in columns]
    data = [_trace(name, [parts.get(name) for parts in rows], labels) for name in names]
    data.append(_whiskers(list(columns.values()), rows, labels))
    layout = base_layout(_FRAME_HEIGHT + _ROW_HEIGHT * len(rows), barmode="stack", shapes=[])
    layout["xaxis"] = {"title": titled("GiB of one GPU"), "rangemode": "tozero"}
    layout["yaxis"] = {"autorange": "reversed", "automargin": True}
    for place, found in enumerate(columns.values()):
        layout["shapes"].append(_end_of_memory(_total(found).bytes / GIB, place))
    return {"data": data, "layout": layout}


def _total(found: Fit | OtherFit) -> Term:
    return found.budget.total if isinstance(found, Fit) else found.terms[0]


def _parts(found: Fit | OtherFit) -> dict[str, Term]:
    """The terms in the order of the subtraction, the pool after them, the rest last."""
    if isinstance(found, Fit):
        budget = found.budget
        parts = [budget.weights, *budget.further, budget.activation_peak, budget.non_torch]
        inside = found.release.graphs_in_budget
        named = {term.name: term for term in [*parts, *([budget.cuda_graphs] if inside else [])]}
        named["kv_pool"] = budget.kv_pool
        if not inside and budget.cuda_graphs.bytes:
            named["cuda_graphs"] = budget.cuda_graphs
    else:
        *spent, pool = found.terms[1:]
        named = {**{term.name: term for term in spent}, "kv_pool": pool}
    used = sum(max(0, term.bytes) for term in named.values())
    left = max(0, _total(found).bytes - used)
    outside = Term("outside", left, left, left, formula="total - all of these", source="")
    return {**named, "outside": outside}


def _trace(name: str, terms: Sequence[Term | None], labels: list[str]) -> dict[str, Any]:
    ink = INKS.get(name, _OTHER)
    title = {"outside": "outside the budget", "kv_pool": "KV pool"}.get(name)
    return {
        "type": "bar",
        "orientation": "h",
        "name": title or name.replace("_", " "),
        "y": labels,
        "x": [None if term is None else round(max(0, term.bytes) / GIB, 3) for term in terms],
        "customdata": [None if term is None else _ends(term) for term in terms],
        "marker": {"color": ink.color, "pattern": pattern(ink)},
        "texttemplate": "%{x:.1f}",
        "textposition": "inside",
        "insidetextanchor": "middle",
        "hovertemplate": "%{fullData.name}: %{customdata}<extra></extra>",
    }


def _ends(term: Term) -> str:
    text = f"{term.bytes / GIB:.2f} GiB"
    if term.low == term.high:
        return text
    return f"{text} ({term.low / GIB:.2f} to {term.high / GIB:.2f}, 80 %)"


def _whiskers(
    columns: Sequence[Fit | OtherFit], rows: Sequence[Mapping[str, Term]], labels: list[str]
) -> dict[str, Any]:
    """The end of the pool if it were as small or as large as the interval allows."""
    ends, less, more = [], [], []
    for found, parts in zip(columns, rows, strict=True):
        pool = parts["kv_pool"]
        before = 0
        for name, term in parts.items():
            if name == "kv_pool":
                break
            before += max(0, term.bytes)
        end = before + max(0, pool.bytes)
        ends.append(round(end / GIB, 3))
        less.append(round(max(0, pool.bytes - max(pool.low, -before)) / GIB, 3))
        room = max(0, _total(found).bytes - end)
        more.append(round(max(0, min(pool.high - pool.bytes, room)) / GIB, 3))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "80 % interval of the pool's end",
        "x": ends,
        "y": labels,
        "marker": {"symbol": "line-ns", "size": 12, "color": GREY, "line": {"width": 2}},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": more,
            "arrayminus": less,
            "color": GREY,
            "thickness": 2,
            "width": 6,
        },
        "hoverinfo": "skip",
    }


def _end_of_memory(gib: float, place: int) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "x0": gib,
        "x1": gib,
        "yref": "y",
        "y0": place - 0.46,
        "y1": place + 0.46,
        "line": {"width": 2, "dash": "dot", "color": GREY},
    }
