"""What a trace row asks for (`Request`) and its running state (`Sequence`)."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Branching(NamedTuple):
    """Several sequences that continue one prompt: a sequence group (SOSP'23, sections 4.4, 4.5).

    Every branch generates the request's `output_tokens`.
    """

    kind: str
    """`parallel`: each branch is an output of its own. `beam`: the best continuations survive."""
    width: int
    """Branches: vLLM's `n`, or its `beam_width`."""
    ancestry: str = "independent"
    """Beams: how the survivors of a step come by their parents.

    `independent`: each continues itself. `wright_fisher`: each draws one uniformly. `trace`: as
    `parents` says.
    """
    parents: tuple[tuple[int, ...], ...] = ()
    """Of a trace: the parent of each survivor, after the second generated token, the third, ..."""


class Fork(NamedTuple):
    """Where a request branched off another one, its parent: a node of a tree of requests."""

    parent_id: str
    """The parent's `request_id`."""
    tokens: int
    """So many first tokens of this prompt are the parent's first ones, prompt and output."""


class Request(NamedTuple):
    """One row of a workload.

    `output_tokens` is what the replay generates; `max_tokens` is the limit the client asked for,
    where the trace has one (the reservation rule `requested` reads it). Times are integer
    nanoseconds since the start of the workload, so that ties stay ties.

    What a prompt shares with others is said without text: `segments` are (stream, tokens) pairs in
    prompt order whose lengths sum to `prompt_tokens`; a segment is always the first tokens of its
    stream, and equal streams hold equal tokens. None: nobody shares this prompt.
    `output_stream` names the stream that this request generates, for later prompts that repeat it.
    """

    request_id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    """Lower is more urgent."""
    segments: tuple[tuple[Hashable, int], ...] | None = None
    output_stream: Hashable | None = None
    branches: Branching | None = None
    """None: one sequence."""
    fork: Fork | None = None
    """None: no parent is known. Only the group scheduler shares a running parent's memory."""


class State(StrEnum):
    """Where a sequence is in its life."""

    NOT_SENT = "not_sent"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    DRAINING = "draining"
    """Its last token is being sampled; it holds memory and computes nothing (asynchronous)."""
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """Running state of one request.

    A scheduler owns everything up to `held_up_by_fragmentation`, the allocator owns everything
    from `table` to `extent`, the engine owns the times.

    `tokens` (prompt and sampled tokens known) and `computed` (tokens with KV) are current except
    while the sequence decodes: a decode changes nothing per step, so ask the scheduler then.
    """

    request: Request
    max_model_len: int

    state: State = field(init=False, default=State.WAITING)
    tokens: int = field(init=False)
    computed: int = field(init=False, default=0)
    final_tokens: int = field(init=False)
    """Prompt and output together when the request is finished, in tokens."""
    order: int = field(init=False, default=-1)
    """Rank of the latest admission; running order is the order of these numbers."""
    offset: int = field(init=False, default=0)
    """While decoding: computed tokens minus the scheduler's step counter."""
    due: int = field(init=False, default=-1)
    """While decoding: where the calendar filed the sequence's next append."""
    chunk_tokens: int = field(init=False, default=0)
    """Tokens of the latest prefill chunk."""
    drafts: int = field(init=False, default=0)
    """Draft tokens to verify in the next step (speculation)."""
    verifies: int = field(init=False, default=0)
    """Steps that verified drafts so far."""
    high_water: int = field(init=False, default=0)
    """Most tokens that ever had KV, in tokens: positions below it are recomputed."""
    admissions: int = field(init=False, default=0)
    preemptions: int = field(init=False, default=0)
    cached_tokens: int = field(init=False, default=0)
    """Prompt tokens found in the prefix cache at the first admission."""
    was_decoding: bool = field(init=False, default=False)
    """At the latest preemption: whether a token had been sampled in the step before."""
    held_up_by_fragmentation: bool = field(init=False, default=False)
    """Ever waited at the head although the free slots would have sufficed in one piece."""

    table: list[int] = field(init=False, default_factory=list)
    """Block ids, by logical block index (paged memory)."""
    tables: list[list[int]] = field(init=False, default_factory=list)
    """One table per layer group, 0 where no block is held (memory with layer groups)."""
    null_blocks: list[int] = field(init=False, default_factory=list)
    """Leading entries of each of `tables` that hold no block: they are out of the window."""
    junction: int = field(init=False, default=0)
    """Where some layer group's hit was longer than the hit of all, in tokens; else 0."""
    sealed: int = field(init=False, default=0)
    """Leading blocks of the table whose content the prefix cache knows.

    With layer groups: leading scheduler blocks (the least common multiple of the groups' block
    sizes) that were considered for the prefix cache.
    """
    first_private: int = field(init=False, default=0)
    """The first block whose content no other request can share.

    With layer groups: the tokens others can share; blocks that end behind them are private.
    """
    piece_ends: Seq[int] = field(init=False, default=())
    """Ends, in tokens, of the pieces of the token stream (prefix caching; see streams.py)."""
    piece_bases: Seq[int] = field(init=False, default=())
    extent: Any = field(init=False, default=None)
    """The reserved address range (contiguous memory)."""

    arrived_ns: int = field(init=False)
    first_scheduled_ns: int = field(init=False, default=-1)
    first_token_ns: int = field(init=False, default=-1)
    last_token_ns: int = field(init=False, default=-1)
    finished_ns: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        request = self.request
        self.tokens = request.prompt_tokens
        self.final_tokens = min(request.prompt_tokens + request.output_tokens, self.max_model_len)
        self.arrived_ns = request.arrival_ns

    @property
    def final_kv_tokens(self) -> int:
        """KV length at the end, in tokens: the last sampled token never gets a slot."""
        return self.final_tokens - 1

    def __repr__(self) -> str:
        return f"Sequence({self.request.request_id!r}, {self.state.value}, table={len(self.table)})"
