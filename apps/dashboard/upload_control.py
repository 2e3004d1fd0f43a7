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
    chosen = choose("Uploaded files", list(names), key, "upload")
    if chosen is None:
        return None
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
        on_change=keep_upload,
        args=(kind, f"{key}_file", key),
    )
    show_refused(f"{key}_file")


def choose(
    label: str, options: Sequence[str], key: str, what: str, *, help: str | None = None
) -> str | None:
    """One of several ids, the first where none is asked for; None where the asked one is gone.

    The address names it in any case, which bound widgets do not do for their defaults: what comes
    first today may be another one tomorrow. Of one that is gone, `what` in words, a warning says
    so, and the address keeps it until another one is chosen.
    """
    asked = st.session_state.get(key) or st.query_params.get(key)
    if asked and asked not in options:
        warn_gone(what, asked)
        remember(key, asked)
    if not options:
        return None
    st.session_state[key] = asked if asked in options else None if asked else options[0]
    chosen: str | None = st.selectbox(
        label,
        options,
        index=None,
        key=key,
        help=help,
        placeholder=f"choose another {what}",
        required=True,
    )
    if chosen is not None:
        remember(key, chosen)
    return chosen


def warn_if_gone(key: str, known: Sequence[str], what: str) -> None:
    """Say that what a link asks for is not here; before its control, which ignores it."""
    asked = st.query_params.get(key)
    if asked and asked not in known:
        warn_gone(what, asked)


def warn_gone(what: str, asked: str) -> None:
    """Say that something is not here."""
    st.warning(f"There is no {what} {md(asked, 100)} here (any more).")


def remember(key: str, value: str | None) -> None:
    """Keep a value in the address."""
    if value is None:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value


def keep_upload(kind: str, file_key: str, target_key: str) -> None:
    """Keep what a control of files got, and give its id to the control that chooses."""
    file = st.session_state.get(file_key)
    if file is None:
        return
    try:
        kept = uploads.keep(here().uploads, kind, file.name, file.getvalue())
    except InputError as error:
        st.session_state[f"{file_key}_refused"] = error
    else:
        st.session_state[target_key] = kept.upload_id


def show_refused(file_key: str) -> None:
    """Why the last upload was not kept."""
    refused = st.session_state.pop(f"{file_key}_refused", None)
    if refused is not None:
        show_error(refused)


def under_name(error: InputError, name: str) -> InputError:
    """The same error about the file's own name: its place on the server is nobody's business."""
    return InputError(error.problem, where=name, fix=error.fix)
