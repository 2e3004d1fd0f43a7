"""The upper half of the page Run: the scenario, its form or its text, and the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st

from apps.dashboard import jobs, uploads
from apps.dashboard.cached import here
from apps.dashboard.run_form import (
    command_line,
    form,
    trace_upload,
)
from apps.dashboard.run_list import open_run, opened
from apps.dashboard.run_source import (
    Source,
    check_source,
    files_beside,
    keep_text,
    show_problem,
    source_ids,
    source_of,
)
from apps.dashboard.ui import BIND, guarded, md
from apps.dashboard.upload_control import choose, keep_upload, show_refused
from kvsim.errors import InputError

_FORM, _YAML = "Form", "YAML"


def edit() -> None:
    """Draw it all, folded where a run is looked at.

    Raises `InputError` for a scenario that cannot be read.
    """
    _take_over()
    with st.expander("Scenario and settings", expanded=opened() is None):
        _edit()


def _edit() -> None:
    source_id = _choose_source()
    if source_id is None:
        return
    source = source_of(source_id)
    mode = st.segmented_control(
        "Edit as", [_FORM, _YAML], default=_FORM, required=True, key="edit", bind=BIND
    )
    if mode == _YAML:
        _edit_text(source_id, source)
    else:
        _edit_form(source)


def _choose_source() -> str | None:
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with right, st.popover("Upload a scenario or a trace", width="stretch"):
        upper, lower = st.columns(2)
        with upper:
            st.file_uploader(
                "A scenario (YAML)",
                type=["yaml", "yml"],
                key="scenario_file",
                max_upload_size=1,
                on_change=keep_upload,
                args=("scenario", "scenario_file", "scenario"),
            )
            show_refused("scenario_file")
        with lower:
            trace_upload()
    names = {one.upload_id: one.name for one in uploads.kept_of_kind(here().uploads, "scenario")}
    with left:
        chosen = choose("Scenario", source_ids(), "scenario", "scenario")
    if chosen in names:
        st.caption(f"uploaded as {md(names[chosen])}")
    return chosen


def _edit_form(source: Source) -> None:
    base = check_source(source)
    if base.scenario is not None and base.scenario.description:
        st.caption(md(base.scenario.description, 2000))
    options, traffic = form(base)
    checked = check_source(source, options)
    problem, files = checked.problem, {}
    if checked.scenario is not None:
        try:
            files = files_beside(checked.scenario, traffic)
        except InputError as error:
            problem = error
    if problem is not None:
        show_problem(source, problem)
    st.caption("The same on the command line:")
    st.code(command_line(source, options), language="bash", wrap_lines=True)
    if st.button("Start the run", key="start", type="primary", disabled=problem is not None):
        _start(source, options, files)


def _edit_text(source_id: str, source: Source) -> None:
    said = st.container()
    text = st.text_area(
        "The scenario's text",
        source.text,
        height=420,
        max_chars=uploads.MAX_BYTES["scenario"],
        key=f"text_{source_id}",
    )
    edited = source._replace(text=text, shipped=source.shipped and text == source.text)
    left, right = st.columns([1, 6])
    check = left.button("Check", key="check", width="stretch")
    begin = right.button("Start the run", key="start", type="primary")
    st.caption(
        "The settings of the form do not apply to the text. A checked text is kept, and the link to"
        " this page names it."
    )
    if not (check or begin):
        return
    checked = check_source(edited)
    if checked.problem is not None:
        with said:
            show_problem(edited, checked.problem)
        return
    kept = None if edited.shipped else keep_text(source, text)
    if begin and checked.scenario is not None:
        with said, guarded():
            _start(edited, [], files_beside(checked.scenario, None), kept)
    elif kept is None:
        said.success("The scenario is right as it is.")
    else:
        st.session_state["take_over"] = kept
        st.session_state["checked"] = True
        st.rerun()


def _start(
    source: Source, options: Sequence[str], files: Mapping[str, Path], kept: str | None = None
) -> None:
    text = None if source.shipped else source.text
    open_run(jobs.start(here(), source.name, text=text, files=files, overrides=options))
    if kept is not None:
        st.session_state["take_over"] = kept
    st.rerun()


def _take_over() -> None:
    """Choose the text that was kept in the run of the page before."""
    kept = st.session_state.pop("take_over", None)
    if kept is not None:
        st.session_state["scenario"] = kept
    if st.session_state.pop("checked", False):
        st.success("The scenario is right. It is kept as an upload and chosen now.")
