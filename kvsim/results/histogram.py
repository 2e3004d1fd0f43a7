"""The one histogram behind every percentile."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil

_LEADING_BITS = 10
"""Bits of a value that decide its bin: 512 bins for every doubling."""

NS_PER_S = 1_000_000_000


class LogHistogram:
    """Weighted histogram of integer nanoseconds with fixed, logarithmically spaced bins.

    A bin holds the values that agree in their 10 leading bits and is reported by its middle, so a
    quantile is within 1/1024 < 0.1 % of the exact one. Values below 1,024 ns, zero among them, have
    a bin each and are exact. Count, sum, minimum and maximum are exact. Memory grows with the
    number of distinct bins only: at most 512 per doubling of the range.
    """

    __slots__ = ("_bins", "_count", "_max", "_min", "_total")

    relative_error = 1 / 1024
    """Bound on the error of `quantile`, relative to the exact value."""

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self._count = 0
        self._total = 0
        self._min = 1 << 200
        self._max = -1

    def add(self, value_ns: int, weight: int = 1) -> None:
        """Count `value_ns` >= 0 `weight` >= 0 times."""
        self.add_many((value_ns,), (weight,))

    def add_many(self, values_ns: Iterable[int], weights: Iterable[int]) -> None:
        """Count each value as often as its weight says; a weight of 0 leaves no trace."""
        bins = self._bins
        count = total = 0
        for value, weight in zip(values_ns, weights, strict=True):
            if weight <= 0:
                if weight:
                    raise ValueError(f"weight(={weight}) must be >= 0")
                continue
            if value < self._min:
                if value < 0:
                    raise ValueError(f"value_ns(={value}) must be >= 0")
                self._min = value
            if value > self._max:
                self._max = value
            shift = value.bit_length() - _LEADING_BITS
            edge = value >> shift << shift if shift > 0 else value
            bins[edge] = bins.get(edge, 0) + weight
            count += weight
            total += value * weight
        self._count += count
        self._total += total

    def merge(self, other: LogHistogram) -> None:
        """Count everything that `other` counted too; the same as adding its values one by one."""
        for edge, weight in other._bins.items():
            self._bins[edge] = self._bins.get(edge, 0) + weight
        self._count += other._count
        self._total += other._total
        self._min = min(self._min, other._min)
        self._max = max(self._max, other._max)

    @property
    def count(self) -> int:
        """Sum of the weights."""
        return self._count

    @property
    def sum_ns(self) -> int:
        """Exact weighted sum of the values, in nanoseconds."""
        return self._total

    @property
    def min_ns(self) -> int | None:
        """Smallest value, exact; None when empty."""
        return self._min if self._count else None

    @property
    def max_ns(self) -> int | None:
        """Largest value, exact; None when empty."""
        return self._max if self._count else None

    def quantile(self, q: float) -> int | None:
        """Nearest-rank quantile in nanoseconds; None when empty.

        The exact answer is the value of rank `max(1, ceil(q * count))` in ascending order, `q` read
        as the decimal it is written as (0.07 of 100 values is rank 7); the one returned is the
        middle of its bin, kept within the minimum and the maximum. No interpolation takes place, so
        a small sample can differ from numpy's default by the gap between neighbours.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q(={q}) must be between 0 and 1")
        if not self._count:
            return None
        rank = max(1, ceil(Fraction(str(q)) * self._count))
        for edge in sorted(self._bins):
            rank -= self._bins[edge]
            if rank <= 0:
                break
        shift = edge.bit_length() - _LEADING_BITS
        middle = edge + (1 << shift >> 1) if shift > 0 else edge
        return min(max(middle, self._min), self._max)

    def seconds(self) -> dict[str, float | int | None]:
        """The metrics of a summary, in seconds; None where nothing was counted."""
        row: dict[str, float | int | None] = {
            "mean": self._total / (self._count * NS_PER_S) if self._count else None
        }
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            value = self.quantile(q)
            row[name] = None if value is None else value / NS_PER_S
        row["max"] = self._max / NS_PER_S if self._count else None
        row["count"] = self._count
        return row
