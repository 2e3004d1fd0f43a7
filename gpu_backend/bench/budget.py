"""The time of a run, shared out between its sections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Budget:
    """`total_s` seconds from now, of which each section gets a share by its weight.

    A section's share is its part of the time that is left when it begins, among the sections that
    have not begun: what one leaves over, all later ones get.
    """

    def __init__(
        self,
        total_s: float,
        weights: Mapping[str, float],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if total_s <= 0:
            raise ValueError(f"total_s (={total_s}) must be > 0")
        for name, weight in weights.items():
            if weight <= 0:
                raise ValueError(f"the weight of {name} (={weight}) must be > 0")
        self._now = now
        self._end = now() + total_s
        self._waiting = dict(weights)
        self._section_end = self._end

    def begin(self, name: str) -> float:
        """Start section `name`, one of the weights; returns its seconds, 0 when none are left."""
        weight = self._waiting[name]
        left = max(0.0, self._end - self._now())
        share = left * weight / sum(self._waiting.values())
        del self._waiting[name]
        self._section_end = self._now() + share
        return share

    def seconds_left(self) -> float:
        """Seconds that are left of the running section's share; 0 or less when it is used up."""
        return min(self._section_end, self._end) - self._now()
