"""Arrivals like those of a recorded trace: its gaps and how its rate moved over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError
from kvsim.workload.base import NS_PER_S
from kvsim.workload.checks import check_ascending, check_number

Ints = npt.NDArray[np.int64]
_TICKS = 1_000_000_000
"""Ticks of operational time per expected arrival."""


@dataclass(frozen=True)
class EmpiricalArrivals:
    """Gaps from a quantile table, stretched so that the rate moves over time as it did.

    probabilities, gaps   the distribution of gaps measured in expected arrivals; only the shape of
                          `gaps` matters, their mean is made 1
    window_arrivals       expected arrivals in each window of `window_s` seconds, the first request
                          (at 0) left out; the last window ends at `span_s`. One window: a steady
                          rate

    One span has sum(window_arrivals) gaps: a shuffled deck of that many evenly spaced quantiles.
    So mean and CV of a span hardly depend on the seed, as they would if wild gaps were drawn
    independently. Longer runs repeat the span with a new shuffle.
    """

    probabilities: tuple[float, ...]
    gaps: tuple[float, ...]
    window_arrivals: tuple[int, ...]
    window_s: float
    span_s: float

    def __post_init__(self) -> None:
        check_ascending(list(self.probabilities), "probabilities")
        check_ascending(list(self.gaps), "gaps")
        check_number(self.window_s, "window_s", 1e-3, 1e9, "s")
        windows = len(self.window_arrivals)
        least = (windows - 1) * self.window_s
        check_number(self.span_s, "span_s", least, windows * self.window_s, "s")
        if len(self.probabilities) != len(self.gaps) or self.gaps[0] < 0 or not self.gaps[-1]:
            raise InputError(
                "must be one gap >= 0 for each probability, not all 0",
                where="gaps",
                fix="Write the table again with tools/make_presets.py",
            )
        if not windows or min(self.window_arrivals) < 0 or not sum(self.window_arrivals):
            raise InputError(
                "must be counts >= 0 with an arrival among them",
                where="window_arrivals",
                fix="Write the table again with tools/make_presets.py",
            )

    @property
    def max_concurrency(self) -> int | None:
        """None: an open loop."""
        return None

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """Chunks are spans, whatever `chunk_rows`: a span has as many rows as its trace."""
        yield np.zeros(1, dtype=np.int64)
        deck = self._deck()
        ends = np.append(np.arange(len(self.window_arrivals)) * self.window_s, self.span_s)
        share = np.append(0.0, np.cumsum(self.window_arrivals) / len(deck))
        left = count - 1
        span = 0
        while left > 0:
            ticks = np.cumsum(rng.permutation(deck))
            places = ticks / ticks[-1]
            seconds = np.interp(places, share, ends)
            times = np.rint(seconds * NS_PER_S).astype(np.int64)
            yield (times + span * round(self.span_s * NS_PER_S))[:left]
            left -= len(deck)
            span += 1

    def _deck(self) -> Ints:
        cards = sum(self.window_arrivals)
        places = (np.arange(cards) + 0.5) / cards
        gaps = np.interp(places, self.probabilities, self.gaps)
        deck: Ints = np.rint(gaps * (_TICKS / gaps.mean())).astype(np.int64)
        return deck
