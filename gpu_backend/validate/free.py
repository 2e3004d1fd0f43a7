"""Free runs: each side keeps its own clock, so arrivals meet different steps on the two sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu_backend.device import DeviceSpec
from gpu_backend.executor import StepTiming
from gpu_backend.scenario_device import Runnable
from gpu_backend.validate.record import RunRecorder
from kvsim.core.protocols import Clock
from kvsim.core.request import Request
from kvsim.results.intervals import t_interval, t_quantile
from kvsim.sim import run_replica

CLOSED = "closed"
"""The load whose clients send the next request when one of theirs ends."""
FIGURES = (
    "requests_per_s",
    "kv_usage",
    "batch",
    "preemptions",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
)
_POOLED = {
    "ttft_p50_s": ("ttft_s", 0.5),
    "ttft_p99_s": ("ttft_s", 0.99),
    "tpot_p50_s": ("tpot_s", 0.5),
    "tpot_p99_s": ("tpot_s", 0.99),
}


class Load(NamedTuple):
    """Traffic of one kind."""

    name: str
    """`closed`, or the share of the saturation rate, as `0.9`."""
    rate_rps: float | None
    max_concurrency: int | None


class Pair(NamedTuple):
    """The two sides of one seed."""

    seed: int
    slowness: float
    """By which the simulation's clock was scaled."""
    requests: list[Request]
    measured: RunRecorder
    simulated: RunRecorder
    attempts: int
    """Times the run was measured; the quietest counts."""
    cpu_share: float | None
    """CPU time over wall time of its steps: what is missing to 1, other processes took. None where
    the device runs on several threads or is no CPU, and nothing can be said."""


def cpu_share(timings: Sequence[StepTiming], device: DeviceSpec) -> float | None:
    """See `Pair.cpu_share`."""
    if device.device != "cpu" or device.num_threads != 1:
        return None
    return sum(step.cpu_s for step in timings) / max(sum(step.wall_s for step in timings), 1e-12)


def run_side(
    runnable: Runnable,
    requests: Sequence[Request],
    load: Load,
    make_clock: Any,
) -> RunRecorder:
    """One run. `make_clock(allocator, scheduler)` returns its clock."""
    allocator, scheduler = runnable.server.build()
    recorder = RunRecorder(allocator)
    clock: Clock = make_clock(allocator, scheduler)
    run_replica(requests, scheduler, clock, recorder, max_concurrency=load.max_concurrency)
    return recorder


class Compared(NamedTuple):
    """One figure under one load, over the seeds."""

    measured: float
    simulated: float
    difference: float | None
    """Simulated over measured, minus 1; None where the measured figure is 0."""
    interval: tuple[float, float] | None
    """95 % interval of the difference over the seeds; None for one seed or without width."""


def compare(
    measured: Sequence[RunRecorder], simulated: Sequence[RunRecorder]
) -> dict[str, Compared]:
    """Every figure of `FIGURES`; quantiles are of all seeds' requests together."""
    return {name: _compared(name, measured, simulated) for name in FIGURES}


def _compared(
    name: str, measured: Sequence[RunRecorder], simulated: Sequence[RunRecorder]
) -> Compared:
    left, right = (
        [recorder.figures()[name] for recorder in side] for side in (measured, simulated)
    )
    a, b = _overall(name, measured, left), _overall(name, simulated, right)
    if not a:
        return Compared(a, b, None, None)
    difference = b / a - 1
    ratios = [s / m - 1 for m, s in zip(left, right, strict=True) if m]
    interval = None
    if len(ratios) > 1:
        interval = t_interval(ratios, difference, t_quantile(len(ratios) - 1))
    return Compared(a, b, difference, interval)


def _overall(name: str, side: Sequence[RunRecorder], values: Sequence[float]) -> float:
    if name not in _POOLED:
        return float(np.mean(values))
    attribute, share = _POOLED[name]
    pooled = [value for recorder in side for value in getattr(recorder, attribute)]
    return float(np.quantile(pooled, share)) if pooled else 0.0
