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
    edges = np.linspace(0.0, end_s, intervals + 1)
    observed = _integrals(start, duration, np.ones(len(start)), edges)
    weight = np.diff(edges) if idle_between else observed
    weight = np.where(weight > 0, weight, np.nan)
    columns = {}
    for name in AVERAGED:
        values = np.nan_to_num(_numbers(steps, name))
        columns[name] = _integrals(start, duration, values, edges) / weight
    if idle_between:
        idle = np.clip(np.diff(edges) - observed, 0.0, None) / weight
        columns["usable_free_slots"] = columns["usable_free_slots"] + idle * capacity_slots
    return Binned(end_s / intervals, end_s, capacity_slots, columns, len(start))


def _integrals(start: Any, duration: Any, values: Any, edges: Any) -> Any:
    """Integral of the rows between every two edges: their running integral is linear inside a row
    and constant between rows, so interpolating it is exact."""
    end = np.minimum(start + duration, np.append(start[1:], np.inf))
    total = np.cumsum((end - start) * values)
    before = np.concatenate(([0.0], total[:-1]))
    times = np.stack((start, end), axis=1).ravel()
    sums = np.stack((before, total), axis=1).ravel()
    return np.diff(np.interp(edges, times, sums, left=0.0))


def _numbers(table: Any, name: str) -> Any:
    return table.column(name).to_numpy().astype(float)
