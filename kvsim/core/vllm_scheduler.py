"""Continuous batching with chunked prefill, as vLLM 0.33's v1 scheduler decides it.

Rules: vllm/SPEC.md sections 1-3, 7, 8 (speculation: speculative_scheduler.py).

No running sequence is ever starved of budget: a request is admitted only if tokens remain after
every running one got its full demand, and demands never grow. So a decode always computes its one
token, and only the last running prefill may get less than it wants.

Asynchronous scheduling decides a step before the step before it is booked. A sequence that samples
its last token then stays one step longer without computing anything (it *drains*), and a preempted
one still receives the token that was in flight.
"""

from __future__ import annotations

from kvsim.core.plan import Chunk, StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Sequence, State
from kvsim.core.scheduler_base import QueueScheduler
from kvsim.core.waiting import FcfsQueue, LastAdmitted, LeastUrgent, PriorityQueue

POLICIES = ("fcfs", "priority")


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
        policy: str = "fcfs",
        async_scheduling: bool = False,
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
        if policy not in POLICIES:
            raise ValueError(f"policy (={policy!r}) must be one of {POLICIES}")
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.watermark_blocks = int(watermark * allocator.num_blocks)
        self.reserve_full_isl = reserve_full_isl
        self.policy = policy
        self.is_async = async_scheduling
        self.waiting = PriorityQueue() if policy == "priority" else FcfsQueue()
        self._victims = LeastUrgent() if policy == "priority" else LastAdmitted()
        self._undelivered: list[Sequence] = []
        """Preempted sequences whose token of the step before is still to come."""

    def schedule(self) -> StepPlan:
        """Serve running sequences in order, then admit from the queue unless one was preempted."""
        plan = self._begin()
        calendar, allocator = self.calendar, self.allocator
        if self.is_async:
            calendar.drain()
        limit = self._chunk_limit()
        due = calendar.due()
        filling = calendar.due(1) if allocator.seals_ahead else []
        regular = calendar.period is not None
        if calendar.prefilling or (due and not (regular and allocator.append_bulk(due))):
            self._serve_in_order(plan, due + filling, limit)
        elif filling:
            allocator.seal_bulk(filling)
        calendar.advance()
        if self.waiting and not plan.preempted:
            self._admit(plan, limit)
        return self._close(plan)

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Deliver the step's tokens; free what ends in running order."""
        if not self.is_async:
            finished = self.calendar.take_endings(plan.step)
            return self._finish(finished, plan) if finished else finished
        finished = list(self.calendar.draining.values())
        for sequence in finished:
            self.allocator.seal(sequence, sequence.computed)
        for sequence in self._undelivered:
            sequence.tokens += 1
            if sequence.state is State.WAITING and sequence.tokens >= sequence.final_tokens:
                finished.append(sequence)
        self._undelivered.clear()
        return self._finish(finished, plan) if finished else finished

    def blocked_reason(self) -> str:
        """Memory, or a prompt that one step's budget cannot hold while prompts stay whole."""
        head = self.waiting.head().tokens
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

    def _serve_in_order(self, plan: StepPlan, events: list[Sequence], limit: int) -> None:
        """Give memory to decodes that need some and to prefill chunks, in running order.

        First come first served, victims come from the end of the running order: nothing served is
        ever taken back, and a victim among the events is met after all that still runs.
        """
        calendar = self.calendar
        if calendar.prefilling:
            events = [*events, *calendar.prefilling.values()]
        events.sort(key=lambda event: event.order)
        for sequence in events:
            if sequence.order not in calendar.members:
                continue
            if sequence.state is State.DECODING:
                self._serve_decode(sequence, plan)
            else:
                self._serve_prefill(sequence, limit, plan)

    def _serve_decode(self, sequence: Sequence, plan: StepPlan) -> None:
        calendar = self.calendar
        computed = calendar.step - 1 + sequence.offset
        if self.is_async:
            first = computed == sequence.tokens
            known, in_flight = computed, sequence.chunk_tokens if first else 1
        else:
            known, in_flight = computed + 1, 0
        if not self._append(sequence, computed, 1, known, in_flight, plan):
            return
        if calendar.period is None:
            ahead = self.allocator.horizon(sequence, computed + 1)
            if self.is_async and first:
                ahead = 0
            calendar.attend(sequence, calendar.step + 1 + ahead)

    def _serve_prefill(self, sequence: Sequence, limit: int, plan: StepPlan) -> None:
        left = self.max_num_batched_tokens - plan.prefill_tokens - self.calendar.num_decodes
        computed, known = sequence.computed, sequence.tokens
        in_flight = sequence.chunk_tokens if self.is_async else 0
        new_tokens = min(known - computed, limit, left)
        if self._append(sequence, computed, new_tokens, known, in_flight, plan):
            self._compute_chunk(sequence, new_tokens, plan)

    def _append(
        self,
        sequence: Sequence,
        computed: int,
        new_tokens: int,
        known: int,
        in_flight: int,
        plan: StepPlan,
    ) -> bool:
        """Append, preempting others until it fits; False when the sequence itself had to go."""
        while not self.allocator.append(sequence, computed, new_tokens, known, in_flight):
            if self._preempt_one(plan) is sequence:
                return False
        return True

    def _preempt_one(self, plan: StepPlan) -> Sequence:
        """Preempt the victim that the policy names; what it got in this step is taken back."""
        victim = self._victims.choose(self.calendar.members)
        if victim.state is State.PREFILLING:
            self._take_back_chunk(victim, plan)
        elif self.is_async:
            self._undelivered.append(victim)
        self._preempt(victim, plan)
        return victim

    def _take_back_chunk(self, victim: Sequence, plan: StepPlan) -> None:
        """Un-schedule a chunk of this step: its tokens are free for others."""
        if victim not in plan.prefills:
            return
        index = plan.prefills.index(victim)
        del plan.prefills[index]
        chunk = plan.chunks.pop(index)
        plan.prefill_tokens -= chunk.new_tokens
        plan.recomputed_tokens -= recomputed_tokens(victim, chunk)
        self.calendar.prefill_tokens -= chunk.new_tokens
        victim.computed = chunk.prior_tokens
        if victim in plan.joined:
            plan.joined.remove(victim)

    def _admit(self, plan: StepPlan, limit: int) -> None:
        """Admit heads of the queue while budget, sequences and memory last; never skip one."""
        calendar, allocator, waiting = self.calendar, self.allocator, self.waiting
        members = calendar.members
        budget = self.max_num_batched_tokens - calendar.num_decodes - plan.prefill_tokens
        while budget > 0 and waiting and len(members) < self.max_num_seqs:
            head = waiting.head()
            hit = allocator.lookup(head)
            known = head.tokens
            new_tokens = min(known - hit.tokens, limit)
            if new_tokens > budget:
                if not self.enable_chunked_prefill:
                    break
                new_tokens = budget
            keep_free = self.watermark_blocks if members else 0
            gate = known if self.reserve_full_isl else 0
            if not allocator.admit(head, hit, new_tokens, gate, keep_free):
                break
            waiting.pop()
            self._start(head, hit.tokens, plan)
            self._compute_chunk(head, new_tokens, plan)
            budget -= new_tokens

    def _start(self, sequence: Sequence, cached_tokens: int, plan: StepPlan) -> None:
        self.calendar.admit(sequence, cached_tokens)
        self._victims.admitted(sequence, self.calendar.members)
        plan.admitted.append(sequence)
        plan.hits.append(cached_tokens)
        if sequence.admissions == 1:
            sequence.cached_tokens = cached_tokens

    def _compute_chunk(self, sequence: Sequence, new_tokens: int, plan: StepPlan) -> None:
        computed = sequence.computed
        chunk = Chunk(new_tokens, computed)
        plan.chunks.append(chunk)
        plan.prefills.append(sequence)
        plan.prefill_tokens += new_tokens
        if computed < sequence.high_water:
            plan.recomputed_tokens += recomputed_tokens(sequence, chunk)
        computed += new_tokens
        sequence.computed = computed
        sequence.chunk_tokens = new_tokens
        self.calendar.prefill_tokens += new_tokens
        if computed == sequence.tokens:
            plan.joined.append(sequence)


def recomputed_tokens(sequence: Sequence, chunk: Chunk) -> int:
    """Positions of the chunk that had KV before a preemption."""
    return max(0, min(chunk.new_tokens, sequence.high_water - chunk.prior_tokens))
