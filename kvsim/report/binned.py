"""Rows of a run as averages over equal intervals: exact integrals, so no peak is lost or invented.

A row's values hold from its time for its duration. Between two rows of `record.mode: steps` the
server is idle: nothing runs and nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

MAX_INTERVALS = 300

AVERAGED = (
    "running",
    "waiting",
    "allocated_slots",
    "logical_slots",
    "live_slots",
    "reservation_tail_slots",
    "reservation_ahead_slots",
    "internal_tail_slots",
    "over_reservation_slots",
    "roundup_slots",
    "external_slots",
    "usable_free_slots",
)
"""Columns of `steps.parquet` that say what is, not what happened."""


EXTENT = "largest_free_extent_tokens"
"""Averaged over the observed time alone: no row says how large it is while the server is idle."""


class Binned(NamedTuple):
    """Averages over `len(columns[...])` intervals of `width_s` seconds, the first from 0."""

    width_s: float
    end_s: float
    """End of the last row."""
    capacity_slots: int
    columns: Mapping[str, Any]
    """Column of `steps.parquet` -> averages; NaN where nothing was observed."""
    rows: int
    """Rows they were made from."""


def binned(
    steps: Any, *, capacity_slots: int, idle_between: bool, intervals: int = MAX_INTERVALS
) -> Binned | None:
    """Average `steps` (a table with the columns of `STEP_COLUMNS`); None when it has no time.

    `idle_between` says that a gap between two rows is idle time (rows of single steps), not time
    that nobody observed.
    """
    start = _numbers(steps, "time_s")
    duration = _numbers(steps, "duration_s")
    if not len(start):
        return None
    end_s = float(np.max(start + duration))
    if end_s <= 0:
        return None
    integrals = _Integrals(start, duration, np.linspace(0.0, end_s, intervals + 1))
    observed = integrals.of(np.ones(len(start)))
    seen = np.where(observed > 0, observed, np.nan)
    width = np.full(intervals, end_s / intervals)
    weight = width if idle_between else seen
    columns = {name: integrals.of(_numbers(steps, name)) / weight for name in AVERAGED}
    columns[EXTENT] = integrals.of(_numbers(steps, EXTENT)) / seen
    if idle_between:
        idle = np.clip(width - observed, 0.0, None) / weight
        columns["usable_free_slots"] = columns["usable_free_slots"] + idle * capacity_slots
    return Binned(end_s / intervals, end_s, capacity_slots, columns, len(start))


def binned_table(series: Mapping[str, Binned]) -> Any:
    """The averages as a `pyarrow.Table`: a row per series (`label`) and interval (`time_s` is its
    start, `width_s` its length), with the columns of `Binned`."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {"label": [], "time_s": [], "width_s": []}
    for label, one in series.items():
        count = len(one.columns[EXTENT])
        columns["label"] += [label] * count
        columns["time_s"] += (np.arange(count) * one.width_s).tolist()
        columns["width_s"] += [one.width_s] * count
        for name, values in one.columns.items():
            columns.setdefault(name, []).extend(values.tolist())
    types = {name: pa.string() if name == "label" else pa.float64() for name in columns}
    return pa.table({name: pa.array(columns[name], types[name]) for name in columns})


class _Integrals:
    """Integrals of the rows' values between every two edges: exact, as a value holds from its row's
    start for its duration, at most until the next row."""

    def __init__(self, start: Any, duration: Any, edges: Any) -> None:
        end = np.minimum(start + duration, np.append(start[1:], np.inf))
        self._lengths = end - start
        self._row = np.searchsorted(start, edges, side="right") - 1
        """The row that holds at each edge, or was the last to hold; -1 before the first."""
        inside = np.minimum(edges, end[self._row]) - start[self._row]
        self._inside = np.where(self._row >= 0, inside, 0.0)

    def of(self, values: Any) -> Any:
        """Of one value per row."""
        before = np.concatenate(([0.0], np.cumsum(self._lengths * values)))
        upto = before[np.maximum(self._row, 0)] + values[self._row] * self._inside
        return np.diff(upto)


def _numbers(table: Any, name: str) -> Any:
    """A column as numbers; an average over no time, NaN in a series, weighs nothing."""
    column = table.column(name).to_numpy()
    return np.nan_to_num(column) if column.dtype.kind == "f" else column.astype(float)
