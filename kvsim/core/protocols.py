"""The seams of the engine. Implementations are plain classes; nothing inherits from these."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kvsim.core.accounting import Usage
from kvsim.core.plan import Copy, StepPlan, Transfer
from kvsim.core.request import Request, Sequence


class Hit(NamedTuple):
    """What the prefix cache holds of a waiting sequence, as of now: a look-up changes nothing."""

    tokens: int
    blocks: Any
    """Opaque to the scheduler: block ids, one list per layer group where there are several."""
    free_blocks: int
    """How many of the blocks nobody holds: using them takes them from the free ones."""
    fetch: Any = None
    """Opaque: what of the hit comes from outside the device; None: nothing."""


NO_HIT = Hit(0, (), 0)


class Allocator(Protocol):
    """Owns every slot of the KV memory; never sees the running set.

    "Does not fit" is an answer (`False`), not an exception; a refused call changes nothing.
    """

    num_blocks: int
    """All blocks, a null block included (the watermark is a fraction of these)."""
    block_size: int
    """Slots per block, the unit in which memory is handed out."""
    capacity_slots: int
    """Slots that requests can use (a null block is not among them)."""
    usage: Usage
    """Read by recorders after every `schedule()`; changed only by the methods below."""
    seals_ahead: bool
    """Whether a block gets its content in the step that computes its last token, one step before
    the sequence's next append: the scheduler then calls `seal_bulk` for those."""
    reserves_ahead: bool
    """Whether empty allocated slots are address space ahead of the sequence (contiguous) rather
    than the rest of its last block (paged)."""
    live_tokens: Callable[[Sequence], int]
    """Computed tokens of a sequence before this step; set by the scheduler, read for copies."""

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why an empty memory could not serve this request alone, or None. Changes nothing."""

    def lookup(self, sequence: Sequence) -> Hit:
        """Cached tokens of a waiting sequence, at most all but its last known one."""

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """Give a waiting sequence its cached tokens and memory for `new_tokens` tokens behind them.

        `hit` is what `lookup` just answered for it, an empty one too (`NO_HIT` without a cache).
        Refuses unless `known_tokens` tokens (0: no such gate) would fit too, and unless
        `keep_free` blocks stay free. Changes the free memory, `usage`, the prefix cache and the
        sequence's `table` or `extent`.
        """

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Extend a running sequence that has `computed` tokens by `new_tokens` tokens.

        `known` tokens are known in value: only blocks of known tokens get a content. `in_flight`
        of the computed tokens belong to a step that is not booked yet (asynchronous scheduling).
        Changes the free memory, `usage`, the prefix cache and the sequence's `table`.
        """

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """Give each sequence, in order, the one block its next token needs. All or nothing."""

    def seal(self, sequence: Sequence, upto: int) -> None:
        """The first `upto` tokens have KV and known values: their full blocks get a content."""

    def seal_bulk(self, sequences: Seq[Sequence]) -> None:
        """The next token of each sequence fills its last block, which gets a content."""

    def append_period(self) -> int | None:
        """Tokens between two single-token appends that change memory; 0 when none ever does.

        None: irregular, `horizon` tells.
        """

    def horizon(self, sequence: Sequence, computed: int) -> int:
        """Single-token appends from `computed` tokens on that neither change memory nor fail."""

    def free_count(self) -> int:
        """Free blocks."""

    def held_up(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence fits the sum of the free slots but no free extent."""

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence's memory is at most the sum of the free slots."""

    def largest_free_extent(self) -> int:
        """Slots one sequence could take without compaction."""

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Take back everything the sequence holds. Changes free memory, `usage`, its table.

        `resumes`: it is preempted and will be admitted again.
        """

    def prefix_counts(self) -> dict[str, int] | None:
        """What the prefix cache did since the start, in tokens and blocks; None without one."""

    def take_copies(self) -> list[Copy]:
        """Moves the device must make before the next step, in order. Forgets them."""

    def dump(self) -> dict[str, Any]:
        """The full state as plain data, for recordings and maps."""

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Raise `AssertionError` with both sides of the equation unless every slot is owned once.

        `sequences` are all those that hold memory.
        """


@runtime_checkable
class MapsPages(Protocol):
    """An allocator whose growth maps physical pages, which takes time."""

    def take_mapped_pages(self) -> int:
        """Page sets mapped since the last call. Forgets them."""


@runtime_checkable
class Fetches(Protocol):
    """An allocator whose admissions move KV to the device from outside it, which takes time."""

    def take_transfers(self) -> list[Transfer]:
        """What moves before the next step. Forgets it."""


@runtime_checkable
class SharesBlocks(Protocol):
    """An allocator whose block tables may hold the same block."""

    def further_holders(self) -> int:
        """Table entries beyond the first of each block."""


class Scheduler(Protocol):
    """Owns order, budgets and victims."""

    is_async: bool
    """Whether `schedule()` is called for a step before the step before it is completed."""
    delivers_unevenly: bool
    """Whether a decode may wait in a step, so that deliveries are noted one by one."""

    def refuse(self, request: Request) -> str | None:
        """Why this request must be rejected at arrival, or None. Changes nothing."""

    def unservable(self, request: Request) -> str | None:
        """Why a request alone could not finish in an empty memory, or None."""

    def add(self, request: Request) -> Sequence:
        """Put a request into the waiting queue."""

    def abort(self, request_id: str) -> Sequence | None:
        """Cancel a waiting or running request; its memory is free at once. None if unknown."""

    def has_work(self) -> bool:
        """Whether anything runs or waits."""

    def blocked_reason(self) -> str:
        """Why nothing was scheduled although requests wait and nothing runs."""

    def running(self) -> list[Sequence]:
        """Everything that holds memory, in running order."""

    def unfinished(self) -> tuple[list[Sequence], list[Sequence]]:
        """What waits and what runs, in order, with current `tokens` and `computed`."""

    def schedule(self) -> StepPlan:
        """Decide the next step. Changes queues and memory as if the step had been computed."""

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Book the step's sampled tokens; returns the sequences that sampled their last one.

        Steps are completed in the order of their plans: asynchronous ones after the next
        `schedule()`, if there is one. A plan without tokens need not be completed.
        """


class Clock(Protocol):
    """Says how long a step takes."""

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""


class Recorder(Protocol):
    """Receives what happened. Times are integer nanoseconds."""

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """One engine step, called between `schedule()` and `complete()`, once it has a duration."""

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """A stretch without steps."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """A request reached its end: finished, aborted or unfinished."""

    def rejected(self, request: Request, reason: str) -> None:
        """A request was rejected at arrival."""
