"""A time series of averages over equal intervals."""

from __future__ import annotations

from array import array
from typing import Any

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence
from kvsim.errors import InputError
from kvsim.results.histogram import NS_PER_S
from kvsim.results.memory import StateSums, state_of
from kvsim.results.rows import (
    STEP_COLUMNS,
    Columns,
    largest_free_extent,
    logical_slots_of,
    term_columns,
)

_COUNTS = ("steps", "prefill_tokens", "decode_tokens", "preemptions")


class SeriesRecorder:
    """One row per interval of `interval_ns`, the first starting at time 0.

    `running`, `waiting`, `context_tokens`, the largest free extent and every figure in slots are
    averages over the interval's observed time (`duration_s`), from exact integer integrals: a step
    over a boundary counts on both sides by its overlap. `steps`, `prefill_tokens`, `decode_tokens`
    and `preemptions` are sums over the steps that start in the interval. An interval in which
    nothing took time has NaN averages; one in which nothing happened has no row. At most
    `max_rows` rows; beyond, an `InputError` about `record.interval_s`.
    """

    def __init__(
        self, allocator: Allocator, *, interval_ns: int, max_rows: int = 1_000_000
    ) -> None:
        if interval_ns < 1:
            raise InputError(
                f"the series interval must be >= 1 ns, got {interval_ns}",
                fix="Give it in seconds, e.g. 1.0.",
            )
        self._allocator = allocator
        self._logical_slots = logical_slots_of(allocator)
        self._interval_ns = interval_ns
        self._max_rows = max_rows
        self._columns: dict[str, array[Any]] = {
            name: array("q" if name in _COUNTS else "d") for name in STEP_COLUMNS
        }
        self._index = 0
        self._start_row()

    def _start_row(self) -> None:
        self._sums = StateSums()
        self._waiting = 0
        self._context_tokens = 0
        self._logical = 0
        self._counts = dict.fromkeys(_COUNTS, 0)

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book a step."""
        self._move_to(start_ns // self._interval_ns)
        counts = self._counts
        counts["steps"] += 1
        counts["prefill_tokens"] += plan.prefill_tokens
        counts["decode_tokens"] += plan.num_decodes
        counts["preemptions"] += len(plan.preempted)
        self._hold(plan, start_ns, start_ns + duration_ns)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Book a stretch without steps."""
        self._hold(None, start_ns, start_ns + duration_ns)

    def request(self, sequence: Sequence, outcome: str) -> None:
        """No row here."""

    def rejected(self, request: Request, reason: str) -> None:
        """No row here."""

    def _hold(self, plan: StepPlan | None, start_ns: int, end_ns: int) -> None:
        usage, logical = self._allocator.usage, self._logical_slots()
        state = state_of(
            usage,
            running=plan.num_running if plan else 0,
            largest_free_extent=largest_free_extent(self._allocator),
            live_tokens=plan.live_tokens if plan else 0,
        )
        while start_ns < end_ns:
            index = start_ns // self._interval_ns
            self._move_to(index)
            weight = min(end_ns, (index + 1) * self._interval_ns) - start_ns
            self._sums.add(state, weight)
            self._logical += logical * weight
            if plan:
                self._waiting += plan.num_waiting * weight
                self._context_tokens += plan.decode_context_tokens * weight
                if plan.head_held_up:
                    free = self._allocator.capacity_slots - usage.allocated
                    self._sums.add_held_up(free, usage.cached, weight)
            start_ns += weight

    def _move_to(self, index: int) -> None:
        if index != self._index:
            self._close_row()
            self._index = index

    def _close_row(self) -> None:
        row = self._row()
        if row is None:
            return
        if len(self._columns["time_s"]) >= self._max_rows:
            raise InputError(
                f"the time series has more than {self._max_rows} rows at an interval of "
                f"{self._interval_ns / NS_PER_S:g} s",
                where="record.interval_s",
                fix="Choose a longer interval.",
            )
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)
        self._start_row()

    def _row(self) -> tuple[float, ...] | None:
        sums = self._sums
        weight = sums.weight
        counts = self._counts
        if not weight and not counts["steps"]:
            return None

        def mean(total: int) -> float:
            return total / weight if weight else float("nan")

        allocator = self._allocator
        terms = sums.terms(allocator.capacity_slots, reserves_ahead=allocator.reserves_ahead)
        return (
            self._index * self._interval_ns / NS_PER_S,
            weight / NS_PER_S,
            counts["steps"],
            mean(sums.total("running")),
            mean(self._waiting),
            counts["prefill_tokens"],
            counts["decode_tokens"],
            mean(self._context_tokens),
            mean(sums.total("allocated")),
            mean(self._logical),
            *map(mean, term_columns(terms)),
            mean(sums.total("largest_free_extent")),
            counts["preemptions"],
        )

    def columns(self) -> Columns:
        """The rows so far, the one in progress included, as the columns of `STEP_COLUMNS`."""
        row = self._row()
        if row is None:
            return self._columns
        columns = {name: column[:] for name, column in self._columns.items()}
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        return columns
