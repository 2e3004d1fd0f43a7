"""Request-level batching as in FasterTransformer: a batch runs until its longest member ends."""

from __future__ import annotations

from kvsim.core.plan import Chunk, StepPlan
from kvsim.core.protocols import NO_HIT, Allocator
from kvsim.core.request import Sequence, State
from kvsim.core.scheduler_base import QueueScheduler


class StaticScheduler(QueueScheduler):
    """Forms a batch of whatever waits, prefills it in one step, and admits nothing until it ends.

    Members that end early have delivered their last token, but keep their row and their memory
    and are computed on: a batch wastes sum(max O - O_i) token-steps.

    On memory that must grow while the batch runs (`grow`), a failed growth loses the batch: it is
    tried again with half as many members, as pipelines do that catch an out-of-memory error.
    """

    def __init__(
        self,
        allocator: Allocator,
        *,
        max_num_seqs: int,
        max_model_len: int,
        pad_prompts: bool = False,
        on_never_fits: str = "reject",
    ) -> None:
        """`max_num_seqs` is the batch size; `pad_prompts` computes every row at the longest."""
        if not allocator.reserves_ahead:
            raise ValueError("the static scheduler never preempts: memory must be reserved ahead")
        super().__init__(
            allocator,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            on_never_fits=on_never_fits,
        )
        self.pad_prompts = pad_prompts
        self._batch_limit = max_num_seqs
        self._width = 0
        """Tokens of the longest row."""
        self._ended: dict[int, Sequence] = {}
        self._ended_tokens = 0

    def running(self) -> list[Sequence]:
        """All rows of the batch, ended ones too: they hold memory."""
        return sorted(
            [*self.calendar.members.values(), *self._ended.values()], key=lambda row: row.order
        )

    def unfinished(self) -> tuple[list[Sequence], list[Sequence]]:
        """What waits and what still generates."""
        queue, rows = super().unfinished()
        return queue, [row for row in rows if row.state is not State.FINISHED]

    def schedule(self) -> StepPlan:
        """One decode of the running batch, or the prefill of a new one."""
        plan = self._begin()
        calendar = self.calendar
        if calendar.members and calendar.period and not self._grow():
            self._lose_batch(plan)
        if calendar.members:
            calendar.advance()
            self._width += 1
        else:
            self._form_batch(plan)
        self._close(plan)
        plan.padded_decodes = len(self._ended)
        plan.live_tokens += self._ended_tokens
        if self.pad_prompts:
            plan.decode_context_tokens = (plan.num_decodes + plan.padded_decodes) * self._width
        else:
            plan.decode_context_tokens += self._ended_tokens
        return plan

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Sample; free the whole batch once its last member has ended."""
        ended = self.calendar.take_endings(plan.step)
        ended.sort(key=lambda sequence: sequence.order)
        for sequence in ended:
            self._drop(sequence, self.calendar.step)
            sequence.state = State.FINISHED
            self._ended[sequence.order] = sequence
            self._ended_tokens += sequence.computed
        if not self.calendar.members and self._ended:
            self._free_ended()
            self._batch_limit = self.max_num_seqs
        plan.finished = ended
        return ended

    def abort(self, request_id: str) -> Sequence | None:
        """A row of a batch cannot leave it: only waiting requests can be cancelled."""
        return self._abort_waiting(request_id)

    def _grow(self) -> bool:
        return self.allocator.append_bulk(list(self.calendar.members.values()))

    def _free_ended(self) -> None:
        for sequence in self._ended.values():
            self.allocator.release(sequence)
        self._ended.clear()
        self._ended_tokens = 0

    def _lose_batch(self, plan: StepPlan) -> None:
        """Free all rows; those that still generate wait again, with their tokens."""
        generating = list(self.calendar.members.values())
        self._batch_limit = max(1, (len(generating) + len(self._ended)) // 2)
        self._free_ended()
        for sequence in reversed(generating):
            self._preempt(sequence, plan)

    def _form_batch(self, plan: StepPlan) -> None:
        calendar, waiting = self.calendar, self.waiting
        while waiting and len(calendar.members) < self._batch_limit:
            head = waiting.head()
            if not self.allocator.admit(head, NO_HIT, head.tokens, 0, 0):
                break
            waiting.pop()
            calendar.admit(head)
            plan.admitted.append(head)
        self._width = max((sequence.tokens for sequence in plan.admitted), default=0)
        for sequence in plan.admitted:
            prompt = sequence.tokens
            sequence.computed = prompt
            calendar.prefill_tokens += prompt
            plan.prefill_tokens += prompt
            plan.recomputed_tokens += min(prompt, sequence.high_water)
            plan.chunks.append(Chunk(self._width if self.pad_prompts else prompt, 0))
            plan.prefills.append(sequence)
            plan.joined.append(sequence)
