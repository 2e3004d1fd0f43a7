"""What a section gets: the device, its facts, a stopwatch and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gpu_backend.bench.timing import Stopwatch


class OutOfTime(Exception):  # noqa: N818 - not an error
    """A section's time is used up; raised between two of its points."""


class Skipped(Exception):  # noqa: N818 - not an error
    """A section cannot run here; the message says why."""


@dataclass(frozen=True)
class Bench:
    """One run.

    `tiny` asks sections for shapes that the interpreter manages; `meaningless`: its times mean
    nothing, which every row of a time then says.
    """

    device: torch.device
    stopwatch: Stopwatch
    l2_bytes: int
    memory_bytes: int
    seconds_left: Callable[[], float]
    tiny: bool = False
    meaningless: bool = False
    plan: Path | None = None
    """A plan file for the lockstep section."""
    seed: int = 0
    now: Callable[[], float] = field(default=time.monotonic)

    @property
    def cold_bytes(self) -> int:
        """Bytes to go through so that nothing measured is found in the L2 cache: 4 times it."""
        return 4 * self.l2_bytes

    def check_time(self) -> None:
        """Raises `OutOfTime` once the running section's share is used up."""
        if self.seconds_left() <= 0:
            raise OutOfTime

    def random(self) -> torch.Generator:
        """A generator on the device, always with the same seed."""
        return torch.Generator(self.device).manual_seed(self.seed)
