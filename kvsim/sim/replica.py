"""One replica: a scheduler, an allocator and a clock, driven by SimPy.

An engine step is one event: `schedule()`, then the clock's duration passes, then `complete()`.
Asynchronous scheduling decides the next step when a step starts: two steps are in flight, and what
arrives while one runs is seen by the step after the next (vllm/SPEC.md section 1).
Simulated time is integer nanoseconds, so that equal instants stay equal. At one instant, arrivals
come before the end of a step: the next `schedule()` sees every request that arrived by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from simpy.events import Event

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Clock, Recorder, Scheduler
from kvsim.core.request import Request, Sequence, State
from kvsim.errors import InputError
from kvsim.sim.clients import Clients
from kvsim.sim.environment import Environment
from kvsim.workload.base import MAX_NS

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Stuck:
    """Why a run was ended early: nothing could ever advance again."""

    at_s: float
    """End of the last step, in simulated seconds."""
    waiting: int
    running: int
    head_request_id: str
    reason: str


@dataclass(frozen=True)
class RunEnd:
    """How a run ended; `stuck` is None when every request reached its end."""

    duration_ns: int
    steps: int
    stuck: Stuck | None


class Replica:
    """One engine.

    `on_end` is told how many requests left; `may_send` says whether a request can still arrive
    although none leaves.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        clock: Clock,
        recorder: Recorder,
        *,
        on_end: Callable[[int], None],
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.clock = clock
        self.recorder = recorder
        self.steps = 0
        self.stuck: Stuck | None = None
        self.may_send: Callable[[], bool] = lambda: True
        self._on_end = on_end
        self._wake: Event | None = None
        self._step_end_ns = 0
        """When the latest booked step ended."""
        self._device_free_ns = 0
        """When the latest scheduled step will have ended."""
        self._in_flight: deque[tuple[StepPlan, int]] = deque()
        """Scheduled steps that are not booked, with their ends."""
        self._outgrew_memory: set[Sequence] = set()
        """Sequences that, alone, outgrew the memory since any request last advanced or came."""

    @property
    def now_ns(self) -> int:
        """Simulated time; the environment is only ever advanced by whole nanoseconds."""
        return int(self.env.now)

    def submit(self, request: Request) -> None:
        """Take a request that arrives now."""
        reason = self.scheduler.refuse(request)
        if reason is None:
            self.scheduler.add(request)
            self._outgrew_memory.clear()
        else:
            self.recorder.rejected(request, reason)
            self._on_end(1)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def run(self) -> Generator[Event, Any, None]:
        """The SimPy process: ends when all work is done or nothing can advance."""
        env = self.env
        depth = 2 if self.scheduler.is_async else 1
        while self.stuck is None:
            if self.scheduler.has_work():
                if self._schedule() and len(self._in_flight) < depth:
                    continue
            elif not self._in_flight and not self.may_send():
                return
            if self._in_flight:
                plan, end_ns = self._in_flight.popleft()
                if not env.passes(end_ns) and end_ns > env.now:
                    yield env.timeout(end_ns - env.now)
                self._end(plan)
            elif self.stuck is None:
                yield from self._sleep()

    def _schedule(self) -> bool:
        """Decide one step; False when only a step's end or an arrival can change anything."""
        scheduler = self.scheduler
        plan = scheduler.schedule()
        start_ns = max(self.now_ns, self._device_free_ns)
        if plan.scheduled_tokens or plan.padded_decodes:
            duration_ns = self._duration_ns(plan, start_ns)
            self._begin(plan, start_ns, duration_ns)
            self._in_flight.append((plan, start_ns + duration_ns))
            return True
        if plan.preempted:
            self._begin(plan, start_ns, 0)
            self._watch(plan.preempted[-1])
            return not self._in_flight
        if not self._in_flight and not self.may_send():
            self._give_up(scheduler.blocked_reason())
        return False

    def _duration_ns(self, plan: StepPlan, start_ns: int) -> int:
        seconds = self.clock.step_seconds(plan)
        if start_ns + seconds * NS_PER_S > MAX_NS:
            raise InputError(
                f"step {self.steps + 1:,} would end after 292 years: it takes {seconds:.3g} s",
                where="clock",
                fix="Check the clock's times, and bandwidths and latencies of what steps wait for",
            )
        return round(seconds * NS_PER_S)

    def _sleep(self) -> Generator[Event, Any, None]:
        start_ns = self.now_ns
        self._wake = self.env.event()
        yield self._wake
        if self.now_ns > start_ns:
            self.recorder.idle(start_ns, self.now_ns - start_ns)

    def _begin(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        for sequence in plan.preempted:
            if sequence.was_decoding and not self.scheduler.delivers_unevenly:
                sequence.last_token_ns = self._device_free_ns
        for sequence in plan.admitted:
            if sequence.first_scheduled_ns < 0:
                sequence.first_scheduled_ns = start_ns
        self.steps += 1
        self._device_free_ns = start_ns + duration_ns
        if plan.num_decodes or plan.prefill_tokens > plan.recomputed_tokens:
            self._outgrew_memory.clear()
        self.recorder.step(plan, start_ns, duration_ns)

    def _end(self, plan: StepPlan) -> None:
        now_ns = self.now_ns
        self._step_end_ns = now_ns
        finished = self.scheduler.complete(plan)
        for sequence in plan.joined:
            if sequence.first_token_ns < 0:
                sequence.first_token_ns = now_ns
        for outcome in plan.outcomes:
            if outcome.delivered_tokens:
                outcome.sequence.last_token_ns = now_ns
        for sequence in finished:
            sequence.finished_ns = now_ns
            self.recorder.request(sequence, "finished")
        if finished:
            self._on_end(len(finished))

    def _watch(self, victim: Sequence) -> None:
        """Notice that a sequence which needs more than all memory is tried again and again.

        It was the last one running and took back its own memory. If it comes to that twice while
        no request computed anything new or came, and none can arrive, it will for ever. Schedulers
        never swap such a sequence out, so what is swapped comes back in between.
        """
        if victim in self._outgrew_memory and not self.may_send():
            why = self.scheduler.unservable(victim.request)
            self._give_up(
                f"request {victim.request.request_id} outgrew the whole memory and was computed "
                f"again without any other request advancing{f': {why}' if why else ''}"
            )
        self._outgrew_memory.add(victim)

    def _give_up(self, reason: str) -> None:
        queue, running = self.scheduler.unfinished()
        head = (queue or running)[0]
        self.stuck = Stuck(
            at_s=self._step_end_ns / NS_PER_S,
            waiting=len(queue),
            running=len(running),
            head_request_id=head.request.request_id,
            reason=reason,
        )


def run_replica(
    workload: Iterable[Request],
    scheduler: Scheduler,
    clock: Clock,
    recorder: Recorder,
    *,
    max_concurrency: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RunEnd:
    """Run a workload through one replica until every request has ended or nothing can advance.

    What is left then is recorded as unfinished, requests that were never sent too. `progress`
    receives the number of requests that left since its last call.
    """
    env = Environment(initial_time=0)

    def on_end(count: int) -> None:
        clients.left(count)
        if progress is not None:
            progress(count)

    replica = Replica(env, scheduler, clock, recorder, on_end=on_end)
    clients = Clients(env, workload, replica.submit, max_concurrency=max_concurrency)
    replica.may_send = clients.may_send
    env.process(clients.run())
    env.run(until=env.process(replica.run()))
    queue, running = scheduler.unfinished()
    for sequence in [*running, *queue]:
        recorder.request(sequence, "unfinished")
    for request in clients.unsent():
        sequence = Sequence(request, request.prompt_tokens + request.output_tokens)
        sequence.state = State.NOT_SENT
        recorder.request(sequence, "unfinished")
    return RunEnd(int(env.now), replica.steps, replica.stuck)
