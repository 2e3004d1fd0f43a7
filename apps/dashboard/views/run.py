"""Run: choose or upload a scenario, edit it, run it in a process of its own, read its report."""

from __future__ import annotations

import streamlit as st

from apps.dashboard import jobs
from apps.dashboard.cached import here
from apps.dashboard.run_edit import edit
from apps.dashboard.run_list import choose_run, offer_to_delete
from apps.dashboard.run_progress import show_ended, show_notes, watch
from apps.dashboard.run_report import forget_places, show_report
from apps.dashboard.ui import guarded, share_link

left, right = st.columns([5, 1], vertical_alignment="bottom")
left.title("Run")
with right:
    share_link()

with guarded():
    edit()

st.divider()
with guarded():
    chosen = choose_run()
    forget_places(chosen)
    if chosen is not None:
        now = jobs.status(here(), chosen)
        if now is not None and not now.ended:
            watch(chosen)
        elif now is not None and now.state != "done":
            show_ended(now)
        else:
            if now is not None:
                show_notes(now)
            show_report(chosen)
        if jobs.made_here(here(), chosen) and (now is None or now.ended):
            offer_to_delete(chosen)
