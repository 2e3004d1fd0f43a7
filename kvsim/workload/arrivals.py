"""When requests arrive: laws that give arrival times in integer nanoseconds.

The first request always arrives at 0, as the first row of a trace does; n requests span n - 1 gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError
from kvsim.workload.base import MAX_NS, NS_PER_S
from kvsim.workload.checks import check_integer, check_number

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Arrivals(Protocol):
    """A law of arrivals."""

    @property
    def max_concurrency(self) -> int | None:
        """Most requests in flight at once, or None for an open loop."""

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """`count` times from 0, never falling, in arrays whose sizes do not change the values."""


@dataclass(frozen=True)
class Poisson:
    """Independent exponential gaps with mean 1/`rate` seconds."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    @property
    def max_concurrency(self) -> int | None:
        """None: an open loop."""
        return None

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """Sums of independent gaps."""
        return _renewal(lambda n: rng.exponential(1 / self.rate, n), count, chunk_rows)


@dataclass(frozen=True)
class Gamma:
    """Independent gamma gaps as in `vllm bench serve`: shape `burstiness`, mean 1/`rate` seconds.

    `burstiness` 1 is Poisson, below 1 burstier; the gaps' CV is 1/sqrt(burstiness).
    """

    rate: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        check_number(self.burstiness, "burstiness", 1e-3, 1e6)

    @property
    def max_concurrency(self) -> int | None:
        """None: an open loop."""
        return None

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """Sums of independent gaps."""
        scale_s = 1 / (self.rate * self.burstiness)
        return _renewal(lambda n: rng.gamma(self.burstiness, scale_s, n), count, chunk_rows)


@dataclass(frozen=True)
class Constant:
    """Request i arrives at i/`rate` seconds, rounded down to a nanosecond."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    @property
    def max_concurrency(self) -> int | None:
        """None: an open loop."""
        return None

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """Evenly spaced; draws nothing."""
        up, down = self.rate.as_integer_ratio()
        _check_span(count / self.rate)
        for low in range(0, count, chunk_rows):
            ranks = range(low, min(low + chunk_rows, count))
            yield np.array([rank * down * NS_PER_S // up for rank in ranks], dtype=np.int64)


@dataclass(frozen=True)
class AllAtOnce:
    """Everything arrives at 0: an offline batch."""

    @property
    def max_concurrency(self) -> int | None:
        """None: an open loop."""
        return None

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """Zeros; draws nothing."""
        for low in range(0, count, chunk_rows):
            yield np.zeros(min(chunk_rows, count - low), dtype=np.int64)


@dataclass(frozen=True)
class ClosedLoop:
    """As many clients as `concurrency`; each sends its next request when the last is answered."""

    concurrency: int

    def __post_init__(self) -> None:
        check_integer(self.concurrency, "max_concurrency", 1, 1_000_000)

    @property
    def max_concurrency(self) -> int | None:
        """The number of clients."""
        return self.concurrency

    def times_ns(self, rng: np.random.Generator, count: int, chunk_rows: int) -> Iterator[Ints]:
        """Zeros; draws nothing."""
        return AllAtOnce().times_ns(rng, count, chunk_rows)


def _check_rate(rate: float) -> None:
    check_number(rate, "rate", 1e-6, 1e9, "requests per second")


def _check_span(seconds: float) -> None:
    if not seconds < MAX_NS / NS_PER_S:
        raise InputError(
            f"the last request would arrive after {seconds:.3g} s, more than 292 years",
            where="rate",
            fix="Raise the rate or take fewer requests",
        )


def _renewal(gaps_s: Callable[[int], Floats], count: int, chunk_rows: int) -> Iterator[Ints]:
    """Sums of gaps, in integers: floats would round differently at chunk borders."""
    now = 0
    for low in range(0, count, chunk_rows):
        rows = min(chunk_rows, count - low)
        gaps = np.zeros(rows)
        skip = 1 if low == 0 else 0
        gaps[skip:] = gaps_s(rows - skip)
        _check_span(now / NS_PER_S + float(gaps.sum()))
        times = now + np.cumsum(np.rint(gaps * NS_PER_S).astype(np.int64))
        now = int(times[-1])
        yield times
