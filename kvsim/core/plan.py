"""The hand-off record between a scheduler and whatever runs the step."""

from __future__ import annotations

from collections.abc import Mapping
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


class StepPlan:
    """One engine iteration.

    Aggregates are filled by `schedule()`. `scheduled()` lists every sequence of the step and costs
    a pass over the running set: only verification, full recording and executors read it, and only
    before `complete()`.
    """

    __slots__ = (
        "_members",
        "admitted",
        "chunks",
        "copies",
        "decode_context_tokens",
        "finished",
        "head_held_up",
        "head_short_of_memory",
        "joined",
        "live_tokens",
        "num_decodes",
        "num_running",
        "num_waiting",
        "padded_decodes",
        "preempted",
        "prefill_tokens",
        "prefills",
        "recomputed_tokens",
        "step",
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
        self.chunks: list[Chunk] = []
        self.prefills: list[Sequence] = []
        """The sequence of each chunk, in scheduling order."""
        self.prefill_tokens = 0
        """Prompt (or recomputed) tokens scheduled, without padding."""
        self.recomputed_tokens = 0
        """Scheduled positions below the request's earlier high-water mark."""
        self.copies: list[Copy] = []
        self.live_tokens = 0
        """Sum of computed tokens over everything that holds memory, this step's included."""
        self.num_running = 0
        self.num_waiting = 0
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.joined: list[Sequence] = []
        """Sequences whose prefill ends in this step: they sample their next token at its end."""
        self.finished: list[Sequence] = []
        """Filled by `complete()`."""
        self.head_held_up = False
        """The head of the queue fits the sum of the free slots, but no free extent."""
        self.head_short_of_memory = False
        """The head of the queue fits neither."""
        self._members = members

    @property
    def scheduled_tokens(self) -> int:
        """Tokens computed for requests in this step, padding excluded."""
        return self.num_decodes + self.prefill_tokens

    def scheduled(self) -> list[tuple[Sequence, int]]:
        """Every scheduled sequence with its number of tokens, in scheduling order."""
        new_tokens = {
            sequence.order: chunk.new_tokens
            for sequence, chunk in zip(self.prefills, self.chunks, strict=True)
        }
        return [
            (sequence, 1 if sequence.state is State.DECODING else new_tokens[order])
            for order, sequence in self._members.items()
            if sequence.state is State.DECODING or order in new_tokens
        ]
