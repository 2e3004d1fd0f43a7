"""The steps of a simulation, run one for one on the device: step times are compared in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.plan_file import PlanFile, StepCounts
from gpu_backend.scenario_device import Runnable
from gpu_backend.server_spec import LiveScheduler
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Clock, Recorder
from kvsim.core.request import Request
from kvsim.core.request import Sequence as Running
from kvsim.sim import run_replica


class Simulated(NamedTuple):
    """A simulation whose steps can be run."""

    plan_file: PlanFile
    predicted_s: list[float]
    """By the clock, of every step with tokens."""


class EventLog:
    """A scheduler that notes what is asked of it (`kvsim.core.protocols.Scheduler`)."""

    is_async = False
    delivers_unevenly = False

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        self.events: list[Request | int] = []
        self._steps = 0
        self.refuse = scheduler.refuse
        self.unservable = scheduler.unservable
        self.abort = scheduler.abort
        self.has_work = scheduler.has_work
        self.blocked_reason = scheduler.blocked_reason
        self.running = scheduler.running
        self.unfinished = scheduler.unfinished
        self.complete = scheduler.complete

    def add(self, request: Request) -> Running:
        """Note the arrival; as its time the steps so far, which no clock can change."""
        self.events.append(request._replace(arrival_ns=self._steps))
        return self._scheduler.add(request)

    def schedule(self) -> StepPlan:
        """Note the step."""
        self._steps += 1
        if self.events and isinstance(self.events[-1], int):
            self.events[-1] += 1
        else:
            self.events.append(1)
        return self._scheduler.schedule()


class _Steps:
    """A clock that notes what every step does and what it predicts."""

    def __init__(self, clock: Clock, allocator: Any) -> None:
        self._clock, self._allocator = clock, allocator
        self.counts: list[StepCounts] = []
        self.predicted_s: list[float] = []

    def step_seconds(self, plan: StepPlan) -> float:
        """The clock's."""
        seconds = self._clock.step_seconds(plan)
        self.counts.append(StepCounts.of(plan, self._allocator))
        self.predicted_s.append(seconds)
        return seconds


def simulate(
    runnable: Runnable,
    clock: Clock,
    requests: Sequence[Request],
    recorder: Callable[[Any], Recorder],
    *,
    max_concurrency: int | None = None,
) -> Simulated:
    """Simulate a variant on the clock and keep its steps. `recorder` is given the allocator."""
    allocator, scheduler = runnable.server.build()
    log, steps = EventLog(scheduler), _Steps(clock, allocator)
    run_replica(requests, log, steps, recorder(allocator), max_concurrency=max_concurrency)
    plan_file = PlanFile(
        runnable.name,
        runnable.model.name,
        runnable.shape,
        runnable.device.layers,
        runnable.device.measured_layers,
        runnable.device.dtype,
        runnable.device.attention_only,
        runnable.server,
        log.events,
        steps.counts,
    )
    return Simulated(plan_file, steps.predicted_s)


class Lockstep:
    """Measured and predicted times of the same steps.

    `measured_s` [repeats, steps], each repeat divided by the device's slowness during it.
    """

    def __init__(
        self, counts: Sequence[StepCounts], predicted_s: Sequence[float], measured_s: NumpyArray
    ) -> None:
        self.counts = counts
        self.predicted_s = np.array(predicted_s)
        self.measured_s = np.median(measured_s, axis=0)
        self.has_chunks = np.array([step.chunks > 0 for step in counts])
        self.repeats = len(measured_s)
        self._repeats = measured_s

    def errors(self, predicted_s: Sequence[float] | None = None) -> dict[str, dict[str, float]]:
        """Relative errors: of all steps, of decodes alone, of steps with prefill chunks.

        `predicted_s` are another clock's predictions of the same steps.
        """
        predicted = self.predicted_s if predicted_s is None else np.array(predicted_s)
        return self._by_kind(predicted / self.measured_s - 1)

    def noise(self) -> dict[str, dict[str, float]]:
        """The same figures for two measurements of a step: medians of every other repeat.

        What no clock can be better than.
        """
        half = len(self._repeats) // 2
        first = np.median(self._repeats[0::2][:half], axis=0)
        second = np.median(self._repeats[1::2][:half], axis=0)
        return self._by_kind((second - first) / ((first + second) / 2))

    def _by_kind(self, relative: NumpyArray) -> dict[str, dict[str, float]]:
        kinds = {
            "all": np.ones(len(relative), bool),
            "decode": ~self.has_chunks,
            "prefill": self.has_chunks,
        }
        return {kind: _spread(relative[chosen]) for kind, chosen in kinds.items() if chosen.any()}


def _spread(relative: NumpyArray) -> dict[str, float]:
    size = np.abs(relative)
    return {
        "steps": float(len(relative)),
        "median": float(np.median(size)),
        "p90": float(np.quantile(size, 0.9)),
        "bias": float(np.median(relative)),
    }
