"""Block size and sharing: what a block size costs, and what branches share."""

from __future__ import annotations

import streamlit as st

from apps.dashboard.lab_parts import show_block_size, show_sharing
from apps.dashboard.ui import BIND, guarded, share_link

PARTS = {"blocks": show_block_size, "sharing": show_sharing}

title, link = st.columns([5, 1], vertical_alignment="bottom")
title.title("Block size and sharing")
with guarded():
    part = st.segmented_control(
        "Part", list(PARTS), default="blocks", required=True, key="part", bind=BIND
    )
    PARTS[part or "blocks"]()
with link:
    share_link()
