"""Several samples of one prompt as requests of their own: how vLLM's v1 engine serves `n`.

The samples know nothing of each other. Each computes the prompt unless the prefix cache already
has it (vLLM v1, `ParentRequest`): blocks are shared as far as one sample's prompt was computed
before the next was admitted, whole blocks only, and nothing is ever copied.
"""

from __future__ import annotations

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Scheduler
from kvsim.core.request import Request, Sequence, State


class _Parent:
    """A request and its samples."""

    def __init__(self, request: Request, samples: list[Sequence], max_model_len: int) -> None:
        self.sequence = Sequence(request, max_model_len)
        self.samples = samples
        self.left = len(samples)
        self.answered = False
        """Whether a sample has got a token, or gets its first in the step that is planned."""

    def close(self) -> Sequence:
        """The request's sequence, with what its samples went through together."""
        whole, samples = self.sequence, self.samples
        whole.cached_tokens = sum(sample.cached_tokens for sample in samples)
        whole.preemptions = sum(sample.preemptions for sample in samples)
        whole.held_up_by_fragmentation = any(s.held_up_by_fragmentation for s in samples)
        scheduled = [s.first_scheduled_ns for s in samples if s.first_scheduled_ns >= 0]
        whole.first_scheduled_ns = min(scheduled, default=-1)
        delivered = sum(sample.tokens for sample in samples) // len(samples)
        whole.tokens = delivered
        return whole


class _Tally:
    """Samples in one place, and how many of them are not the first of their request."""

    def __init__(self) -> None:
        self.further = 0
        self._held: dict[Sequence, int] = {}
        """By the request's sequence."""

    def add(self, whole: Sequence) -> None:
        """A sample of this request comes."""
        held = self._held.get(whole, 0)
        self._held[whole] = held + 1
        self.further += held > 0

    def remove(self, whole: Sequence) -> None:
        """A sample of this request leaves."""
        held = self._held.pop(whole) - 1
        if held:
            self._held[whole] = held
            self.further -= 1


class FanOutScheduler:
    """Gives every sample of a request to another scheduler, and gives the request back whole.

    A request arrives and is recorded once: scheduled with its first sample, its first token is the
    first of any sample, it ends with its last sample. Plans name samples, but count requests in
    `num_running` and `num_waiting`: a request is in both while some of its samples run and others
    wait. Of an unfinished request `tokens` is the mean over its samples, rounded down.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.inner = scheduler
        self.is_async = scheduler.is_async
        self.delivers_unevenly = scheduler.delivers_unevenly
        self._parents: dict[Sequence, _Parent] = {}
        """By sample."""
        self._running, self._waiting = _Tally(), _Tally()
        self._places: dict[Sequence, _Tally] = {}
        """Where each sample is."""

    def refuse(self, request: Request) -> str | None:
        """Samples are alike: what one is refused for, all are."""
        return self.inner.refuse(request._replace(branches=None))

    def unservable(self, request: Request) -> str | None:
        """Why one sample could not finish in an empty memory, or None."""
        return self.inner.unservable(request._replace(branches=None))

    def add(self, request: Request) -> Sequence:
        """Queue all samples, one behind the other. Raises `ValueError` for beams."""
        branching = request.branches
        if branching is None or branching.width == 1:
            return self.inner.add(request._replace(branches=None))
        if branching.kind != "parallel":
            raise ValueError(f"request {request.request_id}: beams cannot be requests of their own")
        samples = [self.inner.add(sample) for sample in samples_of(request)]
        parent = _Parent(request, samples, samples[0].max_model_len)
        for sample in samples:
            self._parents[sample] = parent
            self._place(sample, self._waiting)
        return parent.sequence

    def _place(self, sample: Sequence, tally: _Tally | None) -> None:
        """Move a sample to where it is now; None: it ended."""
        parent = self._parents.get(sample)
        if parent is None:
            return
        before = self._places.pop(sample, None)
        if before is not None:
            before.remove(parent.sequence)
        if tally is not None:
            self._places[sample] = tally
            tally.add(parent.sequence)

    def abort(self, request_id: str) -> Sequence | None:
        """Cancel a request with all its samples; None if unknown."""
        for parent in set(self._parents.values()):
            if parent.sequence.request.request_id != request_id:
                continue
            for sample in parent.samples:
                if sample in self._parents:
                    self._place(sample, None)
                    del self._parents[sample]
                    self.inner.abort(sample.request.request_id)
            whole = parent.close()
            whole.state = State.ABORTED
            return whole
        return self.inner.abort(request_id)

    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return self.inner.has_work()

    def blocked_reason(self) -> str:
        """Why nothing was scheduled although requests wait and nothing runs."""
        return self.inner.blocked_reason()

    def running(self) -> list[Sequence]:
        """Samples that hold memory, in running order."""
        return self.inner.running()

    def unfinished(self) -> tuple[list[Sequence], list[Sequence]]:
        """Requests of which no sample runs, and the others, in order."""
        waiting, running = self.inner.unfinished()
        runs = list(dict.fromkeys(self._whole(sample, State.DECODING) for sample in running))
        waits = dict.fromkeys(self._whole(sample, State.WAITING) for sample in waiting)
        return [whole for whole in waits if whole not in runs], runs

    def _whole(self, sample: Sequence, state: State) -> Sequence:
        parent = self._parents.get(sample)
        if parent is None:
            return sample
        whole = parent.close()
        if whole.state is not State.DECODING:
            whole.state = state
        return whole

    def schedule(self) -> StepPlan:
        """The other scheduler's next step, its counts by request."""
        plan = self.inner.schedule()
        for sample in (*plan.admitted, *plan.swapped_in):
            self._place(sample, self._running)
        for sample in plan.preempted:
            self._place(sample, self._waiting)
        for sample in plan.joined:
            self._note_first_token(sample)
        plan.further_branches += self._running.further
        plan.num_running -= self._running.further
        plan.num_waiting -= self._waiting.further
        return plan

    def _note_first_token(self, sample: Sequence) -> None:
        """A request's prompt is booked with its first token: once, not with every sample's."""
        parent = self._parents.get(sample)
        if parent is None:
            return
        if parent.answered:
            sample.first_token_ns = max(sample.first_token_ns, parent.sequence.first_token_ns, 0)
        parent.answered = True

    def complete(self, plan: StepPlan) -> list[Sequence]:
        """Book the step; return the requests whose last sample ended."""
        finished: list[Sequence] = []
        ended = self.inner.complete(plan)
        firsts = [self._parents[s].sequence for s in plan.joined if s in self._parents]
        plan.joined.extend(dict.fromkeys(firsts))
        for sample in ended:
            self._place(sample, None)
            parent = self._parents.pop(sample, None)
            if parent is None:
                finished.append(sample)
                continue
            parent.left -= 1
            if not parent.left:
                whole = parent.close()
                whole.state = State.FINISHED
                finished.append(whole)
        return finished


def samples_of(request: Request) -> list[Request]:
    """A request for each branch, all with the same prompt.

    Only the first generates the request's `output_stream`. A prompt that nobody else shares becomes
    a stream that the samples share.
    """
    assert request.branches is not None
    name = request.request_id
    segments = request.segments
    if segments is None:
        segments = ((("prompt of", name), request.prompt_tokens),)
    return [
        request._replace(
            request_id=f"{name}#{index}",
            segments=segments,
            output_stream=request.output_stream if index == 0 else None,
            branches=None,
        )
        for index in range(request.branches.width)
    ]
