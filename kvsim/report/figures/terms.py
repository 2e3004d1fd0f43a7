"""The terms of the memory equation as figures draw them."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.report.figures.style import BLUE, FREE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, Ink


class Term(NamedTuple):
    """One part of the memory: where it stands in records, and its ink."""

    key: str
    label: str
    column: str
    """In `steps.parquet`."""
    path: str
    """In a variant's `memory.by_time` (share of capacity)."""
    ink: Ink


LIVE = Term("live", "live", "live_slots", "live", Ink(BLUE, ""))
TAIL = Term(
    "reservation_tail",
    "reservation: tail",
    "reservation_tail_slots",
    "detail.reservation.tail",
    Ink(SKY, "."),
)
AHEAD = Term(
    "reservation_ahead",
    "reservation: ahead",
    "reservation_ahead_slots",
    "detail.reservation.ahead",
    Ink(SKY, "/"),
)
NEVER_TAIL = Term(
    "internal_tail",
    "internal: tail",
    "internal_tail_slots",
    "detail.internal.tail",
    Ink(PURPLE, "-"),
)
OVER = Term(
    "over_reservation",
    "internal: over-reservation",
    "over_reservation_slots",
    "detail.internal.over_reservation",
    Ink(ORANGE, "x"),
)
ROUNDUP = Term(
    "roundup", "internal: roundup", "roundup_slots", "detail.internal.roundup", Ink(GREEN, "\\")
)
EXTERNAL = Term("external", "external", "external_slots", "external", Ink(VERMILLION, "+"))
USABLE_FREE = Term("usable_free", "usable free", "usable_free_slots", "usable_free", Ink(FREE, ""))

TERMS = (LIVE, TAIL, AHEAD, NEVER_TAIL, OVER, ROUNDUP, EXTERNAL, USABLE_FREE)
"""They add up to the capacity; the order in which they are stacked."""
