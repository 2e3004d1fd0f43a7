"""How long kernels take: many calls in a row, replayed as one CUDA graph, medians of replays.

The calls of a sample do the same work on different memory, so that each reads it cold. Several
samples are measured in turns: what the machine does in between then hits all of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

Call = Callable[[], object]
MIN_REPLAYS, MAX_REPLAYS = 5, 60
# Starting a graph takes a few microseconds, which must not count against the kernels in it.
GRAPH_SECONDS, MAX_PASSES = 2e-3, 64


class Timed(NamedTuple):
    """Microseconds of one call: the median over replays, and their quartiles."""

    us: float
    low_us: float
    high_us: float
    replays: int
    how: str
    """graph (CUDA graph replay), events (launched one by one) or perf_counter."""

    def row(self, prefix: str = "") -> dict[str, object]:
        """As part of a row."""
        return {
            f"{prefix}us": self.us,
            f"{prefix}low_us": self.low_us,
            f"{prefix}high_us": self.high_us,
            f"{prefix}replays": self.replays,
            f"{prefix}timing": self.how,
        }


class Sample(Protocol):
    """Calls that are ready to be timed."""

    how: str

    def seconds(self) -> float:
        """Run all calls once; seconds per call."""


class Stopwatch(Protocol):
    """Makes samples."""

    def prepare(self, calls: Sequence[Call], *, graph: bool = True) -> Sample:
        """Warm the calls up and make them ready; without `graph`, to be launched one by one."""


class WallStopwatch:
    """For a device that works while it is called: the CPU, in tests."""

    def prepare(self, calls: Sequence[Call], *, graph: bool = True) -> Sample:
        """Nothing to prepare: the interpreter has nothing to compile."""
        return _WallSample(list(calls))


class _WallSample:
    how = "perf_counter"

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def seconds(self) -> float:
        begin = time.perf_counter()
        for call in self._calls:
            call()
        return (time.perf_counter() - begin) / len(self._calls)


class CudaStopwatch:
    """CUDA events around a graph replay of all calls."""

    def prepare(self, calls: Sequence[Call], *, graph: bool = True) -> Sample:
        """Compile and warm up, then capture; calls that cannot be captured are launched singly.

        The calls are passed through as often as makes a sample of some milliseconds.
        """
        once = _EventSample(list(calls))
        once.seconds()
        seconds = once.seconds() * len(calls)
        passes = max(1, min(MAX_PASSES, math.ceil(GRAPH_SECONDS / max(seconds, 1e-9))))
        repeated = [*calls] * passes
        if not graph:
            return _EventSample(repeated)
        try:
            return _GraphSample(repeated)
        except Exception:  # noqa: BLE001 - libraries refuse a capture in ways of their own
            torch.cuda.synchronize()
            return _EventSample(repeated)


class _GraphSample:
    how = "graph"

    def __init__(self, calls: Sequence[Call]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._count = len(calls)
        with torch.cuda.graph(self._graph):
            for call in calls:
                call()
        self.seconds()

    def seconds(self) -> float:
        return _between_events(self._graph.replay) / self._count


class _EventSample:
    how = "events"

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def seconds(self) -> float:
        return _between_events(self._run) / len(self._calls)

    def _run(self) -> None:
        for call in self._calls:
            call()


def _between_events(call: Call) -> float:
    new: Callable[..., torch.cuda.Event] = torch.cuda.Event  # untyped in torch
    begin, end = new(enable_timing=True), new(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def interleave(
    samples: Sequence[Sample],
    *,
    budget_s: float = 0.25,
    replays: tuple[int, int] = (MIN_REPLAYS, MAX_REPLAYS),
) -> list[Timed]:
    """Measure all samples in turns; one result each.

    Stops once `budget_s` seconds went by, but only between `replays` (at least, at most) rounds.
    """
    least, most = replays
    rounds: list[list[float]] = []
    begin = time.perf_counter()
    while len(rounds) < most:
        rounds.append([sample.seconds() for sample in samples])
        if len(rounds) >= least and time.perf_counter() - begin > budget_s:
            break
    return [
        _timed(list(seconds), sample.how)
        for seconds, sample in zip(zip(*rounds, strict=True), samples, strict=True)
    ]


def _timed(seconds: list[float], how: str) -> Timed:
    us = sorted(second * 1e6 for second in seconds)
    quarter = len(us) // 4
    return Timed(statistics.median(us), us[quarter], us[-1 - quarter], len(us), how)
