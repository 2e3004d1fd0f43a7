"""Buttons that give a page's content away as a file, made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

_MIME = {
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "yaml": "application/yaml",
}


def download(
    label: str, file_name: str, content: Callable[[], bytes], *, key: str, wide: bool = False
) -> None:
    """A button, `wide` as its column; its file's kind follows from the name."""
    st.download_button(
        label,
        content,
        file_name,
        _MIME[file_name.rpartition(".")[2]],
        key=key,
        on_click="ignore",
        width="stretch" if wide else "content",
    )


def download_kinds(stem: str, makers: Mapping[str, Callable[[], bytes]], key: str) -> None:
    """A button for each kind of file, side by side."""
    for place, (kind, content) in zip(st.columns(8), makers.items(), strict=False):
        with place:
            label = kind.upper() if kind != "parquet" else "Parquet"
            download(label, f"{stem}.{kind}", content, key=f"{key}_{kind}", wide=True)
