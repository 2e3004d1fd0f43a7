"""A tiny run on the CPU whose stopwatch says what a test wants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpu_backend.bench.bench import Bench

CPU = torch.device("cpu")


class FixedStopwatch:
    """Runs the calls once, then claims the next of `us` microseconds for each sample prepared."""

    def __init__(self, *us: float) -> None:
        self.us = list(us) or [1.0]
        self.how = "fixed"
        self.prepared: list[int] = []

    def prepare(self, calls: Sequence[Callable[[], object]], *, graph: bool = True) -> FixedSample:
        for call in calls:
            call()
        us = self.us[len(self.prepared) % len(self.us)]
        self.prepared.append(len(calls))
        return FixedSample(us, self.how if graph else "events")


class FixedSample:
    def __init__(self, us: float, how: str) -> None:
        self._us, self.how = us, how

    def seconds(self) -> float:
        return self._us / 1e6


def tiny_bench(*us: float, **changes: Any) -> Bench:
    settings: dict[str, Any] = {
        "l2_bytes": 4096,
        "memory_bytes": 1 << 24,
        "seconds_left": lambda: math.inf,
        "tiny": True,
        "meaningless": True,
    }
    return Bench(CPU, FixedStopwatch(*us), **(settings | changes))
