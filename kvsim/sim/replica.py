"""One replica: a scheduler, an allocator and a clock, driven by SimPy.

An engine step is one event: `schedule()`, then the clock's duration passes, then `complete()`.
Simulated time is integer nanoseconds, so that equal instants stay equal. At one instant, arrivals
come before the end of a step: the next `schedule()` sees every request that arrived by then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import simpy
from simpy.events import URGENT, Event

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Clock, Recorder, Scheduler
from kvsim.core.request import Request, Sequence

NS_PER_S = 1_000_000_000
STEPS_WITHOUT_PROGRESS = 10_000
"""Steps in a row that only recompute what had been computed before a run is called stuck."""


@dataclass(frozen=True)
class Stuck:
    """Why a run was ended early: nothing could ever advance again."""

    at_s: float
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
    """One engine. `on_end` is told about every request that leaves (closed-loop clients wait)."""

    def __init__(
        self,
        env: simpy.Environment,
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
        self._on_end = on_end
        self._wake: Event | None = None
        self._closed = False
        self._step_end_ns = 0
        self._barren_steps = 0

    @property
    def now_ns(self) -> int:
        """Simulated time; the environment is only ever advanced by whole nanoseconds."""
        return int(self.env.now)

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests that arrive now."""
        rejected = 0
        for request in requests:
            reason = self.scheduler.refuse(request)
            if reason is None:
                self.scheduler.add(request).arrived_ns = self.now_ns
            else:
                self.recorder.rejected(request, reason)
                rejected += 1
        if rejected:
            self._on_end(rejected)
        self._rouse()

    def close(self) -> None:
        """No request will come any more."""
        self._closed = True
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def run(self) -> Generator[Event, Any, None]:
        """The SimPy process."""
        env, scheduler = self.env, self.scheduler
        while True:
            if not scheduler.has_work():
                if self._closed:
                    return
                yield from self._sleep()
                continue
            plan = scheduler.schedule()
            if plan.num_running:
                duration_ns = round(self.clock.step_seconds(plan) * NS_PER_S)
                self._begin(plan, duration_ns)
                yield env.timeout(duration_ns)
                self._end(plan)
            elif plan.preempted:
                self._begin(plan, 0)
                self._end(plan)
            elif self._closed:
                self._give_up("the head of the queue does not fit the empty memory")
                return
            else:
                yield from self._sleep()
            if self._barren_steps >= STEPS_WITHOUT_PROGRESS:
                self._give_up(f"{STEPS_WITHOUT_PROGRESS} steps in a row only recomputed tokens")
                return

    def _sleep(self) -> Generator[Event, Any, None]:
        start_ns = self.now_ns
        self._wake = self.env.event()
        yield self._wake
        if self.now_ns > start_ns:
            self.recorder.idle(start_ns, self.now_ns - start_ns)

    def _begin(self, plan: StepPlan, duration_ns: int) -> None:
        start_ns = self.now_ns
        for sequence in plan.preempted:
            if sequence.was_decoding:
                sequence.last_token_ns = self._step_end_ns
        for sequence in plan.admitted:
            if sequence.first_scheduled_ns < 0:
                sequence.first_scheduled_ns = start_ns
        self.steps += 1
        if plan.num_decodes or plan.prefill_tokens > plan.recomputed_tokens:
            self._barren_steps = 0
        else:
            self._barren_steps += 1
        self.recorder.step(plan, start_ns, duration_ns)

    def _end(self, plan: StepPlan) -> None:
        now_ns = self.now_ns
        self._step_end_ns = now_ns
        finished = self.scheduler.complete(plan)
        for sequence in plan.joined:
            if sequence.first_token_ns < 0:
                sequence.first_token_ns = now_ns
        for sequence in finished:
            sequence.finished_ns = now_ns
            self.recorder.request(sequence, "finished")
        if finished:
            self._on_end(len(finished))

    def _give_up(self, reason: str) -> None:
        queue, running = self.scheduler.unfinished()
        head = (queue or running)[0]
        self.stuck = Stuck(
            at_s=self.env.now / NS_PER_S,
            waiting=len(queue),
            running=len(running),
            head_request_id=head.request.request_id,
            reason=reason,
        )


class Clients:
    """Sends a workload's requests at their times, at most `max_concurrency` at once.

    With a limit, a request whose time has come waits until another one leaves, and arrives then.
    """

    def __init__(
        self, env: simpy.Environment, workload: Iterable[Request], max_concurrency: int | None
    ) -> None:
        self.env = env
        self.workload = workload
        self.max_concurrency = max_concurrency
        self.in_flight = 0
        self._room: Event | None = None

    def left(self, count: int) -> None:
        """`count` requests reached their end."""
        self.in_flight -= count
        if self._room is not None:
            self._room.succeed()
            self._room = None

    def run(self, replica: Replica) -> Generator[Event, Any, None]:
        """The SimPy process."""
        for arrival_ns, group in groupby(self.workload, key=lambda request: request.arrival_ns):
            if arrival_ns > self.env.now:
                yield self._at(arrival_ns)
            if self.max_concurrency is None:
                replica.submit(group)
            else:
                yield from self._send_limited(group, replica, self.max_concurrency)
        replica.close()

    def _send_limited(
        self, group: Iterator[Request], replica: Replica, limit: int
    ) -> Generator[Event, Any, None]:
        for request in group:
            while self.in_flight >= limit:
                self._room = self.env.event()
                yield self._room
            self.in_flight += 1
            replica.submit((request,))

    def _at(self, time_ns: int) -> Event:
        """An event at an absolute time that comes before step ends at the same instant."""
        event = self.env.event()
        event._ok, event._value = True, None
        self.env.schedule(event, priority=URGENT, delay=time_ns - self.env.now)
        return event


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

    `progress` receives the number of requests that left since its last call.
    """
    env = simpy.Environment(initial_time=0)
    clients = Clients(env, workload, max_concurrency)

    def on_end(count: int) -> None:
        if max_concurrency is not None:
            clients.left(count)
        if progress is not None:
            progress(count)

    replica = Replica(env, scheduler, clock, recorder, on_end=on_end)
    env.process(clients.run(replica))
    done = env.process(replica.run())
    env.run(until=done)
    _record_unfinished(scheduler, recorder)
    return RunEnd(int(env.now), replica.steps, replica.stuck)


def _record_unfinished(scheduler: Scheduler, recorder: Recorder) -> None:
    queue, running = scheduler.unfinished()
    left: list[Sequence] = [*running, *queue]
    for sequence in left:
        recorder.request(sequence, "unfinished")
