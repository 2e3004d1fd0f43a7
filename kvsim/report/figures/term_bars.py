"""The five terms of the memory equation with their details, one stacked bar per variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsim.report.figures.style import Figure, base_layout, escaped, pattern, titled
from kvsim.report.figures.terms import TERMS, USABLE_FREE, Term

_BAR_HEIGHT, _FRAME_HEIGHT = 58, 150
_LABELLED_SHARE = 0.05


class Shares(NamedTuple):
    """How one variant used its memory, averaged over time."""

    capacity_slots: int
    shares: Mapping[str, float]
    """Key of `TERMS` -> part of the capacity; they sum to 1."""


def term_bars_figure(variants: Mapping[str, Shares]) -> Figure:
    """Shares of the capacity (%), bar under bar by label; hovering shows the slots.

    A label is broken into lines at its ` · `. Terms that are 0 everywhere are left out.
    """
    drawn = [term for term in TERMS if any(one.shares[term.key] > 0 for one in variants.values())]
    labels = ["<br>".join(map(escaped, name.split(" · "))) for name in variants]
    places = list(range(len(variants)))
    layout = base_layout(_FRAME_HEIGHT + _BAR_HEIGHT * len(variants), barmode="stack", bargap=0.3)
    layout["margin"]["t"] = 84
    layout["uniformtext"] = {"mode": "hide", "minsize": 10}
    layout["xaxis"] = {
        "range": [0, 100],
        "ticksuffix": " %",
        "title": titled("share of the capacity, averaged over time"),
        "fixedrange": True,
    }
    layout["yaxis"] = {
        "tickvals": places,
        "ticktext": labels,
        "range": [len(variants) - 0.5, -0.5],
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
    layout["annotations"] = _free_labels(variants)
    return {"data": [_bars(term, variants) for term in drawn], "layout": layout}


def _free_labels(variants: Mapping[str, Shares]) -> list[dict[str, Any]]:
    """Labels of the free part in the colour of the page's text: one can see through that part."""
    free = [(place, one.shares[USABLE_FREE.key]) for place, one in enumerate(variants.values())]
    return [
        {
            "x": 100 - 50 * share,
            "y": place,
            "text": f"{100 * share:.1f} %",
            "showarrow": False,
        }
        for place, share in free
        if share >= _LABELLED_SHARE
    ]


def _bars(term: Term, variants: Mapping[str, Shares]) -> dict[str, Any]:
    shares = [one.shares[term.key] for one in variants.values()]
    slots = [one.shares[term.key] * one.capacity_slots for one in variants.values()]
    return {
        "type": "bar",
        "orientation": "h",
        "name": term.label,
        "x": [100 * share for share in shares],
        "y": list(range(len(shares))),
        "customdata": [f"{value:,.1f}" for value in slots],
        "text": [f"{100 * share:.1f} %" if share >= _LABELLED_SHARE else "" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "marker": {
            "color": term.ink.color,
            "pattern": pattern(term.ink),
            "line": {"width": 0.6, "color": "rgba(255,255,255,0.85)"},
        },
        "hovertemplate": f"{term.label}: %{{x:.2f}} %, %{{customdata}} slots<extra></extra>",
    }
