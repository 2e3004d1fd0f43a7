"""Which physical pages blocks pin, over time."""

from __future__ import annotations

from kvsim.core.page_pins import PageSets
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.results.requests import Window


class PagesRecorder:
    """The section `pages` of a summary, in constant memory and constant time per step.

    Averages over time inside `window`, idle time included; a step's state is the one after
    `schedule()`, held for its duration.
    """

    def __init__(self, pages: PageSets, *, window: Window | None = None) -> None:
        self._pages = pages
        self._window = window
        self._weight = self._held = self._cached = self._kept_blocks = 0
        self._peak = 0

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book a step's state."""
        self._peak = max(self._peak, self._pages.pinned)
        self._book(start_ns, start_ns + duration_ns)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """What is cached stays pinned while nothing runs."""
        self._book(start_ns, start_ns + duration_ns)

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Nothing."""

    def rejected(self, request: Request, reason: str) -> None:
        """Nothing."""

    def _book(self, start_ns: int, end_ns: int) -> None:
        if self._window is not None:
            start_ns, end_ns = max(start_ns, self._window[0]), min(end_ns, self._window[1])
        weight, pages = max(0, end_ns - start_ns), self._pages
        self._weight += weight
        self._held += weight * pages.pinned_by_held
        self._cached += weight * pages.pinned_by_cached
        self._kept_blocks += weight * pages.kept_blocks

    def counts(self, page_set_bytes: int) -> dict[str, float | int | None]:
        """The section; averages are None where no time was measured.

        `page_set_bytes` are those of one page set on one GPU.
        """
        weight, pages = self._weight, self._pages
        pinned_blocks = (self._held + self._cached) * pages.blocks_per_page
        return {
            "page_sets": pages.num_page_sets,
            "page_set_bytes": page_set_bytes,
            "held_page_sets": self._held / weight if weight else None,
            "cached_page_sets": self._cached / weight if weight else None,
            "peak_page_sets": self._peak,
            "unfilled": 1 - self._kept_blocks / pinned_blocks if pinned_blocks else None,
        }
