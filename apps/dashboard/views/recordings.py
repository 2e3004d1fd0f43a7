"""Recordings: what a real server printed or a benchmark measured, beside the model's answer."""

from __future__ import annotations

import streamlit as st

from apps.dashboard.recordings_bench import show_bench
from apps.dashboard.recordings_log import show_logs
from apps.dashboard.ui import BIND, guarded, share_link

LOG, BENCH = "Start-up log", "Benchmark"

title, link = st.columns([5, 1], vertical_alignment="bottom")
title.title("Recordings")
kind = st.segmented_control(
    "What was recorded",
    (LOG, BENCH),
    default=LOG,
    required=True,
    key="recording",
    bind=BIND,
    label_visibility="collapsed",
)
with guarded():
    if kind == BENCH:
        show_bench()
    else:
        show_logs()
with link:
    share_link()
