"""Capacity: what fits on a GPU, why, and what to change."""

from __future__ import annotations

import streamlit as st

from apps.dashboard.capacity_inputs import VLLM, Question, ask, choose_uploaded_model
from apps.dashboard.capacity_parts import show_answer, show_exports, show_load, show_other
from apps.dashboard.ui import guarded, share_link
from kvsim.catalog import get_gpu
from kvsim.planning.answer import answer
from kvsim.planning.other_answer import other_answer
from kvsim.planning.pipeline import fit_whole
from kvsim.planning.what_if import changed_by_text


def page(asked: Question) -> None:
    """The answer to what the controls ask."""
    gpu = get_gpu(asked.gpu)
    if asked.server != VLLM:
        show_other(other_answer(asked.server, asked.model, gpu, asked.given, asked.fraction))
        return
    possible = []
    for text in asked.what_if:
        with guarded():
            changed = changed_by_text(asked.given, text)
            fit_whole(asked.model, gpu, changed, release=asked.release)
            possible.append(text)
    found = answer(
        asked.model,
        asked.served,
        gpu,
        asked.given,
        release=asked.release,
        what_if=possible,
    )
    show_answer(asked, found)
    met = None
    with guarded():
        met = show_load(asked, found.first)
    show_exports(found, met)


title, link = st.columns([5, 1], vertical_alignment="bottom")
title.title("Capacity")
choose_uploaded_model()
with guarded():
    page(ask())
with link:
    share_link()
