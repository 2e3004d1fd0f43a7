"""The physical map of the page Fragmentation: moments, events, holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from apps.dashboard.downloads import download
from apps.dashboard.fragmentation_data import Maps, maps
from apps.dashboard.fragmentation_parts import Labelled
from apps.dashboard.ui import BIND, chart, guarded, md
from kvsim.report.figures import memory_map_figure
from kvsim.report.figures.memory_map import INKS
from kvsim.report.figures_page import figures_html
from kvsim.report.html_figures import map_note
from kvsim.report.moments import (
    EventCounts,
    HolderRow,
    MomentRow,
    holder_rows,
    holders_named,
    map_totals,
    moments_csv,
    telling_moment,
)

_PIECES = 1500
"""Of the overview; above, it is drawn in cells."""
_LISTED = 200
"""Requests in the table of holders."""


@st.fragment
def show_map(labelled: Labelled) -> None:
    """The map of one side at one moment; moving it reruns nothing else."""
    st.subheader("Physical map")
    by_name = {side.label: side for side in labelled.values()}
    names = list(by_name)
    left, right = st.columns(2)
    name = left.selectbox("Map of", names, key="map", bind=BIND, on_change=_forget_moment)
    holder = right.text_input(
        "Request to show in the map: its id, or # and its number",
        key="holder",
        bind=BIND,
        max_chars=80,
    )
    with guarded():
        found = maps(by_name[name or names[0]])
        if found is None:
            st.info("No map was kept of this variant: record its steps, or a time series.")
        else:
            _show(found, name or names[0], holder)


def _show(found: Maps, label: str, holder: str) -> None:
    place = _choose_moment(found.rows, telling_moment(found.rows))
    snapshot = found.snapshots["snapshots"][place]
    events, drawing = st.columns([2, 5])
    with events:
        _show_events(found, label)
    chosen = holders_named(snapshot, holder)
    with drawing:
        if holder and not chosen:
            st.warning(f"No request {md(holder, 80)} holds memory at this moment.")
        drawn = memory_map_figure(
            snapshot,
            kind=found.snapshots["kind"],
            capacity=found.snapshots["capacity_slots"],
            block_size=max(1, found.snapshots["block_size"]),
            max_pieces=_PIECES,
            highlight=chosen,
        )
        alt = f"Use of every slot at {found.rows[place].time_s:,.3f} s, in the order of addresses"
        chart(drawn.figure, "physical", alt)
        note = map_note(snapshot, drawn.cell, _LISTED)
        st.caption(md(note))
        heading = f"{found.rows[place].time_s:,.3f} s: {found.rows[place].why}"
        download(
            "Map at this moment (HTML)",
            "map.html",
            lambda: figures_html("Physical map", {heading: drawn.figure}, [label, note]),
            key="map_html",
        )
    holders, uses = st.columns([3, 2])
    with holders:
        _show_holders(snapshot, found.snapshots["kind"])
    with uses:
        _show_uses(map_totals(found.snapshots, place))


def _choose_moment(rows: Sequence[MomentRow], first: int) -> int:
    if len(rows) == 1:
        return 0
    chosen = st.slider("Moment", 1, len(rows), first + 1, key="moment", bind=BIND)
    row = rows[chosen - 1]
    st.caption(f"{row.time_s:,.3f} s of simulated time; this map was kept as: {md(row.why)}")
    return chosen - 1


def _forget_moment() -> None:
    st.session_state.pop("moment", None)


def go_to_event(key: str, count: int) -> None:
    """Move the slider to the event that was clicked in the table `key`."""
    rows = st.session_state[key].selection.rows
    if rows and 0 <= rows[0] < count:
        st.session_state["moment"] = rows[0] + 1


def _show_events(found: Maps, label: str) -> None:
    st.markdown("**Events: click one, and the map goes there**")
    key = f"events of {label}"
    columns: dict[str, list[Any]] = {
        "moment": list(range(1, len(found.rows) + 1)),
        "time (s)": [row.time_s for row in found.rows],
        "event": [row.why for row in found.rows],
        "preempted": [row.preempted for row in found.rows],
        "waiting": [row.waiting for row in found.rows],
        "free (slots)": [row.free_slots for row in found.rows],
        "largest hole (slots)": [row.largest_hole_slots for row in found.rows],
        "external (slots)": [row.external_slots for row in found.rows],
        "holders": [row.requests for row in found.rows],
    }
    st.dataframe(
        columns,
        key=key,
        hide_index=True,
        height=560,
        column_config={"time (s)": st.column_config.NumberColumn(format="%.3f")},
        on_select=lambda: go_to_event(key, len(found.rows)),
        selection_mode="single-row",
    )
    st.caption(md(counts_text(found.counts)))
    download("Events (CSV)", "events.csv", lambda: moments_csv(found.rows), key="events_csv")


def counts_text(counts: EventCounts | None) -> str:
    """All events of the run, and how many of them have a map."""
    if counts is None:
        return "The run kept no rows: its events are not counted."
    if counts.held_up is None:
        return (
            f"{counts.preempted_requests:,} preemptions in the whole run, which kept a time series:"
            " it does not tell how many of them have a map."
        )
    return (
        f"In the whole run {counts.preempting_steps:,} steps preempted"
        f" {counts.preempted_requests:,} requests ({counts.preempting_with_map:,} of these steps"
        f" have a map), and fragmentation began {counts.held_up:,} times to hold up the head of the"
        f" queue ({counts.held_up_with_map:,} with a map). Maps are kept of events in equal"
        " intervals, at regular moments and at extremes."
    )


def _show_holders(snapshot: Mapping[str, Any], kind: str) -> None:
    st.markdown("**Who holds memory: click one to see it in the map**")
    rows = holder_rows(snapshot, kind=kind)[:_LISTED]
    columns: dict[str, list[Any]] = {
        "#": [row.number for row in rows],
        "request": [row.request_id for row in rows],
        "holds (slots)": [row.held for row in rows],
        "live": [row.live for row in rows],
        "shared": [row.shared for row in rows],
        "reservation": [row.reservation for row in rows],
        "internal": [row.internal for row in rows],
        "extents": [row.extents for row in rows],
    }
    st.dataframe(
        columns,
        key="holders",
        hide_index=True,
        on_select=lambda: _show_holder(rows),
        selection_mode="single-row",
    )


def _show_holder(rows: Sequence[HolderRow]) -> None:
    chosen = st.session_state["holders"].selection.rows
    if chosen and 0 <= chosen[0] < len(rows):
        st.session_state["holder"] = rows[chosen[0]].request_id


def _show_uses(slots: Mapping[str, int]) -> None:
    st.markdown("**What the slots are used for at this moment**")
    capacity = sum(slots.values())
    used = {use: count for use, count in slots.items() if count}
    columns: dict[str, list[Any]] = {
        "use": [*(INKS[use][0] for use in used), "capacity"],
        "slots": [*used.values(), capacity],
        "% of capacity": [
            f"{100 * count / max(1, capacity):.2f}" for count in [*used.values(), capacity]
        ],
    }
    st.dataframe(columns, key="uses", hide_index=True)
