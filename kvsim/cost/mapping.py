"""Memory over virtual addresses: what mapping physical pages costs."""

from __future__ import annotations

from kvsim.catalog.explain import Fact
from kvsim.core.plan import StepPlan
from kvsim.cost.checks import check_seconds
from kvsim.cost.predictive import PredictiveClock

NOTE = "mapping pages takes the time that was given, before the step"


class MappingClock:
    """Another clock's time, and that of the page sets that a step maps before its kernels run."""

    def __init__(self, clock: PredictiveClock, *, map_page_s: float) -> None:
        """`map_page_s` is the time in seconds to map one page set: a page in every tensor.

        Raises `InputError` unless it is finite and >= 0.
        """
        check_seconds(map_page_s=map_page_s)
        self.map_page_s = map_page_s
        self.relative_error = clock.relative_error
        self.note = f"{clock.note}; {NOTE}"
        self._clock = clock

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        return self._clock.step_seconds(plan) + self.map_page_s * plan.mapped_pages

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        given = Fact("map_page_s", self.map_page_s, "s/page set", "given")
        return [*self._clock.explain(), given]
