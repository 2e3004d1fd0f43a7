"""The report of one run: what `kvsim report` writes, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import streamlit as st

from apps.dashboard.cached import here, run_data, written_ns
from apps.dashboard.messages import cleaned
from apps.dashboard.places import run_folder
from apps.dashboard.run_exports import scenario_text, show_exports
from apps.dashboard.ui import BIND, chart, definitions, guarded, md, table
from kvsim.errors import InputError
from kvsim.report.html_data import ReportData
from kvsim.report.html_figures import Choice, Drawn, draw
from kvsim.report.html_tables import Chunk
from kvsim.report.html_texts import head, notes, tables

_MAP_PIECES = 24_000
_LABEL_PX, _VARIANT_PX, _DEFINITION_PX = 250, 145, 400
_PLACE, _PLACES_OF = "at_", "run of the places"
_HOLDERS = ("#", "request", "live (tokens)", "final length (tokens)", "held (slots)", "extents")


class Report(NamedTuple):
    """Everything that the parts show."""

    run_id: str
    head: Mapping[str, Any]
    tables: Mapping[str, Any]
    notes: Mapping[str, str]
    drawn: Drawn


def forget_places(run_id: str | None) -> None:
    """Drop from the address what was chosen in the figures of the run that was open before."""
    if st.session_state.get(_PLACES_OF, run_id) != run_id:
        for name in [one for one in st.query_params if one.startswith(_PLACE)]:
            del st.query_params[name]
    st.session_state[_PLACES_OF] = run_id


@st.fragment
def show_report(run_id: str) -> None:
    """Headline, exports and the parts; only the part that is looked at is drawn."""
    with guarded():
        try:
            report = read_report(run_id)
        except InputError as error:
            raise cleaned(error, run_folder(here(), run_id).parent) from None
        _show(report)


def _show(report: Report) -> None:
    st.subheader(md(report.head["scenario"]))
    if report.head["description"]:
        st.caption(md(report.head["description"], 2000))
    seeds = f", {report.head['seeds']} seeds" if report.head["seeds"] > 1 else ""
    st.markdown(f"**{md(report.head['sentence'], 2000)}**")
    st.caption(
        md(
            f"{report.head['requests']} from {report.head['source']}{seeds}. KV-cache memory as"
            f" simulated by kvsim {report.head['version']}."
        )
    )
    for warning in report.head["warnings"]:
        st.warning(md(warning))
    show_exports(report.run_id)
    names = [name for name, part in PARTS.items() if part.needs in (None, *report.drawn.figures)]
    for name, tab in zip(names, st.tabs(names, key="view", bind=BIND), strict=True):
        if tab.open:
            with tab:
                PARTS[name].show(report)


def read_report(run_id: str) -> Report:
    """A listed run, reduced and drawn. Raises `InputError` as `read_report_data` does."""
    path = run_folder(here(), run_id)
    drawn, texts = _drawn(str(path), written_ns(path), run_data(run_id))
    title, found, said = texts
    return Report(run_id, title, found, said, drawn)


@st.cache_resource(max_entries=8, show_spinner="Drawing the run")
def _drawn(path: str, written_ns: int, _data: ReportData) -> Any:
    texts = (head(_data), tables(_data), notes(_data))
    return draw(_data, map_pieces=_MAP_PIECES), texts


def _binds(report: Report) -> None:
    st.markdown(
        "A batch grows until something stops it. This table says what did, from the steps of the"
        " run."
    )
    _chunks(report.tables["bounds"], "bounds")
    lines = [f"- **{md(name)}**: {md(text)}." for name, text in report.tables["meanings"]]
    lines += [f"- **compute would allow**: {md(why)}." for why in report.tables["limit_rules"]]
    st.markdown("\n".join(lines))
    if report.tables["paged"]:
        st.info(md(report.tables["not_bandwidth"]))
    for remark in report.tables["remarks"]:
        st.info(md(remark))


def _memory(report: Report) -> None:
    window = "the measured window" if report.head["window"] else "the whole run"
    means = ""
    if report.head["seeds"] > 1:
        means = f" Means over {report.head['seeds']} seeds ± half of their 95 % interval."
    st.markdown(
        "Every slot, one token of KV each, is in exactly one of these terms. Shares of the"
        f" capacity, averaged over {window}, idle time included, unless a line says otherwise; a"
        f" term's parts are indented.{means}"
    )
    _chunks(report.tables["fragmentation"], "memory")
    _figure(report, "memory", "Over time", "Where the memory went over the simulated time.")
    _figure(
        report, "waterfall", "From one variant to another", "Where the memory of one variant went."
    )


def _map(report: Report) -> None:
    option = _figure(report, "map", "Physical map", "Who holds which slots, in address order.")
    if option is not None:
        st.caption(md(option["note"]))
        table(_HOLDERS, option["holders"], "holders")


def _block_size(report: Report) -> None:
    _figure(report, "block_size", "Block size", "Empty slots and blocks over the block size.")


def _load(report: Report) -> None:
    _figure(report, "load", "Batch and queue", "Running and waiting requests over time.")


def _sharing(report: Report) -> None:
    _figure(
        report, "sharing", "Memory that branches share", "Logical and physical blocks over time."
    )


def _serving(report: Report) -> None:
    st.markdown(md(report.notes["serving"], 1000))
    _chunks(report.tables["serving"], "serving", as_one=True)
    for line in report.tables["clocks"]:
        st.caption(md(line, 1000))
    _figure(report, "latency", "Latency distributions", "Share of requests over latency.")


def _whole_run(report: Report) -> None:
    _chunks(report.tables["whole_run"], "whole")


def _scenario(report: Report) -> None:
    if report.head["needs_traces"]:
        st.caption(md("It reads a named trace from the folder in $KVSIM_TRACES."))
    st.markdown("Every setting, as resolved:")
    st.code(scenario_text(report.run_id), language="yaml", wrap_lines=True)


def _chunks(chunks: Iterable[Chunk], key: str, *, as_one: bool = False) -> None:
    """Tables of the report, each figure with its definition in the last column.

    With `as_one` the groups of a table follow each other in it: their labels tell them apart.
    """
    told: dict[str, str] = {}
    for place, chunk in enumerate(chunks):
        groups = [("", [line for _, lines in chunk.groups for line in lines])]
        for group, (title, lines) in enumerate(groups if as_one else chunk.groups):
            if title:
                st.markdown(f"**{md(title)}**")
            rows = [
                (
                    f"\N{EM SPACE}{line.label}" if line.part else line.label,
                    *line.cells,
                    line.definition,
                )
                for line in lines
            ]
            _rows(("", *chunk.head, "definition"), rows, f"{key}_{place}_{group}")
            told |= {line.label: line.definition for line in lines if line.definition}
    definitions(told)


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], key: str) -> None:
    columns = {str(place): [row[place] for row in rows] for place in range(len(header))}
    last = str(len(header) - 1)
    shown = {}
    for name in columns:
        text = name in ("0", last)
        width = {"0": _LABEL_PX, last: _DEFINITION_PX}.get(name, _VARIANT_PX)
        shown[name] = st.column_config.TextColumn(
            header[int(name)] or " ", width=width, alignment="left" if text else "right"
        )
    st.dataframe(
        columns, key=key, hide_index=True, width="stretch", height="content", column_config=shown
    )


def _figure(report: Report, name: str, title: str, alt: str) -> Mapping[str, Any] | None:
    """A figure under its title with its note; what is shown of one with a choice."""
    found = report.drawn.figures.get(name)
    if found is None:
        return None
    st.markdown(f"#### {title}")
    shown: Mapping[str, Any] = found
    if name in report.drawn.choices:
        shown = found["options"][_choose(report, name)]
    st.caption(md(report.notes.get(name, ""), 2000))
    chart(shown["figure"], key=f"figure_{name}", alt=alt)
    return shown


def _choose(report: Report, key: str) -> int:
    """The place of what is chosen, which is a number in the address."""
    choice: Choice = report.drawn.choices[key]
    name, control = f"{_PLACE}{key}", f"{_PLACE}{key} of {report.run_id}"
    asked = st.query_params.get(name, "")
    index = choice.chosen
    if asked.isascii() and asked.isdecimal() and int(asked[:6]) < len(choice.labels):
        index = int(asked[:6])

    def note() -> None:
        st.query_params[name] = str(st.session_state[control])

    chosen: int = st.selectbox(
        choice.prompt,
        range(len(choice.labels)),
        index=index,
        format_func=choice.labels.__getitem__,
        key=control,
        on_change=note,
    )
    return chosen


class Part(NamedTuple):
    """A tab of the report."""

    show: Callable[[Report], None]
    needs: str | None = None
    """The figure without which there is no such tab."""


PARTS: Mapping[str, Part] = {
    "What binds": Part(_binds),
    "Memory": Part(_memory),
    "Physical map": Part(_map, "map"),
    "Block size": Part(_block_size, "block_size"),
    "Batch and queue": Part(_load, "load"),
    "Sharing": Part(_sharing, "sharing"),
    "Serving": Part(_serving),
    "Whole run": Part(_whole_run),
    "Scenario": Part(_scenario),
}
