"""The hand-off record between a scheduler and whatever runs the step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from kvsim.core.request import Sequence, State


class Chunk(NamedTuple):
    """Consecutive prompt tokens computed in one step by one sequence."""

    new_tokens: int
    """Tokens computed, padding included where the scheduler pads."""
    prior_tokens: int
    """Tokens of the sequence that already have KV."""


class Copy(NamedTuple):
    """KV moved inside the device before the step's kernels run. Addresses are slots."""

    source_slot: int
    target_slot: int
    tokens: int


class Transfer(NamedTuple):
    """KV moved between the device and memory outside it before the step's kernels run."""

    link: str
    """Name of the way, which has a direction: `swap_out`, `swap_in`, or a tier that is read."""
    tokens: int
    """Tokens moved, shared ones once."""
    blocks: int


class Outcome(NamedTuple):
    """What a sequence gets out of a step with speculation."""

    sequence: Sequence
    verified_tokens: int
    """Drafts computed."""
    accepted_tokens: int
    """Those found right, before the request's end cuts them."""
    delivered_tokens: int
    """Tokens the request receives: 0 while its prompt is not computed, else 1 and more."""


NOBODY: Seq[Sequence] = ()


class StepPlan:
    """One engine iteration.

    Aggregates are filled by `schedule()`. `scheduled()` lists every sequence of the step and costs
    a pass over the running set: only verification, full recording and executors read it, and only
    before `complete()`.
    """

    __slots__ = (
        "_members",
        "admitted",
        "bonus_tokens",
        "chunks",
        "copies",
        "decode_context_tokens",
        "draft_tokens",
        "finished",
        "further_branches",
        "head_held_up",
        "head_short_of_memory",
        "hits",
        "joined",
        "listed",
        "live_tokens",
        "mapped_pages",
        "num_decodes",
        "num_running",
        "num_waiting",
        "outcomes",
        "padded_decodes",
        "preempted",
        "prefill_tokens",
        "prefills",
        "recomputed_tokens",
        "step",
        "swapped_in",
        "swapped_out",
        "transfers",
    )

    def __init__(self, step: int, members: Mapping[int, Sequence]) -> None:
        """`members` are the running sequences by order, as the scheduler keeps them."""
        self.step = step
        self.num_decodes = 0
        """Sequences that compute one new token after a sampled one."""
        self.padded_decodes = 0
        """Rows of a static batch that are computed although their request has ended."""
        self.decode_context_tokens = 0
        """KV tokens read by the decodes, their new token and padded rows included."""
        self.draft_tokens = self.bonus_tokens = 0
        """Draft tokens that are verified, beside the decodes' and prefills' own tokens; tokens that
        decodes receive beyond one each, thanks to accepted drafts."""
        self.outcomes: list[Outcome] = []
        """With speculation: one per scheduled sequence, in scheduling order."""
        self.listed: list[tuple[Sequence, int]] | None = None
        """With speculation: what `scheduled()` returns."""
        self.chunks: list[Chunk] = []
        self.prefills: list[Sequence] = []
        """The sequence of each chunk, in scheduling order."""
        self.prefill_tokens = self.recomputed_tokens = 0
        """Prompt (or recomputed) tokens scheduled, without padding; those of them that lie below
        the request's earlier high-water mark."""
        self.copies: list[Copy] = []
        self.transfers: list[Transfer] = []
        self.live_tokens = 0
        """Slots of the computed tokens of everything that holds memory, this step's included and
        shared ones counted for every holder; drafts that will be rejected are not among them."""
        self.num_running = self.num_waiting = self.mapped_pages = self.further_branches = 0
        """Sequences; page sets mapped before the kernels run (memory over virtual addresses);
        branches of running groups beyond the one each that `num_running` counts."""
        self.admitted: list[Sequence] = []
        self.hits: list[int] = []
        """Tokens that each admitted sequence found in the prefix cache."""
        self.preempted: list[Sequence] = []
        self.swapped_out = self.swapped_in = NOBODY
        """Those of `preempted` that keep their KV in host memory; those that come back with it and
        compute in this step."""
        self.joined: list[Sequence] = []
        """Sequences whose prefill ends in this step: they sample their next token at its end."""
        self.finished: list[Sequence] = []
        """Filled by `complete()`."""
        self.head_held_up = self.head_short_of_memory = False
        """The head of the queue fits the sum of the free slots, but no free extent; it fits
        neither."""
        self._members = members

    @property
    def scheduled_tokens(self) -> int:
        """Tokens computed for requests in this step, drafts included, padding excluded."""
        return self.num_decodes + self.prefill_tokens + self.draft_tokens

    def scheduled(self) -> list[tuple[Sequence, int]]:
        """Every scheduled sequence with its number of tokens, in scheduling order.

        Current until the next `schedule()` or `complete()`.
        """
        if self.listed is not None:
            return self.listed
        new_tokens = {
            sequence.order: chunk.new_tokens
            for sequence, chunk in zip(self.prefills, self.chunks, strict=True)
        }
        return [
            (sequence, new_tokens.get(order, 1))
            for order, sequence in self._members.items()
            if sequence.state is State.DECODING or order in new_tokens
        ]
