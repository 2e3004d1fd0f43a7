"""vLLM's scheduler with speculative decoding (vllm/SPEC.md sections 2, 3, 5, 7; synchronous).

With drafts every running sequence changes at every step, by a number of tokens of its own, and
the budget can run out before the last of them. So a step is a loop over the running set here: what
changes in a step is the running set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvsim.core.plan import Chunk, Outcome, StepPlan
from kvsim.core.protocols import Allocator, Hit
from kvsim.core.request import Request, Sequence, State
from kvsim.core.vllm_scheduler import VllmScheduler, recomputed_tokens

METHODS = ("ngram", "draft_model", "eagle")


class Speculation(NamedTuple):
    """How drafts are made and how many are right."""

    method: str
    num_speculative_tokens: int
    accepted: Callable[[Request, int, int], int]
    """Accepted tokens of (request, number of its earlier verifications, verified drafts)."""

    @property
    def lookahead_tokens(self) -> int:
        """Slots kept beyond the scheduled tokens, for the drafter's own tokens."""
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    @property
    def hash_lookahead(self) -> int:
        """Tokens after a block that belong to its content: EAGLE's KV depends on the next one."""
        return 1 if self.method == "eagle" else 0

    @property
    def draft_slots(self) -> int:
        """Budget that a scheduled request costs beyond its tokens."""
        return 1 if self.method == "draft_model" else 0


class _Work(NamedTuple):
    """What one sequence computes in a step."""

    sequence: Sequence
    tokens: int
    verified: int
    padded: bool
    """The drafts are dummies that give the step one shape: none is accepted."""


class SpeculativeScheduler(VllmScheduler):
    """Every sequence that sampled a token has drafts to verify in its next step."""

    delivers_unevenly = True

    def __init__(self, allocator: Allocator, *, speculation: Speculation, **settings: Any) -> None:
        """`settings` are those of `VllmScheduler`; asynchronous scheduling is not covered."""
        super().__init__(allocator, **settings)
        drafts = speculation.num_speculative_tokens
        if speculation.method not in METHODS:
            raise ValueError(f"method (={speculation.method!r}) must be one of {METHODS}")
        if drafts < 1:
            raise ValueError(f"num_speculative_tokens (={drafts}) must be >= 1")
        if self.is_async:
            raise ValueError("speculative decoding with asynchronous scheduling is not covered")
        self.speculation = speculation
        self._work: dict[int, _Work] = {}
        self._tokens_left = self._inputs_left = 0
        self._live_tokens = 0
        """Tokens with KV that stays: rejected drafts are not among them."""

    def _peak_slots(self, final_tokens: int) -> int:
        """Drafts stand beside the last tokens too, and a drafter keeps slots of its own."""
        speculation = self.speculation
        drafts = speculation.num_speculative_tokens + speculation.lookahead_tokens
        return min(super()._peak_slots(final_tokens) + drafts, self.max_model_len)

    def schedule(self) -> StepPlan:
        """Serve running sequences in order while the budgets last, then admit from the queue."""
        plan = self._begin()
        self._work = {}
        self._tokens_left = self._inputs_left = self.max_num_batched_tokens
        limit = self._chunk_limit()
        self._serve_running(plan, limit)
        if self.waiting and not plan.preempted:
            self._admit(plan, limit)
        plan.listed = [(work.sequence, work.tokens) for work in self._work.values()]
        for work in self._work.values():
            self._book(work, plan)
        return self._close(plan)

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Drop rejected drafts, deliver the tokens, free what ends in scheduling order."""
        finished: list[Sequence] = []
        for sequence, verified, accepted, delivered in plan.outcomes:
            sequence.computed = _kept(sequence, verified, accepted, delivered)
            sequence.tokens += delivered
            if delivered:
                sequence.drafts = self.speculation.num_speculative_tokens
            self.allocator.seal(sequence, sequence.computed)
            if sequence.tokens >= sequence.final_tokens:
                finished += self._finish([sequence], plan)
        plan.finished = finished
        return finished

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens with KV, drafts of the step in flight included: always current."""
        return sequence.computed

    def unfinished(self) -> tuple[list[Sequence], list[Sequence]]:
        """What waits and what runs, in order; their counts are always current."""
        return list(self.waiting), self.running()

    def _left(self) -> int:
        return min(self._tokens_left, self._inputs_left - self.speculation.draft_slots)

    def _schedule_work(self, work: _Work) -> None:
        self._tokens_left -= work.tokens
        self._inputs_left -= work.tokens + self.speculation.draft_slots
        self._work[work.sequence.order] = work

    def _serve_running(self, plan: StepPlan, limit: int) -> None:
        members = self.calendar.members
        for sequence in list(members.values()):
            if self._left() <= 0:
                return
            if sequence.order not in members:
                continue
            computed, known = sequence.computed, sequence.tokens
            new_tokens = min(
                known + sequence.drafts - computed,
                limit,
                self._left(),
                self.max_model_len - computed - 1,
            )
            if new_tokens and self._append(sequence, computed, new_tokens, known, 0, plan):
                sequence.drafts = 0
                verified = max(0, computed + new_tokens - known)
                self._schedule_work(_Work(sequence, new_tokens, verified, padded=False))

    def _preempt_one(self, plan: StepPlan) -> Sequence:
        victim = self._victims.choose(self.calendar.members)
        work = self._work.pop(victim.order, None)
        if work is not None:
            self._tokens_left += work.tokens
            self._inputs_left += work.tokens + self.speculation.draft_slots
        victim.drafts = 0
        self._preempt(victim, plan)
        return victim

    def _admit(self, plan: StepPlan, limit: int) -> None:
        members = self.calendar.members
        serves = bool(self._work)
        pads = not any(w.sequence.state is State.PREFILLING for w in self._work.values())
        while self._left() > 0 and self.waiting and len(members) < self.max_num_seqs:
            head = self.waiting.head()
            hit = self.allocator.lookup(head)
            tokens = head.tokens - hit.tokens
            padded = pads and tokens == 1 and (serves or hit.tokens > 0) and self._may_pad(hit)
            if padded:
                tokens += self.speculation.num_speculative_tokens
                if tokens > self._left():
                    break
            tokens = min(tokens, limit)
            if tokens > self._left() and not self.enable_chunked_prefill:
                break
            tokens = min(tokens, self._left())
            keep_free = self.watermark_blocks if members else 0
            gate = head.tokens if self.reserve_full_isl else 0
            if not self.allocator.admit(head, hit, tokens, gate, keep_free):
                break
            self.waiting.pop()
            self._start(head, hit.tokens, plan)
            self._live_tokens += hit.tokens
            verified = max(0, hit.tokens + tokens - head.tokens)
            self._schedule_work(_Work(head, tokens, verified, padded))

    def _may_pad(self, hit: Hit) -> bool:
        """Whether a lone token beside verifying sequences takes dummy drafts (section 2b)."""
        drafts = self.speculation.num_speculative_tokens
        return hit.tokens + drafts + 2 <= self.max_model_len

    def _book(self, work: _Work, plan: StepPlan) -> None:
        """Advance a sequence, and draw what becomes of its drafts."""
        sequence, tokens, verified, padded = work
        prior = sequence.computed
        sequence.computed = prior + tokens
        accepted = delivered = 0
        if verified:
            if not padded:
                drawn = self.speculation.accepted(sequence.request, sequence.verifies, verified)
                accepted = min(drawn, verified)
            sequence.verifies += 1
        if sequence.computed >= sequence.tokens:
            delivered = min(1 + accepted, sequence.final_tokens - sequence.tokens)
        plan.outcomes.append(Outcome(sequence, verified, accepted, delivered))
        plan.draft_tokens += verified
        self._live_tokens += _kept(sequence, verified, accepted, delivered) - prior
        if sequence.state is State.DECODING:
            plan.num_decodes += 1
            plan.decode_context_tokens += sequence.computed
            plan.bonus_tokens += delivered - 1
        else:
            self._book_chunk(sequence, Chunk(tokens, prior), verified, plan)
            if delivered:
                plan.joined.append(sequence)

    def _book_chunk(self, sequence: Sequence, chunk: Chunk, drafts: int, plan: StepPlan) -> None:
        plan.chunks.append(chunk)
        plan.prefills.append(sequence)
        plan.prefill_tokens += chunk.new_tokens - drafts
        plan.recomputed_tokens += recomputed_tokens(sequence, chunk)
        self.calendar.prefill_tokens += chunk.new_tokens

    def _total(self, plan: StepPlan) -> None:
        plan.live_tokens = self.allocator.usage.live_slots(self._live_tokens)

    def _join(self, sequence: Sequence) -> None:
        del self.calendar.prefilling[sequence.order]
        self.calendar.prefill_tokens -= sequence.computed
        sequence.state = State.DECODING

    def _drop(self, sequence: Sequence, step: int) -> None:
        self._live_tokens -= sequence.computed
        if sequence.state is State.DECODING:
            del self.calendar.members[sequence.order]
        else:
            self.calendar.drop(sequence, step)

    def _computed_before_step(self, sequence: Sequence) -> int:
        work = self._work.get(sequence.order)
        return sequence.computed - (work.tokens if work else 0)


def _kept(sequence: Sequence, verified: int, accepted: int, delivered: int) -> int:
    """Computed tokens without rejected drafts and without tokens behind the last one."""
    surplus = 1 + accepted - delivered if delivered else 0
    return sequence.computed - (verified - accepted) - surplus
