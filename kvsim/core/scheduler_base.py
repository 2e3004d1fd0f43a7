"""What every scheduler shares: the waiting queue, refusals, aborts and the look at the head."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.core.calendar import Calendar
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator, Fetches, MapsPages
from kvsim.core.request import Request, Sequence, State
from kvsim.core.waiting import FcfsQueue, WaitingQueue


class QueueScheduler:
    """A queue in front of a calendar of running sequences."""

    is_async = False
    """Whether a step is scheduled before the step before it is booked."""
    delivers_unevenly = False
    """Whether a running decode may get no token in a step."""

    def __init__(
        self,
        allocator: Allocator,
        *,
        max_num_seqs: int,
        max_model_len: int,
        on_never_fits: str = "reject",
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs (={max_num_seqs}) must be >= 1")
        if max_model_len < 2:
            raise ValueError(f"max_model_len (={max_model_len}) must be >= 2 tokens")
        if on_never_fits not in ("reject", "block"):
            raise ValueError(f"on_never_fits (={on_never_fits!r}) must be 'reject' or 'block'")
        self.allocator = allocator
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.rejects_never_fitting = on_never_fits == "reject"
        self.waiting: WaitingQueue = FcfsQueue()
        self.calendar = Calendar(allocator.append_period())
        self._plan = StepPlan(0, self.calendar.members)
        self._take_moves = _moves(allocator)
        allocator.live_tokens = self._computed_before_step

    def refuse(self, request: Request) -> str | None:
        """Reason for a rejection at arrival, or None.

        `prompt_too_long`: vLLM's front end wants prompt < max_model_len (vllm/SPEC.md section 8).
        `never_fits: ...`: the request alone could not finish in an empty memory; a real server
        would block its queue for ever (`on_never_fits: block` reproduces that).
        """
        if request.prompt_tokens >= self.max_model_len:
            return "prompt_too_long"
        why = self.unservable(request) if self.rejects_never_fitting else None
        return None if why is None else f"never_fits: {why}"

    def unservable(self, request: Request) -> str | None:
        """Why the request alone could not finish in an empty memory, or None."""
        final_tokens = min(request.prompt_tokens + request.output_tokens, self.max_model_len)
        return self.allocator.never_fits(request, self._peak_slots(final_tokens))

    def _peak_slots(self, final_tokens: int) -> int:
        """Most slots a request of this final length ever needs: its last token never gets one."""
        return final_tokens - 1

    def add(self, request: Request) -> Sequence:
        """Append the request to the queue. Raises `ValueError` for one with branches."""
        if request.branches is not None:
            raise ValueError(
                f"request {request.request_id} has branches: only the group scheduler serves those"
            )
        sequence = Sequence(request, self.max_model_len)
        self.waiting.add(sequence)
        return sequence

    def abort(self, request_id: str) -> Sequence | None:
        """Cancel between steps; memory is free at once. Looks through everything: rare."""
        waiting = self._abort_waiting(request_id)
        if waiting is not None:
            return waiting
        for sequence in self.calendar.members.values():
            if sequence.request.request_id == request_id:
                self._drop(sequence, self.calendar.step)
                self.allocator.release(sequence)
                sequence.state = State.ABORTED
                return sequence
        return None

    def _abort_waiting(self, request_id: str) -> Sequence | None:
        for sequence in self.waiting:
            if sequence.request.request_id == request_id:
                self.waiting.remove(sequence)
                sequence.state = State.ABORTED
                return sequence
        return None

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.calendar.members) or bool(self.waiting)

    def blocked_reason(self) -> str:
        """Why nothing was scheduled although requests wait and nothing runs."""
        why = self.unservable(self.waiting.head().request)
        return "the head of the queue does not fit the empty memory" + (f": {why}" if why else "")

    def unfinished(self) -> tuple[list[Sequence], list[Sequence]]:
        """What waits and what runs, in order, with current `tokens` and `computed`."""
        running = self.running()
        for sequence in running:
            sequence.computed = self.computed_tokens(sequence)
            if sequence.state is State.DECODING:
                sequence.tokens = sequence.computed + (0 if self.is_async else 1)
        return list(self.waiting), running

    def running(self) -> list[Sequence]:
        """Running sequences in running order."""
        return list(self.calendar.members.values())

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens of a running sequence that have KV, the latest step's included."""
        return self.calendar.computed_tokens(sequence)

    def _begin(self) -> StepPlan:
        calendar = self.calendar
        calendar.step += 1
        self._plan = StepPlan(calendar.step, calendar.members)
        return self._plan

    def _computed_before_step(self, sequence: Sequence) -> int:
        """Tokens that have KV when this step's copies run: its own tokens are not there yet."""
        if sequence.state is State.DECODING:
            return self.calendar.step - 1 + sequence.offset
        for owner, chunk in zip(self._plan.prefills, self._plan.chunks, strict=True):
            if owner is sequence:
                return chunk.prior_tokens
        return sequence.computed

    def _close(self, plan: StepPlan) -> StepPlan:
        """Fill the plan's totals, look at the head of the queue, turn whole prompts to decodes."""
        self._total(plan)
        plan.num_running = len(self.calendar.members)
        if self.waiting:
            plan.num_waiting = len(self.waiting)
            head = self.waiting.head()
            if not self.allocator.fits_sum(head):
                plan.head_short_of_memory = True
            elif self.allocator.held_up(head):
                plan.head_held_up = True
                head.held_up_by_fragmentation = True
        plan.copies = self.allocator.take_copies()
        if self._take_moves is not None:
            self._take_moves(plan)
        for sequence in plan.joined:
            self._join(sequence)
        return plan

    def _total(self, plan: StepPlan) -> None:
        calendar = self.calendar
        plan.num_decodes = calendar.num_decodes
        plan.decode_context_tokens = calendar.decode_tokens
        plan.live_tokens = self.allocator.usage.live_slots(
            calendar.decode_tokens + calendar.prefill_tokens + calendar.draining_tokens
        )

    def _join(self, sequence: Sequence) -> None:
        calendar = self.calendar
        calendar.join(sequence)
        if calendar.period is None:
            ahead = self.allocator.horizon(sequence, sequence.computed)
            calendar.attend(sequence, calendar.step + 1 + ahead)

    def _drop(self, sequence: Sequence, step: int) -> None:
        """Take a sequence out of the running ones; `tokens` and `computed` are current then."""
        samples = sequence.state is State.DECODING
        self.calendar.drop(sequence, step)
        if samples:
            sequence.tokens = sequence.computed + (0 if self.is_async else 1)

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        """Take back a running sequence's memory and put it at the head of the queue.

        Its tokens are kept and computed again (vllm/SPEC.md section 2c).
        """
        victim.was_decoding = victim.state in (State.DECODING, State.DRAINING)
        self._drop(victim, self.calendar.step - 1)
        self.allocator.release(victim, resumes=True)
        if victim.computed > victim.high_water:
            victim.high_water = victim.computed
        victim.computed = 0
        victim.preemptions += 1
        victim.state = State.WAITING
        self.waiting.requeue(victim)
        plan.preempted.append(victim)

    def _finish(self, sequences: list[Sequence], plan: StepPlan) -> list[Sequence]:
        """Free sequences that sampled their last token, in running order (SPEC.md section 7)."""
        if len(sequences) > 1:
            sequences.sort(key=lambda sequence: sequence.order)
        for sequence in sequences:
            if sequence.state is State.WAITING:
                self.waiting.remove(sequence)
            else:
                self._drop(sequence, self.calendar.step)
                self.allocator.release(sequence)
            sequence.tokens = sequence.final_tokens
            sequence.state = State.FINISHED
        plan.finished = sequences
        return sequences


def _moves(allocator: Allocator) -> Callable[[StepPlan], None] | None:
    """What tells a plan which pages were mapped and what was fetched; None where nothing is."""
    if isinstance(allocator, MapsPages):
        take_mapped = allocator.take_mapped_pages

        def book_mapped(plan: StepPlan) -> None:
            plan.mapped_pages = take_mapped()

        return book_mapped
    if isinstance(allocator, Fetches):
        take_transfers = allocator.take_transfers

        def book_transfers(plan: StepPlan) -> None:
            plan.transfers += take_transfers()

        return book_transfers
    return None
