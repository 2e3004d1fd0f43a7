"""What every clock of this package offers."""

from __future__ import annotations

from typing import Protocol

from kvsim.catalog.explain import Fact
from kvsim.core.plan import StepPlan


class PredictiveClock(Protocol):
    """A clock that also says how far off it may be."""

    @property
    def relative_error(self) -> float | None:
        """Relative error of a step time; None where the user gave the numbers."""

    @property
    def note(self) -> str:
        """What the clock is, and where its error was measured."""

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
