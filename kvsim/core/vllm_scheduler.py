"""Continuous batching with chunked prefill, as vLLM 0.33's v1 scheduler decides it.

Rules: vllm/SPEC.md sections 2, 3, 7, 8 (synchronous, first come first served, one full-attention
group, no prefix cache, no speculation).

No running sequence is ever starved of budget: a request is admitted only if tokens remain after
every running one got its full demand, and demands never grow. So a decode always computes its one
token, and only the last running prefill may get less than it wants.
"""

from __future__ import annotations

from kvsim.core.plan import Chunk, StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Sequence, State
from kvsim.core.scheduler_base import QueueScheduler


class VllmScheduler(QueueScheduler):
    """vLLM's scheduler over any allocator. Arguments carry vLLM's flag names and units."""

    def __init__(
        self,
        allocator: Allocator,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        watermark: float = 0.0,
        reserve_full_isl: bool = True,
        on_never_fits: str = "reject",
    ) -> None:
        """`watermark` is a fraction of all blocks, the null block included."""
        super().__init__(
            allocator,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            on_never_fits=on_never_fits,
        )
        if max_num_batched_tokens < 1:
            raise ValueError(f"max_num_batched_tokens (={max_num_batched_tokens}) must be >= 1")
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"watermark (={watermark}) must be in [0, 1)")
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.watermark_blocks = int(watermark * allocator.num_blocks)
        self.reserve_full_isl = reserve_full_isl

    def schedule(self) -> StepPlan:
        """Serve running sequences in order, then admit from the queue unless one was preempted."""
        plan = self._begin()
        calendar = self.calendar
        limit = self._chunk_limit()
        crossings = calendar.crossings()
        if calendar.prefilling or (crossings and not self.allocator.append_bulk(crossings)):
            self._serve_in_order(plan, crossings, limit)
        calendar.advance()
        if self.waiting and not plan.preempted:
            self._admit(plan, limit)
        return self._close(plan)

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Sample, finish, and free in running order."""
        finished = self._sample_joined(plan) if plan.joined else []
        finished += self.calendar.take_endings()
        return self._finish(finished, plan) if finished else finished

    def blocked_reason(self) -> str:
        """Memory, or a prompt that one step's budget cannot hold while prompts stay whole."""
        head = self.waiting[0].tokens
        if not self.enable_chunked_prefill and head > self.max_num_batched_tokens:
            return (
                f"the head of the queue has {head} tokens, more than max_num_batched_tokens "
                f"(={self.max_num_batched_tokens}), and chunked prefill is off"
            )
        return super().blocked_reason()

    def _chunk_limit(self) -> int:
        """Most tokens of one prefill in this step; the threshold is off for a lone request."""
        threshold = self.long_prefill_token_threshold
        if threshold > 0 and len(self.calendar.members) + len(self.waiting) > 1:
            return threshold
        return self.max_model_len

    def _serve_in_order(self, plan: StepPlan, crossings: list[Sequence], limit: int) -> None:
        """Give memory to crossings and prefill chunks in running order, preempting from the end.

        Victims come from the end of the running order, so nothing served is ever taken back, and
        a victim among the events is met after all that still runs.
        """
        calendar = self.calendar
        events = crossings
        if calendar.prefilling:
            events = sorted(
                [*crossings, *calendar.prefilling.values()], key=lambda event: event.order
            )
        for sequence in events:
            if sequence.order not in calendar.members:
                break
            if sequence.state is State.DECODING:
                computed, new_tokens = calendar.step - 1 + sequence.offset, 1
            else:
                computed = sequence.computed
                left = self.max_num_batched_tokens - plan.prefill_tokens - calendar.num_decodes
                new_tokens = min(sequence.tokens - computed, limit, left)
            while not self.allocator.append(sequence, computed, new_tokens):
                victim = calendar.members[next(reversed(calendar.members))]
                self._preempt(victim, plan)
                if victim is sequence:
                    return
            if sequence.state is State.PREFILLING:
                self._compute_chunk(sequence, new_tokens, plan)

    def _admit(self, plan: StepPlan, limit: int) -> None:
        """Admit heads of the queue while budget, sequences and memory last; never skip one."""
        calendar, allocator, waiting = self.calendar, self.allocator, self.waiting
        members = calendar.members
        budget = self.max_num_batched_tokens - calendar.num_decodes - plan.prefill_tokens
        while budget > 0 and waiting and len(members) < self.max_num_seqs:
            head = waiting[0]
            known = head.tokens
            new_tokens = known if known < limit else limit
            if new_tokens > budget:
                if not self.enable_chunked_prefill:
                    break
                new_tokens = budget
            keep_free = self.watermark_blocks if members else 0
            gate = known if self.reserve_full_isl else 0
            if not allocator.admit(head, new_tokens, gate, keep_free):
                break
            waiting.popleft()
            calendar.admit(head)
            plan.admitted.append(head)
            self._compute_chunk(head, new_tokens, plan)
            budget -= new_tokens

    def _compute_chunk(self, sequence: Sequence, new_tokens: int, plan: StepPlan) -> None:
        computed = sequence.computed
        plan.chunks.append(Chunk(new_tokens, computed))
        plan.prefills.append(sequence)
        plan.prefill_tokens += new_tokens
        if computed < sequence.high_water:
            plan.recomputed_tokens += min(new_tokens, sequence.high_water - computed)
        computed += new_tokens
        sequence.computed = computed
        self.calendar.prefill_tokens += new_tokens
        if computed == sequence.tokens:
            plan.joined.append(sequence)
