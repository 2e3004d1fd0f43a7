"""The router: `kvsim dashboard` starts this file."""

from __future__ import annotations

import streamlit as st

PAGES = (
    ("capacity", "Capacity"),
    ("run", "Run"),
    ("fragmentation", "Fragmentation"),
    ("traces", "Trace explorer"),
    ("lab", "Block size and sharing"),
    ("validation", "Validation"),
    ("recordings", "Recordings"),
)
"""File in `views/` (and path of the address) and title; the first is the one to start with."""

st.set_page_config(page_title="kvsim", layout="wide")
pages = [
    st.Page(f"views/{name}.py", title=title, url_path=name, default=index == 0)
    for index, (name, title) in enumerate(PAGES)
]
st.navigation(pages, position="top").run()
