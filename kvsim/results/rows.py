"""Rows: one per step and one per request, kept as columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from kvsim.core.accounting import MemoryTerms, Usage, split
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator, SharesBlocks
from kvsim.core.request import Request, Sequence
from kvsim.errors import InputError
from kvsim.results.histogram import NS_PER_S
from kvsim.results.memory import STATE
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
    "logical_slots",
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
`decode_tokens` are scheduled; the five terms and their details are slots. `logical_slots` count
an allocated block once for every sequence that holds it."""

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
arrival; None where it did not happen. `output_tokens` are those delivered, of one branch where
there are several."""


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


_STATE = (
    "start_ns",
    "duration_ns",
    "running",
    "waiting",
    "prefill_tokens",
    "decode_tokens",
    "context_tokens",
    "live_tokens",
    "allocated",
    "logical",
    "internal_tail",
    "over_reservation",
    "roundup",
    "shared",
    "cached",
    "held_up",
    "largest_free_extent",
    "preemptions",
)
"""What is kept of a step; the terms follow from it."""


class StepsRecorder:
    """One row per step: the state after `schedule()`. A gap between two rows is idle time.

    Keeps 18 numbers of 8 bytes per step in memory. A step beyond `max_rows` is an `InputError`
    about `record.mode`.
    """

    def __init__(self, allocator: Allocator, *, max_rows: int | None = None) -> None:
        self._allocator = allocator
        self._max_rows = max_rows
        self._most = None if max_rows is None else max_rows * len(_STATE)
        self._logical_slots = logical_slots_of(allocator)
        self._states: array[int] = array("q")

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Add a row."""
        if self._most is not None and len(self._states) >= self._most:
            raise InputError(
                f"the run has more than {self._max_rows:,} steps",
                where="record.mode",
                fix="Record a time series, or no rows.",
            )
        usage = self._allocator.usage
        self._states.extend(
            (
                start_ns,
                duration_ns,
                plan.num_running,
                plan.num_waiting,
                plan.prefill_tokens,
                plan.num_decodes,
                plan.decode_context_tokens,
                plan.live_tokens,
                usage.allocated,
                self._logical_slots(),
                usage.internal_tail,
                usage.over_reservation,
                usage.roundup,
                usage.shared,
                usage.cached,
                plan.head_held_up,
                largest_free_extent(self._allocator),
                len(plan.preempted),
            )
        )

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """No row: nothing is scheduled."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """No row here."""

    def rejected(self, request: Request, reason: str) -> None:
        """No row here."""

    def columns(self) -> Columns:
        """The rows so far, as the columns of `STEP_COLUMNS`."""
        import numpy as np

        table = np.array(self._states, dtype=np.int64).reshape(-1, len(_STATE)).T
        state: dict[str, Any] = dict(zip(_STATE, table, strict=True))
        columns = (
            state["start_ns"] / NS_PER_S,
            state["duration_ns"] / NS_PER_S,
            np.ones_like(state["running"]),
            *(state[name] for name in _STATE[2:7]),
            state["allocated"],
            state["logical"],
            *(np.broadcast_to(term, table.shape[1]) for term in term_columns(self._terms(state))),
            state["largest_free_extent"],
            state["preemptions"],
        )
        return {
            name: array("d" if column.dtype.kind == "f" else "q", column.tobytes())
            for name, column in zip(STEP_COLUMNS, columns, strict=True)
        }

    def _terms(self, state: Mapping[str, Any]) -> MemoryTerms:
        """The core's equation on whole columns: it is linear but for what holds the head up."""
        allocator = self._allocator
        usage: Any = Usage()
        for name in STATE[3:]:
            setattr(usage, name, state.get(name))
        terms = split(
            usage,
            live_tokens=state["live_tokens"],
            capacity=allocator.capacity_slots,
            reserves_ahead=allocator.reserves_ahead,
            held_up=False,
        )
        held_up = state["held_up"]
        return terms._replace(
            external=terms.usable_free * held_up,
            usable_free=terms.usable_free * (1 - held_up),
            cached=terms.cached * (1 - held_up),
        )


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


def logical_slots_of(allocator: Allocator) -> Callable[[], int]:
    """Says the slots of allocated blocks, one held by several sequences counted for each."""
    usage, block_size = allocator.usage, allocator.block_size
    if not isinstance(allocator, SharesBlocks):
        return lambda: usage.allocated
    further_holders = allocator.further_holders
    return lambda: usage.allocated + further_holders() * block_size


def largest_free_extent(allocator: Allocator) -> int:
    """Slots one sequence could take; every free block of a paged pool counts."""
    if allocator.reserves_ahead:
        return allocator.largest_free_extent()
    return allocator.capacity_slots - allocator.usage.allocated


def _seconds(time_ns: int) -> float | None:
    return time_ns / NS_PER_S if time_ns >= 0 else None
