"""What a trace row asks for (`Request`) and its running state (`Sequence`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Request(NamedTuple):
    """One row of a workload.

    `output_tokens` is what the replay generates; `max_tokens` is the limit the client asked for,
    where the trace has one (the reservation rule `requested` reads it). Times are integer
    nanoseconds since the start of the workload, so that ties stay ties.
    """

    request_id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0


class State(StrEnum):
    """Where a sequence is in its life."""

    NOT_SENT = "not_sent"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    ABORTED = "aborted"


class Sequence:
    """Running state of one request.

    A scheduler owns everything up to `held_up_by_fragmentation`, the allocator owns `table` and
    `extent`, the engine owns the times.

    `tokens` (prompt and sampled tokens known) and `computed` (tokens with KV) are current except
    while the sequence decodes: a decode changes nothing per step, so ask the scheduler then.
    """

    __slots__ = (
        "admissions",
        "arrived_ns",
        "block_offset",
        "cached_tokens",
        "computed",
        "extent",
        "final_tokens",
        "finished_ns",
        "first_scheduled_ns",
        "first_token_ns",
        "held_up_by_fragmentation",
        "high_water",
        "last_token_ns",
        "max_model_len",
        "offset",
        "order",
        "preemptions",
        "request",
        "state",
        "table",
        "tokens",
        "was_decoding",
    )

    def __init__(self, request: Request, max_model_len: int) -> None:
        self.request = request
        self.max_model_len = max_model_len
        self.state = State.WAITING
        self.tokens = request.prompt_tokens
        self.computed = 0
        self.final_tokens = min(request.prompt_tokens + request.output_tokens, max_model_len)
        """Prompt and output together when the request is finished, in tokens."""
        self.order = -1
        """Rank of the latest admission; running order is the order of these numbers."""
        self.offset = 0
        """While decoding: computed tokens minus the scheduler's step counter."""
        self.block_offset = 0
        """While decoding: the step residue at which the sequence crosses a block boundary."""
        self.high_water = 0
        """Most tokens that ever had KV, in tokens: positions below it are recomputed."""
        self.admissions = 0
        self.preemptions = 0
        self.cached_tokens = 0
        self.was_decoding = False
        """At the latest preemption: whether a token had been sampled in the step before."""
        self.held_up_by_fragmentation = False
        """Ever waited at the head although the free slots would have sufficed in one piece."""

        self.table: list[int] = []
        """Block ids, by logical block index (paged memory)."""
        self.extent: Any = None
        """The reserved address range (contiguous memory)."""

        self.arrived_ns = request.arrival_ns
        self.first_scheduled_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1
        self.finished_ns = -1

    @property
    def final_kv_tokens(self) -> int:
        """KV length at the end, in tokens: the last sampled token never gets a slot."""
        return self.final_tokens - 1

    def __repr__(self) -> str:
        return f"Sequence({self.request.request_id!r}, {self.state.value}, table={len(self.table)})"
