"""How fast the device is now, against when its profile was measured.

Machines are shared and clock their processors up and down. A few batches of the profile, none of
them a step of the validated traffic, are run again in between the steps of a measured run: their
times over the profile's are the device's slowness during that run, and the clock is scaled by it.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from gpu_backend.device import MeasuringClock
from gpu_backend.grid import REPEATS, GridSpec
from gpu_backend.layouts import CacheLayout
from gpu_backend.steps import Point
from kvsim.core.plan import StepPlan
from kvsim.cost.profile import Profile
from kvsim.errors import InputError

EVERY_S = 0.75
"""Seconds of measured steps between two probes of a run."""


class Slowness(NamedTuple):
    """Above 1 the device is slower than at its calibration."""

    typical: float
    """Median over the batches: what a step's median takes."""
    overall: float
    """Of the sums, interruptions included: what a whole run takes."""


class SpeedProbe:
    """Runs the probe batches of a profile; collects from `start` on."""

    def __init__(self, spec: GridSpec, profile: Profile) -> None:
        """Raises InputError for a profile without probe batches or with others than this device."""
        try:
            entries = profile.document["probe"]
            layout, layers = CacheLayout.named(entries[0]["layout"]), int(entries[0]["layers"])
            self._seconds = {_point(entry["point"]): float(entry["wall_s"]) for entry in entries}
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"the profile has no batches to measure the device's speed with: {error}",
                where="profile",
                fix="Calibrate again",
            ) from None
        self._bench = spec.bench(layout, layers, seed=0)
        self._samples: list[tuple[float, float]] = []
        self.history: list[Slowness] = []
        """One entry per `result`."""

    def start(self) -> None:
        """Forget the samples so far and take the first."""
        self._samples.clear()
        self.sample()

    def sample(self) -> None:
        """Run every batch, in the way in which its time in the profile was measured."""
        for point, seconds in self._seconds.items():
            timings = self._bench.measure(point, REPEATS)
            self._samples += [(timing.wall_s, seconds) for timing in timings]

    def result(self) -> Slowness:
        """Of the samples since `start`, after a last one."""
        self.sample()
        ratios = [now / then for now, then in self._samples]
        now, then = (sum(column) for column in zip(*self._samples, strict=True))
        self.history.append(Slowness(statistics.median(ratios), now / then))
        return self.history[-1]


class ProbedClock:
    """A measuring clock that stops for a probe now and then, outside the measured time."""

    def __init__(self, clock: MeasuringClock, probe: SpeedProbe) -> None:
        self._clock, self._probe = clock, probe
        self._since_s = 0.0
        probe.start()

    @property
    def timings(self) -> list[Any]:
        """Of the clock inside."""
        return self._clock.timings

    @property
    def device_name(self) -> str:
        """Of the clock inside."""
        return self._clock.device_name

    @property
    def checked_rows(self) -> int:
        """Of the clock inside."""
        return self._clock.checked_rows

    def step_seconds(self, plan: StepPlan) -> float:
        """Run the step; its wall time in seconds."""
        seconds = self._clock.step_seconds(plan)
        self._since_s += seconds
        if self._since_s >= EVERY_S:
            self._probe.sample()
            self._since_s = 0.0
        return seconds


def _point(data: dict[str, Any]) -> Point:
    return Point(
        tuple(data["decodes"]),
        tuple((new, prior) for new, prior in data["chunks"]),
        int(data["copy_tokens"]),
    )
