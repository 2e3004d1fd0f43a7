"""Iteration-level scheduling as in Orca (OSDI'22): reserve before run, never preempt."""

from __future__ import annotations

from kvsim.core.plan import Chunk, StepPlan
from kvsim.core.protocols import NO_HIT, Allocator
from kvsim.core.request import Sequence
from kvsim.core.scheduler_base import QueueScheduler


class OrcaScheduler(QueueScheduler):
    """Every iteration runs all admitted requests; a prompt is computed in one iteration.

    A request enters when a place in the batch, its whole reservation and its whole prompt's share
    of the token budget are there; the head of the queue waits and nothing overtakes it.
    """

    def __init__(
        self,
        allocator: Allocator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        on_never_fits: str = "reject",
    ) -> None:
        """`allocator` must never need memory after admission: there is nobody to preempt."""
        if allocator.append_period():
            raise ValueError("the orca scheduler never preempts: memory must be reserved ahead")
        super().__init__(
            allocator,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            on_never_fits=on_never_fits,
        )
        if max_num_batched_tokens < max_model_len:
            raise ValueError(
                f"max_num_batched_tokens (={max_num_batched_tokens}) must be >= max_model_len "
                f"(={max_model_len}): a prompt is never split"
            )
        self.max_num_batched_tokens = max_num_batched_tokens

    def schedule(self) -> StepPlan:
        """All running decodes compute one token; heads of the queue join while they fit."""
        plan = self._begin()
        calendar, waiting = self.calendar, self.waiting
        calendar.advance()
        budget = self.max_num_batched_tokens - calendar.num_decodes
        while waiting and len(calendar.members) < self.max_num_seqs:
            head = waiting.head()
            prompt = head.tokens
            if prompt > budget or not self.allocator.admit(head, NO_HIT, prompt, 0, 0):
                break
            waiting.pop()
            calendar.admit(head)
            head.computed = prompt
            calendar.prefill_tokens += prompt
            budget -= prompt
            plan.admitted.append(head)
            plan.prefills.append(head)
            plan.chunks.append(Chunk(prompt, 0))
            plan.prefill_tokens += prompt
            plan.joined.append(head)
        return self._close(plan)

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Sample, finish, and free in running order."""
        finished = self.calendar.take_endings(plan.step)
        return self._finish(finished, plan) if finished else finished
