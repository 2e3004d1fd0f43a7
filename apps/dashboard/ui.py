"""What all pages share: safe text, errors, charts, definitions, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlencode

import plotly.graph_objects as go
import streamlit as st

from kvsim.errors import InputError

BIND: Literal["query-params"] = "query-params"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:^=&])")
_ADDRESS = re.compile(r"(?<=://)|(?<=@)|(?<=www)(?=\.)", re.IGNORECASE)
_JOINER = "\N{WORD JOINER}"
_CONFIG = {"displaylogo": False, "responsive": True, "scrollZoom": False, "plotlyServerURL": ""}


def md(text: object, limit: int = 600) -> str:
    """Text that Streamlit shows as it is: no markup, link, picture, formula or emoji of it acts.

    Addresses become links after escapes are resolved; a joiner without width keeps them text.
    """
    shown = "".join(c if c.isprintable() else " " for c in str(text)[:limit])
    return _SPECIAL.sub(r"\\\1", _ADDRESS.sub(_JOINER, shown))


@contextmanager
def guarded() -> Iterator[None]:
    """Bad input becomes a message in its place; the page lives on."""
    try:
        yield
    except InputError as error:
        show_error(error)


def show_error(error: InputError) -> None:
    """What is wrong and where, and the way out below it."""
    place = f"**{md(error.where)}**: " if error.where else ""
    fix = f"\n\n{md(error.fix)}" if error.fix else ""
    st.error(f"{place}{md(error.problem)}{fix}")


def chart(
    figure: Mapping[str, Any],
    key: str,
    alt: str,
    *,
    on_select: Callable[[], None] | Literal["ignore", "rerun"] = "ignore",
) -> Any:
    """A figure of `kvsim.report.figures`; `alt` says in words what it shows.

    With `on_select` it returns what was clicked.
    """
    drawn = go.Figure(figure["data"], figure["layout"], skip_invalid=False)
    return st.plotly_chart(
        drawn,
        key=key,
        on_select=on_select,
        selection_mode=("points",),
        config=_CONFIG,
        alt=alt,
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]], key: str) -> None:
    """A table of text; nothing in it is read as markup."""
    columns = {name: [str(row[place]) for row in rows] for place, name in enumerate(header)}
    st.dataframe(columns, key=key, hide_index=True, width="stretch")


def definitions(entries: Mapping[str, str], title: str = "What the figures mean") -> None:
    """Every figure with its definition, folded."""
    with st.expander(title):
        for name, text in entries.items():
            st.markdown(f"**{md(name)}**: {md(text)}")


@st.fragment
def share_link() -> None:
    """The address that restores this page, with a button that copies it.

    It is read when the box is opened: what a fragment of the page changed is in it.
    """
    box = st.popover("Copy link", key="copy_link", on_change="rerun")
    if not box.open:
        return
    with box:
        base = st.context.url or ""
        names = st.query_params
        pairs = [(name, one) for name in names for one in names.get_all(name)]
        query = urlencode(pairs)
        st.code(f"{base}?{query}" if query else base, language=None, wrap_lines=True)
        st.caption(
            "It holds ids and numbers only. Runs and uploads are restored as long as this"
            " dashboard keeps them."
        )


def number(place: Any, label: str, value: str, interval: str, formula: str) -> None:
    """A figure with its 80 % interval; its formula, with the numbers in it, opens below it."""
    with place.container(border=True):
        st.metric(label, value)
        st.caption(
            md(f"80 %: {interval}" if " to " in interval else interval or "\N{NO-BREAK SPACE}")
        )
        with st.popover("formula", type="tertiary"):
            st.markdown(md(formula))


def warn_unknown(key: str, options: Collection[str], what: str) -> None:
    """Say so where the address asks for what is not there; the control shows something else then.

    Call it before the control is drawn.
    """
    for asked in st.query_params.get_all(key):
        if asked not in options:
            st.warning(f"There is no {what} {md(asked, 80)} here (any more).")
