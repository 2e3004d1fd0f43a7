"""Uploading a file and choosing among the kept ones of its kind."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.ui import md, show_error
from kvsim.errors import InputError


def upload_control(
    kind: str, label: str, key: str, *, types: Sequence[str] | None = None, help: str = ""
) -> str | None:
    """The id of the upload that is looked at; None where there is none.

    A new file is kept and chosen; `key` names the parameter of the address.
    """
    uploader(kind, label, key, types=types, help=help)
    names = {one.upload_id: one.name for one in uploads.kept_of_kind(here().uploads, kind)}
    if not names:
        return None
    chosen = choose("Uploaded files", list(names), key)
    st.caption(f"uploaded as {md(names[chosen])}")
    return chosen


def uploader(
    kind: str, label: str, key: str, *, types: Sequence[str] | None = None, help: str = ""
) -> None:
    """Keeps a file that is dropped in; what is chosen under `key` is then that one."""
    st.file_uploader(
        label,
        type=list(types) if types else None,
        key=f"{key}_file",
        max_upload_size=-(-uploads.MAX_BYTES[kind] // (1 << 20)),
        help=help or None,
        on_change=_store,
        args=(kind, key),
    )
    problem = st.session_state.pop(f"{key}_problem", None)
    if problem is not None:
        show_error(problem)


def choose(label: str, options: Sequence[str], key: str) -> str:
    """One of several ids, the first where nothing else is asked for.

    The address names it in any case, which bound widgets do not do for their defaults: what comes
    first today may be another one tomorrow.
    """
    asked = (st.session_state.get(key), st.query_params.get(key))
    st.session_state[key] = next((one for one in asked if one in options), options[0])
    chosen: str = st.selectbox(label, options, key=key)
    remember(key, chosen)
    return chosen


def remember(key: str, value: str | None) -> None:
    """Keep a value in the address."""
    if value is None:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value


def _store(kind: str, key: str) -> None:
    file = st.session_state.get(f"{key}_file")
    if file is None:
        return
    try:
        upload = uploads.keep(here().uploads, kind, file.name, file.getvalue())
    except InputError as error:
        st.session_state[f"{key}_problem"] = error
    else:
        st.session_state[key] = upload.upload_id


def under_name(error: InputError, name: str) -> InputError:
    """The same error about the file's own name: its place on the server is nobody's business."""
    return InputError(error.problem, where=name, fix=error.fix)
