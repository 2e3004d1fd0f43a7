"""Trace explorer: what the requests of a trace ask for, and what a prefix cache would find."""

from __future__ import annotations

import streamlit as st

from apps.dashboard.trace_source import choose_source, load
from apps.dashboard.traces_parts import show_exports, show_prefix, show_traffic
from apps.dashboard.ui import guarded, md, share_link

title, link = st.columns([5, 1], vertical_alignment="bottom")
title.title("Trace explorer")
with guarded():
    with st.sidebar:
        source = choose_source()
    if source is None:
        st.info("Choose a trace in the sidebar, or upload one.")
    else:
        loaded = load(source)
        title.caption(md(loaded.label))
        if len(loaded.traffic.demand):
            show_traffic(loaded)
            show_prefix(loaded)
            show_exports(loaded)
        else:
            st.warning("No row of this file can be replayed: all were dropped.")
with link:
    share_link()
