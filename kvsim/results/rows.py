"""Rows: one per step and one per request, kept as columns."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from kvsim.core.accounting import MemoryTerms, split
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence
from kvsim.results.histogram import NS_PER_S
from kvsim.results.requests import truncated

Columns = Mapping[str, "array[Any] | list[Any]"]
"""Columns of equal length: `array('q')` integers, `array('d')` numbers, lists with None."""

STEP_COLUMNS = (
    "time_s",
    "duration_s",
    "steps",
    "running",
    "waiting",
    "prefill_tokens",
    "decode_tokens",
    "context_tokens",
    "allocated_slots",
    "live_slots",
    "reservation_slots",
    "internal_slots",
    "external_slots",
    "usable_free_slots",
    "reservation_tail_slots",
    "reservation_ahead_slots",
    "internal_tail_slots",
    "over_reservation_slots",
    "roundup_slots",
    "cached_slots",
    "largest_free_extent_tokens",
    "preemptions",
)
"""Columns of `steps.parquet`, in every mode and for simulated and measured runs alike.

`context_tokens` are the KV tokens that the step's decodes read; `prefill_tokens` and
`decode_tokens` are scheduled; the five terms and their details are slots."""

REQUEST_COLUMNS = (
    "request_id",
    "outcome",
    "reason",
    "arrival_s",
    "queue_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "held_up_by_fragmentation",
)
"""Columns of `requests.parquet`. Times are since the start of the workload, `queue_s` since the
arrival; None where it did not happen. `output_tokens` are those delivered."""


def term_columns(terms: MemoryTerms) -> tuple[int, ...]:
    """The five terms, then their details, in the order of `STEP_COLUMNS`."""
    return (
        terms.live,
        terms.reservation,
        terms.internal,
        terms.external,
        terms.usable_free,
        terms.reservation_tail,
        terms.reservation_ahead,
        terms.internal_tail,
        terms.over_reservation,
        terms.roundup,
        terms.cached,
    )


class StepsRecorder:
    """One row per step: the state after `schedule()`. A gap between two rows is idle time.

    Keeps 22 numbers of 8 bytes per step in memory.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._columns: dict[str, array[Any]] = {
            name: array("d" if name in ("time_s", "duration_s") else "q") for name in STEP_COLUMNS
        }

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Add a row."""
        allocator = self._allocator
        terms = split(
            allocator.usage,
            live_tokens=plan.live_tokens,
            capacity=allocator.capacity_slots,
            reserves_ahead=allocator.reserves_ahead,
            held_up=plan.head_held_up,
        )
        row = (
            start_ns / NS_PER_S,
            duration_ns / NS_PER_S,
            1,
            plan.num_running,
            plan.num_waiting,
            plan.prefill_tokens,
            plan.num_decodes,
            plan.decode_context_tokens,
            allocator.usage.allocated,
            *term_columns(terms),
            largest_free_extent(allocator),
            len(plan.preempted),
        )
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """No row: nothing is scheduled."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """No row here."""

    def rejected(self, request: Request, reason: str) -> None:
        """No row here."""

    def columns(self) -> Columns:
        """The rows so far, as the columns of `STEP_COLUMNS`."""
        return self._columns


class RequestsRecorder:
    """One row per request, in the order of their ends."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in REQUEST_COLUMNS}

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """No row here."""

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """No row here."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Add a row; its reason is an unfinished request's state, or what cut a finished one."""
        arrived = sequence.arrived_ns
        scheduled = sequence.first_scheduled_ns
        self._append(
            sequence.request.request_id,
            outcome,
            _reason(sequence, outcome),
            arrived / NS_PER_S,
            (scheduled - arrived) / NS_PER_S if scheduled >= 0 else None,
            _seconds(sequence.first_token_ns),
            _seconds(sequence.finished_ns),
            sequence.request.prompt_tokens,
            sequence.tokens - sequence.request.prompt_tokens,
            sequence.cached_tokens,
            sequence.preemptions,
            sequence.held_up_by_fragmentation,
        )

    def rejected(self, request: Request, reason: str) -> None:
        """Add a row for a request rejected at arrival."""
        self._append(
            request.request_id,
            "rejected",
            reason,
            request.arrival_ns / NS_PER_S,
            None,
            None,
            None,
            request.prompt_tokens,
            0,
            0,
            0,
            False,
        )

    def _append(self, *row: object) -> None:
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def columns(self) -> Columns:
        """The rows so far, as the columns of `REQUEST_COLUMNS`."""
        return self._columns


def _reason(sequence: Sequence, outcome: str) -> str | None:
    if outcome == "unfinished":
        return sequence.state.value
    return "max_model_len" if outcome == "finished" and truncated(sequence) else None


def largest_free_extent(allocator: Allocator) -> int:
    """Slots one sequence could take; every free block of a paged pool counts."""
    if allocator.reserves_ahead:
        return allocator.largest_free_extent()
    return allocator.capacity_slots - allocator.usage.allocated


def _seconds(time_ns: int) -> float | None:
    return time_ns / NS_PER_S if time_ns >= 0 else None
