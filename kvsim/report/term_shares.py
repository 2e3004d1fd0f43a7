"""The terms of the memory equation of one variant, as shares and as slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kvsim.report.definitions import DEFINITIONS
from kvsim.report.export_csv import csv_lines
from kvsim.report.figures.term_bars import Shares
from kvsim.report.figures.terms import TERMS
from kvsim.report.text import figure

_TERMS = (
    ("live", "live"),
    ("reservation", "reservation"),
    ("reservation: tail", "detail.reservation.tail"),
    ("reservation: ahead", "detail.reservation.ahead"),
    ("internal", "internal"),
    ("internal: tail", "detail.internal.tail"),
    ("internal: over-reservation", "detail.internal.over_reservation"),
    ("internal: roundup", "detail.internal.roundup"),
    ("external", "external"),
    ("usable free", "usable_free"),
    ("usable free: cached", "detail.usable_free.cached"),
)
"""Label and path in `memory.by_time`; the five terms, each before its details."""


class TermShare(NamedTuple):
    """One term or detail, averaged over time."""

    label: str
    share: float
    """Of the capacity."""
    slots: float
    detail: bool
    """Whether it is part of the term before it."""
    definition: str


def term_shares(entry: Mapping[str, Any]) -> list[TermShare]:
    """The five terms of a variant's entry of the summary, each followed by its details.

    Empty where the summary does not hold all of them: no step was measured.
    """
    capacity = figure(entry, "memory.capacity_slots")
    found = []
    for label, name in _TERMS:
        path = f"memory.by_time.{name}"
        share = figure(entry, path)
        if share is None or capacity is None:
            return []
        detail = name.startswith("detail.")
        found.append(TermShare(label, share, share * capacity, detail, DEFINITIONS[path]))
    return found


def shares_by_term(entry: Mapping[str, Any]) -> Shares | None:
    """The parts that add up to the capacity; None where no step was measured."""
    capacity = figure(entry, "memory.capacity_slots")
    shares = {term.key: figure(entry, f"memory.by_time.{term.path}") for term in TERMS}
    known = {key: share for key, share in shares.items() if share is not None}
    if not capacity or len(known) < len(shares):
        return None
    return Shares(round(capacity), known)


def terms_csv(entries: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Iterator[bytes]:
    """CSV with a row per run, variant and term; `entries` are run, variant and its entry."""
    header = ("run", "variant", "term", "detail", "share_of_capacity", "slots")
    rows = (
        (run, variant, one.label, one.detail, one.share, one.slots)
        for run, variant, entry in entries
        for one in term_shares(entry)
    )
    return csv_lines(header, rows)
