"""Continuous batching of requests with several branches: sequence groups.

Sources: SOSP'23 section 4.5 (a group's sequences are always scheduled and preempted together;
first come first served, the latest arrivals are preempted first) and vLLM's V0 engine (admission
asks for the prompt's blocks only, `max_num_seqs` counts branches from admission on). Order, token
budget and chunked prefill are those of vllm_scheduler.py, so that a request with one branch is
served exactly as there.

Where the sources leave a choice, ours is:

* A group grows by counting the blocks that it needs, all or nothing. V0 asks for one free block
  per branch, which can preempt a group that would have fitted.
* V0 swaps preempted groups of several sequences out, and recomputes single ones only. Here
  `preemption` says it for all.
* A group is recomputed so: the prompt once, then, from the next step on, each branch's generated
  tokens behind its share of the prompt (section 4.5: they join the prompt and are computed in a
  prompt phase). What beams shared beyond the prompt is not shared again. A branch that is ready
  waits for the others. Admission of such a group asks for all these blocks, and generated tokens
  may be spread over several steps even where prompts stay whole.
* A swapped group comes back in a step in which nothing is preempted, first come first served, if
  its blocks and those of its next tokens leave the watermark's free, and computes in that step
  (V0). Admissions may follow in the same step once all are back.
* A group that the host has no room for is recomputed (V0 aborts), and so is one whose known tokens
  do not fit the whole memory: it could never come back.
* A request that forks from a running one shares its memory at its first admission only.
* Decodes come before prefill chunks in the budget, so a decoding group never waits.
"""

from __future__ import annotations

from collections import deque

from kvsim.core.group_admission import GroupAdmission, Shared, check_fork
from kvsim.core.group_memory import GroupMemory
from kvsim.core.group_swap import SwapIsCheaper, swap_for
from kvsim.core.plan import Chunk, StepPlan, Transfer
from kvsim.core.request import Request, Sequence, State
from kvsim.core.scheduler_base import QueueScheduler
from kvsim.core.sequence_group import (
    ONE,
    Draw,
    SequenceGroup,
    check_branching,
)
from kvsim.core.vllm_scheduler import recomputed_tokens


class GroupScheduler(QueueScheduler):
    """First come first served over groups; every step visits every running branch.

    Queues, the events of plans (`admitted`, `preempted`, `joined`, ...) and counts of running and
    waiting requests name a group by its root; `chunks`, `num_decodes` and `scheduled()` name
    branches. Waiting are those in the queue and those that are swapped out.
    """

    def __init__(
        self,
        allocator: GroupMemory,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        watermark: float = 0.0,
        reserve_full_isl: bool = True,
        on_never_fits: str = "reject",
        draw: Draw | None = None,
        preemption: str = "recompute",
        swap_is_cheaper: SwapIsCheaper | None = None,
    ) -> None:
        """Arguments as in `VllmScheduler`; `max_num_seqs` counts branches.

        `draw` chooses the parents of beams with the ancestry `wright_fisher`. `preemption` is
        `recompute`, `swap` (out to host memory while that has room) or `auto`: what
        `swap_is_cheaper` says of each victim.
        """
        super().__init__(
            allocator,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            on_never_fits=on_never_fits,
        )
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens (={max_num_batched_tokens}) must be >= max_num_seqs "
                f"(={max_num_seqs})"
            )
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"watermark (={watermark}) must be in [0, 1)")
        self.memory = allocator
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_chunked_prefill = enable_chunked_prefill
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.watermark_blocks = int(watermark * allocator.num_blocks)
        self.reserve_full_isl = reserve_full_isl
        self.groups: dict[Sequence, SequenceGroup] = {}
        """Running groups by root, in order of admission."""
        self._queued: dict[Sequence, SequenceGroup] = {}
        self._draw = draw
        self._swap = swap_for(preemption, allocator, swap_is_cheaper)
        self.swapped: deque[SequenceGroup] = self._swap.waiting if self._swap else deque()
        """Groups whose memory is on the host, in the order in which they come back."""
        self._not_made: list[Transfer] = []
        """Transfers of a step that computed nothing, so that nobody ran it."""
        self._admission = GroupAdmission(allocator, gate=reserve_full_isl)
        self._next_order = 0
        self._decodes = 0
        """Branches of the running groups that decode: their tokens of this step are reserved."""
        self._branches = 0
        """Branches of all running groups, those that are not forked yet included."""

    # Queue

    def unservable(self, request: Request) -> str | None:
        """Why the request alone could not finish in an empty memory, or None."""
        width = (request.branches or ONE).width
        if width > self.max_num_seqs:
            return f"{width} branches, max_num_seqs (={self.max_num_seqs}) counts each"
        final_tokens = min(request.prompt_tokens + request.output_tokens, self.max_model_len)
        return self.memory.group_never_fits(request, width, self._peak_slots(final_tokens))

    def add(self, request: Request) -> Sequence:
        """Append the request to the queue. Raises `ValueError` for branches that cannot be."""
        check_branching(request, self._draw)
        check_fork(request)
        root = Sequence(request, self.max_model_len)
        self._queued[root] = SequenceGroup(root)
        self.waiting.add(root)
        return root

    def abort(self, request_id: str) -> Sequence | None:
        """Cancel between steps; the memory of all branches is free at once. None if unknown."""
        waiting = self._abort_waiting(request_id)
        if waiting is not None:
            del self._queued[waiting]
            return waiting
        for group in [*self.groups.values(), *self.swapped]:
            if group.root.request.request_id == request_id:
                if group.root in self.groups:
                    self._leave(group)
                else:
                    self.swapped.remove(group)
                for branch in group.active:
                    self.memory.release(branch)
                group.root.state = State.ABORTED
                return group.root
        return None

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.groups) or bool(self.waiting) or bool(self.swapped)

    def swap_counts(self) -> dict[str, int]:
        """What swapping did since the start; empty where every preemption recomputes.

        Groups, blocks and tokens moved out and in (shared ones once), most host blocks held, and
        groups recomputed because too few host blocks were free.
        """
        return {} if self._swap is None else self._swap.counts()

    def running(self) -> list[Sequence]:
        """All branches that hold memory, in running order."""
        return [branch for group in self.groups.values() for branch in group.active]

    def unfinished(self) -> tuple[list[Sequence], list[Sequence]]:
        """What waits, swapped or not, and what runs, in order: the roots, one per request."""
        return [*(group.root for group in self.swapped), *self.waiting], list(self.groups)

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens of a running branch that have KV, the latest step's included."""
        return sequence.computed

    def _computed_before_step(self, sequence: Sequence) -> int:
        return sequence.computed

    # Step

    def schedule(self) -> StepPlan:
        """Serve running groups in order; unless one was preempted, swap in, then admit."""
        plan = self._begin()
        plan.listed = []
        plan.transfers, self._not_made = self._not_made, []
        limit = self._chunk_limit()
        for root, group in list(self.groups.items()):
            if root in self.groups:
                self._serve(group, limit, plan)
        if not plan.preempted:
            if self.swapped:
                self._swap_in(plan, limit)
            if self.waiting and not self.swapped:
                self._admit(plan, limit)
        return self._close_groups(plan)

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Fork computed prompts, sample, choose survivors; free what ends in running order."""
        finished: list[Sequence] = []
        for root, group in list(self.groups.items()):
            if group.forks_now():
                group.fork(self.memory)
            if not (group.decoding or root in plan.joined):
                continue
            if group.sample():
                self._finish_group(group)
                finished.append(root)
                continue
            group.survive(self.memory, self._draw)
            if not group.decoding:
                group.decoding = True
                self._decodes += group.width
                group.set_state(State.DECODING)
        plan.finished = finished
        return finished

    def _chunk_limit(self) -> int:
        """Most tokens of one prefill in this step; the threshold is off for a lone request."""
        threshold = self.long_prefill_token_threshold
        if threshold > 0 and len(self.groups) + len(self.swapped) + len(self.waiting) > 1:
            return threshold
        return self.max_model_len

    def _serve(self, group: SequenceGroup, limit: int, plan: StepPlan) -> None:
        """Give all branches of a running group their tokens, preempting the last groups."""
        branches, new_tokens = group.active, self._next_tokens(group, limit, plan)
        while not self.memory.append_group(branches, new_tokens):
            victim = self.groups[next(reversed(self.groups))]
            self._preempt_group(victim, plan)
            if victim is group:
                return
        self._compute(group, new_tokens, plan)

    def _next_tokens(self, group: SequenceGroup, limit: int, plan: StepPlan) -> list[int]:
        """Tokens that each of a group's active branches gets in this step."""
        if group.decoding:
            return [1] * group.width
        left = self._budget_left(plan)
        new_tokens = []
        for missing in group.missing():
            new_tokens.append(min(missing, limit, left))
            left -= new_tokens[-1]
        return new_tokens

    def _budget_left(self, plan: StepPlan) -> int:
        """Tokens of this step that neither its prefills nor the running decodes need."""
        return self.max_num_batched_tokens - plan.prefill_tokens - self._decodes

    def _compute(self, group: SequenceGroup, new_tokens: list[int], plan: StepPlan) -> None:
        if group.decoding:
            self._compute_decodes(group, plan)
            return
        for branch, tokens in zip(group.active, new_tokens, strict=True):
            if tokens:
                self._compute_chunk(branch, tokens, plan)
        self._note_joined(group, plan)

    def _compute_decodes(self, group: SequenceGroup, plan: StepPlan) -> None:
        assert plan.listed is not None
        context = 0
        for branch in group.beams:
            branch.computed += 1
            context += branch.computed
            plan.listed.append((branch, 1))
        plan.num_decodes += group.width
        plan.decode_context_tokens += context

    def _compute_chunk(self, branch: Sequence, new_tokens: int, plan: StepPlan) -> None:
        chunk = Chunk(new_tokens, branch.computed)
        plan.chunks.append(chunk)
        plan.prefills.append(branch)
        plan.prefill_tokens += new_tokens
        plan.recomputed_tokens += recomputed_tokens(branch, chunk)
        branch.computed += new_tokens
        branch.chunk_tokens = new_tokens
        assert plan.listed is not None
        plan.listed.append((branch, new_tokens))

    def _note_joined(self, group: SequenceGroup, plan: StepPlan) -> None:
        """Whether the group samples at the end of this step for the first time since admission."""
        if not group.forked and group.sampled:
            return
        if not any(group.missing()):
            plan.joined.append(group.root)

    def _preempt_group(self, group: SequenceGroup, plan: StepPlan) -> None:
        """Take back the memory of all branches, and keep it on the host or forget it.

        A group that is to be recomputed goes to the head of the queue.
        """
        root = group.root
        root.was_decoding = group.decoding
        self._leave(group)
        root.preemptions += 1
        plan.preempted.append(root)
        transfer = None if self._swap is None else self._swap.move_out(group)
        if transfer is None:
            group.lose_memory(self.memory)
            self._queued[root] = group
            self.waiting.requeue(root)
        else:
            plan.swapped_out = [*plan.swapped_out, root]
            plan.transfers.append(transfer)
        group.set_state(State.WAITING)

    def _swap_in(self, plan: StepPlan, limit: int) -> None:
        """Bring swapped groups back while budget, sequences and memory last; never skip one."""
        assert self._swap is not None
        while self.swapped:
            group = self.swapped[0]
            new_tokens = self._next_tokens(group, limit, plan)
            computes = 0 < sum(new_tokens) <= self._budget_left(plan)
            if not computes or self._branches + group.width > self.max_num_seqs:
                return
            keep_free = self.watermark_blocks if self.groups else 0
            if not self._swap.head_fits(new_tokens, self.memory.free_count() - keep_free):
                return
            plan.transfers.append(self._swap.move_in())
            plan.swapped_in = [*plan.swapped_in, group.root]
            self.groups[group.root] = group
            self._branches += group.width
            group.set_state(State.DECODING if group.decoding else State.PREFILLING)
            if group.decoding:
                self._decodes += group.width
            fits = self.memory.append_group(group.active, new_tokens)
            assert fits, f"{group.root!r} needs a block that was not counted"
            self._compute(group, new_tokens, plan)

    def _leave(self, group: SequenceGroup) -> None:
        del self.groups[group.root]
        self._branches -= group.width
        if group.decoding:
            self._decodes -= group.width

    def _finish_group(self, group: SequenceGroup) -> None:
        self._leave(group)
        for branch in group.active:
            self.memory.release(branch)
        group.root.tokens = group.root.final_tokens
        group.root.state = State.FINISHED

    def _admit(self, plan: StepPlan, limit: int) -> None:
        """Admit heads of the queue while budget, sequences and memory last; never skip one."""
        budget = self._budget_left(plan)
        while budget > 0 and self.waiting:
            head = self.waiting.head()
            group = self._queued[head]
            if self._branches + group.width > self.max_num_seqs:
                break
            shared = self._admission.shared(head, self.groups, plan)
            (target, *_) = group.targets()
            new_tokens = min(target - shared.tokens, limit)
            if new_tokens > budget:
                if not self.enable_chunked_prefill:
                    break
                new_tokens = budget
            keep_free = self.watermark_blocks if self.groups else 0
            if not self._admission.take(group, shared, new_tokens, keep_free):
                break
            self.waiting.pop()
            self._start(group, shared, plan)
            self._compute_chunk(head, new_tokens, plan)
            self._note_joined(group, plan)
            budget -= new_tokens

    def _start(self, group: SequenceGroup, shared: Shared, plan: StepPlan) -> None:
        root = group.root
        self.groups[root] = self._queued.pop(root)
        self._branches += group.width
        root.admissions += 1
        for branch in group.beams:
            branch.order = self._next_order
            branch.state = State.PREFILLING
            self._next_order += 1
        plan.admitted.append(root)
        plan.hits.append(shared.tokens)
        if root.admissions == 1:
            root.computed = root.cached_tokens = shared.tokens

    def _close_groups(self, plan: StepPlan) -> StepPlan:
        """Fill the plan's totals and look at the head of the queue."""
        tokens = sum(branch.computed for branch in self.running())
        plan.live_tokens = self.memory.usage.live_slots(tokens)
        plan.num_running = len(self.groups)
        plan.further_branches = self._branches - len(self.groups)
        plan.num_waiting = len(self.swapped) + len(self.waiting)
        if self._swap is not None and self.swapped:
            missing = self.swapped[0].missing()
            plan.head_short_of_memory = not self._swap.head_fits(missing, self.memory.free_count())
        elif self.waiting:
            head = self.waiting.head()
            shared = self._admission.shared(head, self.groups, plan)
            self._admission.look_at(self._queued[head], shared, plan)
        if not plan.scheduled_tokens:
            plan.transfers, self._not_made = [], plan.transfers
        plan.copies = self.memory.take_copies()
        return plan
