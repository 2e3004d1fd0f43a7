"""Request-level batching as in FasterTransformer: a batch runs until its longest member ends."""

from __future__ import annotations

from kvsim.core.plan import Chunk, StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Sequence, State
from kvsim.core.scheduler_base import QueueScheduler


class StaticScheduler(QueueScheduler):
    """Forms a batch of whatever waits, prefills it in one step, and returns it as a whole.

    Members that end early keep their row and their memory, and are returned with the batch
    (Orca, OSDI'22, section 2): the batch wastes sum(max O - O_i) token-steps.

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
        """`max_num_seqs` is the batch size; `pad_prompts` computes every prompt at the longest."""
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
        self._ended: dict[int, Sequence] = {}
        self._ended_tokens = 0
        self._returned: list[Sequence] = []

    def has_work(self) -> bool:
        """Whether a batch runs or anything waits."""
        return super().has_work() or bool(self._ended)

    def running(self) -> list[Sequence]:
        """All rows of the batch, ended ones too: they hold memory."""
        return sorted(
            [*self.calendar.members.values(), *self._ended.values()], key=lambda row: row.order
        )

    def schedule(self) -> StepPlan:
        """One decode of the running batch, or the prefill of a new one."""
        plan = self._begin()
        calendar = self.calendar
        if calendar.members and calendar.period and not self._grow():
            self._lose_batch(plan)
        if not calendar.members and not self._ended:
            self._form_batch(plan)
        else:
            calendar.advance()
        self._close(plan)
        plan.padded_decodes = len(self._ended)
        plan.decode_context_tokens += self._ended_tokens
        plan.live_tokens += self._ended_tokens
        return plan

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Sample; return the whole batch once its last member has ended."""
        ended = self._sample_joined(plan) + self.calendar.take_endings()
        for sequence in ended:
            self.calendar.drop(sequence, self.calendar.step)
            self._ended[sequence.order] = sequence
            self._ended_tokens += sequence.computed
        batch, self._returned = self._returned, []
        if not self.calendar.members and self._ended:
            rows = self.running()
            for sequence in rows:
                self.allocator.release(sequence)
            batch += rows
            self._ended.clear()
            self._ended_tokens = 0
            self._batch_limit = self.max_num_seqs
        for sequence in batch:
            sequence.state = State.FINISHED
        plan.finished = batch
        return batch

    def abort(self, request_id: str) -> Sequence | None:
        """A row of a batch cannot leave it: only waiting requests can be cancelled."""
        for sequence in self.waiting:
            if sequence.request.request_id == request_id:
                self.waiting.remove(sequence)
                sequence.state = State.ABORTED
                return sequence
        return None

    def _grow(self) -> bool:
        return self.allocator.append_bulk(list(self.calendar.members.values()))

    def _lose_batch(self, plan: StepPlan) -> None:
        """Free all rows: ended ones are returned as they are, the others wait again."""
        running = list(self.calendar.members.values())
        self._batch_limit = max(1, (len(running) + len(self._ended)) // 2)
        for sequence in self._ended.values():
            self.allocator.release(sequence)
            self._returned.append(sequence)
        self._ended.clear()
        self._ended_tokens = 0
        for sequence in reversed(running):
            self._preempt(sequence, plan)

    def _form_batch(self, plan: StepPlan) -> None:
        calendar, waiting = self.calendar, self.waiting
        while waiting and len(calendar.members) < self._batch_limit:
            head = waiting[0]
            if not self.allocator.admit(head, head.tokens, 0, 0):
                break
            waiting.popleft()
            calendar.admit(head)
            plan.admitted.append(head)
        longest = max((sequence.tokens for sequence in plan.admitted), default=0)
        for sequence in plan.admitted:
            prompt = sequence.tokens
            sequence.computed = prompt
            calendar.prefill_tokens += prompt
            plan.prefill_tokens += prompt
            plan.recomputed_tokens += min(prompt, sequence.high_water)
            plan.chunks.append(Chunk(longest if self.pad_prompts else prompt, 0))
            plan.prefills.append(sequence)
            plan.joined.append(sequence)
