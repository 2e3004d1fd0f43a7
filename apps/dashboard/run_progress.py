"""How a run gets on, asked for once a second while it is shown."""

from __future__ import annotations

import streamlit as st

from apps.dashboard import jobs
from apps.dashboard.cached import here
from apps.dashboard.ui import md

_EVERY_S = 1.0


@st.fragment(run_every=_EVERY_S)
def watch(job_id: str) -> None:
    """Progress of a run that is under way; draws the page again once it has ended."""
    now = jobs.status(here(), job_id)
    if now is None or now.ended:
        st.rerun()
    left, right = st.columns([5, 1], vertical_alignment="bottom")
    left.progress(now.share, text=md(progress_text(now)))
    if right.button("Cancel", key="cancel", width="stretch"):
        jobs.cancel(here(), job_id)
        st.rerun()
    show_notes(now)


def show_notes(now: jobs.Status) -> None:
    """What the reader of the results must know."""
    for note in now.notes:
        st.caption(md(note))


def progress_text(now: jobs.Status) -> str:
    """One line: which variant, how many requests of how many, for how long."""
    since = f"{now.seconds:,.0f} s"
    if now.state == "starting" or not now.place:
        return f"Starting, {since}"
    which = f"{now.variant} (variant {now.place} of {now.variants})"
    if now.variants == 1:
        which = now.variant
    return f"{which}: {now.done:,} of {now.total:,} requests, {since}"


def show_ended(now: jobs.Status) -> None:
    """Why a run has no report."""
    took = f" after {now.seconds:,.1f} s" if now.seconds else ""
    if now.state == "cancelled":
        st.info(f"This run was cancelled{took}; nothing of it was kept.")
    elif now.state == "failed":
        st.error(f"The run failed{took}: {md(now.problem)}")
