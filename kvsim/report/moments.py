"""The moments of a run whose exact map was kept, and how many events there were in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsim.report.export_csv import csv_lines
from kvsim.report.memory_map import NOBODY, held_segments, segments, totals
from kvsim.report.text import plain
from kvsim.report.variant_memory import Events
from kvsim.results.snapshots import PREEMPTION

_ID = 60


class MomentRow(NamedTuple):
    """One moment with a map."""

    time_s: float
    why: str
    requests: int
    """That hold memory."""
    waiting: int
    preempted: int
    """Requests that this step preempted."""
    free_slots: int
    largest_hole_slots: int
    """Of the holes of a contiguous memory, or of the runs of free blocks of a paged one."""
    external_slots: int


class HolderRow(NamedTuple):
    """What one request holds at a moment, in slots."""

    number: int
    """Its place in the snapshot, counted from 1."""
    request_id: str
    held: int
    live: int
    shared: int
    """Slots that other requests hold as well; they are among the live ones."""
    reservation: int
    internal: int
    """Tail, over-reservation and roundup."""
    extents: int


class EventCounts(NamedTuple):
    """Events of the whole run, and how many of them are moments with a map."""

    preempting_steps: int
    preempted_requests: int
    preempting_with_map: int
    held_up: int | None
    """Times that fragmentation began to hold up the head of the queue; None for a time series."""
    held_up_with_map: int


def moment_rows(snapshots: Mapping[str, Any], events: Events | None) -> list[MomentRow]:
    """The moments in the order of the snapshots (`SnapshotRecorder.snapshots`)."""
    preempted = {}
    if events is not None and events.held_up_s is not None:
        preempted = dict(zip(events.preemption_s.tolist(), events.preempted.tolist(), strict=True))
    return [
        MomentRow(
            one["time_s"],
            one["why"],
            len(one["requests"]) + one.get("left_out", {}).get("requests", 0),
            one.get("waiting", 0),
            preempted.get(one["time_s"], 0),
            sum(hole[1] for hole in one["free"]),
            max((hole[1] for hole in one["free"]), default=0),
            one.get("external_slots", 0),
        )
        for one in snapshots["snapshots"]
    ]


def event_counts(events: Events, snapshots: Mapping[str, Any]) -> EventCounts:
    """Count the events of a run, and those that have a map."""
    mapped = np.array([one["time_s"] for one in snapshots["snapshots"]], dtype=float)
    single = events.held_up_s is not None
    return EventCounts(
        len(events.preemption_s),
        int(events.preempted.sum()),
        int(np.isin(events.preemption_s, mapped).sum()) if single else 0,
        len(events.held_up_s) if single else None,
        int(np.isin(events.held_up_s, mapped).sum()) if single else 0,
    )


def telling_moment(rows: Sequence[MomentRow]) -> int:
    """Place of the moment to begin with: most external fragmentation, else a preemption, else the
    fewest free slots; the first of equals."""
    return max(
        range(len(rows)),
        key=lambda place: (
            rows[place].external_slots,
            rows[place].why == PREEMPTION,
            -rows[place].free_slots,
            -place,
        ),
    )


def holder_rows(snapshot: Mapping[str, Any], *, kind: str) -> list[HolderRow]:
    """Who holds memory at a moment, those that hold most first; `kind` is that of the snapshots."""
    shared = [(start, start + slots) for start, slots, _ in snapshot["shared"]]
    rows = []
    for index, request in enumerate(snapshot["requests"]):
        slots = totals(list(held_segments(request, index, kind)))
        rows.append(
            HolderRow(
                index + 1,
                plain(request["id"], _ID),
                sum(extent[1] for extent in request["extents"]),
                slots["live"],
                _overlap(request["extents"], shared),
                slots["reservation"],
                slots["internal_tail"] + slots["over_reservation"] + slots["roundup"],
                len(request["extents"]),
            )
        )
    return sorted(rows, key=lambda row: (-row.held, row.number))


def holders_named(snapshot: Mapping[str, Any], text: str) -> list[int]:
    """Places (from 0) of the requests with this id, or of the one with this number (`#3`).

    An id that looks like a number is an id. Of a request that the memory lists by layer group or
    by branch they are several.
    """
    wanted = text.strip()
    requests = snapshot["requests"]
    named = [
        index
        for index, request in enumerate(requests)
        if wanted and (plain(request["id"], _ID) == wanted or _group_of(request["id"], wanted))
    ]
    if not named and wanted.startswith("#") and wanted[1:].isdecimal():
        place = int(wanted[1:]) - 1 if len(wanted) < 10 else NOBODY
        return [place] if 0 <= place < len(requests) else []
    return named


def moments_csv(rows: Sequence[MomentRow]) -> bytes:
    """A line for each moment with a map; times in s of simulated time, sizes in slots."""
    numbered = ((place, *row) for place, row in enumerate(rows, 1))
    return b"".join(csv_lines(("moment", *MomentRow._fields), numbered))


def _group_of(request_id: str, wanted: str) -> bool:
    return request_id.startswith(f"{wanted} group ")


def _overlap(extents: list[list[int]], shared: list[tuple[int, int]]) -> int:
    """Slots of the extents that lie in the shared ranges, which are in order and apart."""
    if not shared:
        return 0
    starts = np.array([start for start, _ in shared])
    ends = np.array([end for _, end in shared])
    before = np.concatenate(([0], np.cumsum(ends - starts)))
    total = 0
    for start, slots in extents:
        total += _upto(start + slots, starts, before, ends) - _upto(start, starts, before, ends)
    return total


def _upto(address: int, starts: Any, before: Any, ends: Any) -> int:
    """Shared slots below an address."""
    place = int(np.searchsorted(starts, address, side="right"))
    if not place:
        return 0
    return int(before[place - 1] + min(address, ends[place - 1]) - starts[place - 1])


def map_totals(snapshots: Mapping[str, Any], place: int) -> dict[str, int]:
    """Slots of each use (`memory_map.USES`) at one moment; they add up to the capacity."""
    parts = segments(
        snapshots["snapshots"][place],
        kind=snapshots["kind"],
        capacity=snapshots["capacity_slots"],
    )
    return totals(parts)
