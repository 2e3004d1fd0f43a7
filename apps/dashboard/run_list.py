"""The runs that can be opened: those under way, and those with a run folder."""

from __future__ import annotations

import streamlit as st

from apps.dashboard import jobs
from apps.dashboard.cached import here
from apps.dashboard.places import run_folders
from apps.dashboard.ui import BIND, md, show_error
from kvsim.errors import InputError

OPENED = "opened"
"""Key of the control, and parameter of the address."""
_REFUSED = "run not deleted"


def run_ids() -> list[str]:
    """Runs without a folder (under way, failed, cancelled), then folders; each the newest first."""
    where = here()
    folders = run_folders(where)
    others = [one.job_id for one in jobs.every_status(where) if one.job_id not in folders]
    return [*others, *folders]


def opened() -> str | None:
    """The run that the control or the address names, whether it is there or not."""
    return st.session_state.get(OPENED) or st.query_params.get(OPENED) or None


def open_run(run_id: str) -> None:
    """Open a run from now on; before `choose_run` draws its control."""
    st.session_state[OPENED] = run_id


def offer_to_delete(run_id: str) -> None:
    """A button that removes the run, after a second one."""
    refused = st.session_state.pop(_REFUSED, None)
    if refused is not None:
        show_error(refused)
    with st.popover("Delete this run", key="delete"):
        st.markdown(
            f"{md(run_id, 130)}: its report, tables and status are removed from the disk for"
            " everyone who has a link to it. This cannot be undone."
        )
        st.button("Delete it for good", key="delete_run", on_click=_delete, args=(run_id,))


def _delete(run_id: str) -> None:
    try:
        jobs.delete(here(), run_id)
    except InputError as error:
        st.session_state[_REFUSED] = error
    else:
        st.session_state[OPENED] = None


def choose_run() -> str | None:
    """The run that is looked at; None where none is."""
    known = run_ids()
    asked = opened()
    if asked and asked not in known:
        st.warning(
            f"There is no run {md(asked, 100)} here (any more). Start one above, or start the"
            " dashboard with \\-\\-runs FOLDER to see those of a folder."
        )
        st.session_state.pop(OPENED, None)
    chosen: str | None = st.selectbox(
        "Run to look at",
        known,
        index=None,
        key=OPENED,
        bind=BIND,
        placeholder="none yet: start one above" if not known else "choose an earlier run",
    )
    return chosen
