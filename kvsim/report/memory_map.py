"""The physical map of a snapshot as segments: what every slot is used for, and by whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

NOBODY = -1

USES = (
    "live",
    "shared",
    "reservation",
    "internal_tail",
    "over_reservation",
    "roundup",
    "external",
    "free",
    "not_listed",
)
"""What a slot can be used for. `shared` is live in several block tables; `external` is free while
the head of the queue fits no hole; `not_listed` is held by a request the snapshot left out."""


class Segment(NamedTuple):
    """Consecutive slots of one use and one holder."""

    start: int
    slots: int
    use: str
    holder: int
    """Index into the snapshot's requests, or `NOBODY`."""


def segments(snapshot: Mapping[str, Any], *, kind: str, capacity: int) -> list[Segment]:
    """The whole memory from slot 0 to `capacity`, in address order.

    Uses agree with the terms of the memory equation. `kind` is that of the snapshots: a paged
    request fills its extents in order and reserves nothing beyond them; a contiguous one reserves
    `reserved_tokens`; a row of a grown tensor is padding beyond its own tokens.
    """
    hole = "external" if snapshot.get("external_slots") else "free"
    pieces = [Segment(start, slots, hole, NOBODY) for start, slots in snapshot["free"]]
    for index, request in enumerate(snapshot["requests"]):
        pieces.extend(held_segments(request, index, kind))
    shared = [Segment(start, slots, "shared", NOBODY) for start, slots, _ in snapshot["shared"]]
    tensor = snapshot.get("tensor")
    if isinstance(tensor, dict):
        pieces.extend(_rest_of_tensor(tensor, snapshot["requests"]))
    return _merged(_cover(sorted(pieces), shared, capacity))


def held_segments(request: Mapping[str, Any], index: int, kind: str) -> Iterator[Segment]:
    """The extents of a request, cut where the use changes; what is shared counts as live."""
    live, final = request["live_tokens"], max(0, request["final_tokens"] - 1)
    slots = sum(extent[1] for extent in request["extents"])
    reserved = request.get("reserved_tokens", slots)
    if kind == "grow":
        bounds = [("live", live), ("over_reservation", slots)]
    elif kind == "contiguous":
        bounds = [
            ("live", live),
            ("reservation", max(live, final)),
            ("over_reservation", reserved),
            ("roundup", slots),
        ]
    else:
        bounds = [("live", live), ("reservation", max(live, final)), ("internal_tail", slots)]
    done = 0
    for start, length in request["extents"]:
        position, end = done, done + length
        for use, bound in bounds:
            upto = min(max(bound, position), end)
            if upto > position:
                yield Segment(start + position - done, upto - position, use, index)
            position = upto
        if position < end:
            yield Segment(start + position - done, end - position, bounds[-1][0], index)
        done = end


def _rest_of_tensor(tensor: Mapping[str, Any], requests: list[Any]) -> Iterator[Segment]:
    """Rows of a grown tensor whose request has ended, and the rounding to whole blocks."""
    start, width = tensor["start_slot"], tensor["width"]
    cells = tensor["rows"] * width
    taken = {extent[0] for request in requests for extent in request["extents"]}
    for row in range(start, start + cells, width) if width else ():
        if row not in taken:
            yield Segment(row, width, "over_reservation", NOBODY)
    if tensor["slots"] > cells:
        yield Segment(start + cells, tensor["slots"] - cells, "roundup", NOBODY)


def _cover(pieces: list[Segment], shared: list[Segment], capacity: int) -> Iterator[Segment]:
    """Each slot once: what several tables hold is shared, what nobody lists is not listed."""
    reached = 0
    overlays = iter([*shared, Segment(capacity, 0, "", NOBODY)])
    overlay = next(overlays)
    for start, slots, use, holder in pieces:
        end = min(start + slots, capacity)
        if start > reached:
            yield Segment(reached, start - reached, "not_listed", NOBODY)
            reached = start
        while reached < end:
            while overlay.start + overlay.slots <= reached and overlay.slots:
                overlay = next(overlays)
            if overlay.start <= reached and overlay.slots:
                upto = min(end, overlay.start + overlay.slots)
                yield Segment(reached, upto - reached, "shared", NOBODY)
            else:
                upto = min(end, overlay.start) if overlay.start > reached else end
                yield Segment(reached, upto - reached, use, holder)
            reached = upto
    if reached < capacity:
        yield Segment(reached, capacity - reached, "not_listed", NOBODY)


def _merged(found: Iterator[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for one in found:
        last = merged[-1] if merged else None
        if last and (last.use, last.holder) == (one.use, one.holder) and one.use == "shared":
            merged[-1] = last._replace(slots=last.slots + one.slots)
        else:
            merged.append(one)
    return merged


class Cell(NamedTuple):
    """Consecutive slots, and how many of them each use has."""

    start: int
    slots: int
    uses: dict[str, int]


def coarse(parts: list[Segment], cell: int) -> list[Cell]:
    """The map in cells of `cell` slots (the last one may be shorter), from slot 0."""
    found: list[Cell] = []
    uses: dict[str, int] = {}
    start = reached = 0
    for one in parts:
        reached, end = one.start, one.start + one.slots
        while reached < end:
            upto = min(end, start + cell)
            uses[one.use] = uses.get(one.use, 0) + upto - reached
            reached = upto
            if reached == start + cell:
                found.append(Cell(start, cell, uses))
                start, uses = reached, {}
    if uses:
        found.append(Cell(start, reached - start, uses))
    return found


def window(parts: list[Segment], slots: int) -> int:
    """Start of the `slots` long stretch (a multiple of it) that shows most partly used places."""
    counts: dict[int, int] = {}
    interesting = {"reservation", "internal_tail", "over_reservation", "roundup", "shared"}
    for one in parts:
        place = one.start // slots
        counts[place] = counts.get(place, 0) + (6 if one.use in interesting else 1)
    return max(counts, key=lambda place: (counts[place], -place)) * slots if counts else 0


def cut(parts: list[Segment], start: int, end: int) -> list[Segment]:
    """The part of the map between two addresses."""
    found = []
    for one in parts:
        low, high = max(one.start, start), min(one.start + one.slots, end)
        if low < high:
            found.append(one._replace(start=low, slots=high - low))
    return found


def lines(parts: list[Segment], width: int, start: int) -> Iterator[tuple[int, Segment]]:
    """Segments broken at every `width` slots from `start`, each with the number of its line."""
    for one in parts:
        begin, end = one.start, one.start + one.slots
        while begin < end:
            line = (begin - start) // width
            upto = min(end, start + (line + 1) * width)
            yield line, one._replace(start=begin, slots=upto - begin)
            begin = upto


def totals(parts: list[Segment]) -> dict[str, int]:
    """Slots of each use."""
    sums = dict.fromkeys(USES, 0)
    for one in parts:
        sums[one.use] += one.slots
    return sums
