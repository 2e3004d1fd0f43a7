"""How fast the device is now, against when its profile was measured.

Machines are shared and clock their processors up and down. A few batches of the profile, none of
them a step of the validated traffic, are run again in between the steps of a measured run: their
times over the profile's are the device's slowness during that run, and the clock is scaled by it.
"""

from __future__ import annotations

import statistics
from typing import Any

from gpu_backend.device import MeasuringClock
from gpu_backend.grid import GridSpec, measure_point
from gpu_backend.layouts import CacheLayout
from gpu_backend.steps import Point
from kvsim.core.plan import StepPlan
from kvsim.cost.profile import Profile
from kvsim.errors import InputError

EVERY_S = 0.75
"""Seconds of measured steps between two probes of a run."""


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
        self._ratios: list[float] = []
        self.history: list[float] = []
        """One entry per `slowness`."""

    def start(self) -> None:
        """Forget the samples so far and take the first."""
        self._ratios.clear()
        self.sample()

    def sample(self) -> None:
        """Run every batch, in the way in which its time in the profile was measured."""
        for point, seconds in self._seconds.items():
            row = measure_point(self._bench, "probe", point, 0)
            self._ratios.append(row.wall_s / seconds)

    def slowness(self) -> float:
        """Median of the samples since `start`, after a last one.

        Above 1 the device is slower than at its calibration.
        """
        self.sample()
        self.history.append(statistics.median(self._ratios))
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
