"""Fragmentation: where the memory of two or more runs goes, over time and slot by slot."""

from __future__ import annotations

import streamlit as st

from apps.dashboard.fragmentation_map import show_map
from apps.dashboard.fragmentation_parts import (
    Labelled,
    choose_pair,
    choose_sides,
    read_series,
    show_exports,
    show_extents,
    show_pair,
    show_terms,
    show_time,
)
from apps.dashboard.ui import definitions, guarded, share_link
from kvsim.report.definitions import DEFINITIONS
from kvsim.report.metrics import METRICS


def page(labelled: Labelled) -> None:
    """All sections; an error in one leaves the others alone."""
    series = read_series(labelled)
    show_time(labelled, series)
    show_terms(labelled)
    comparison = None
    pair = choose_pair(labelled)
    if pair is not None:
        with guarded():
            comparison = show_pair(labelled, pair)
    show_extents(labelled, series)
    show_map(labelled)
    show_exports(labelled, series, comparison)
    definitions({name: text for name, text in DEFINITIONS.items() if _is_shown(name)})


def _is_shown(name: str) -> bool:
    """Whether a definition is of a figure of this page, or of what statistics of it are about."""
    return name.startswith("memory.") or any(
        path == name or path.startswith(f"{name}.") for path in METRICS
    )


title, link = st.columns([5, 1], vertical_alignment="bottom")
title.title("Fragmentation")
chosen = choose_sides()
if chosen:
    page(chosen)
else:
    st.info("Choose a run with its variants. Runs are made on the page Run.")
with link:
    share_link()
