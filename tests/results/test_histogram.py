from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.results import LogHistogram

VALUES = st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 5)), min_size=1, max_size=200)


@given(VALUES, st.sampled_from([0, 0.01, 0.07, 0.5, 0.9, 0.99, 1]))
def test_a_quantile_is_within_a_thousandth_of_the_nearest_rank(
    pairs: list[tuple[int, int]], q: float
) -> None:
    histogram = LogHistogram()
    for value, weight in pairs:
        histogram.add(value, weight)
    ordered = sorted(value for value, weight in pairs for _ in range(weight))
    exact = ordered[max(1, ceil(Fraction(str(q)) * len(ordered))) - 1]
    found = histogram.quantile(q)
    assert found is not None
    assert abs(found - exact) * 1000 <= exact


@given(VALUES)
def test_count_sum_minimum_and_maximum_are_exact(pairs: list[tuple[int, int]]) -> None:
    histogram = LogHistogram()
    values, weights = zip(*pairs, strict=True)
    histogram.add_many(values, weights)
    assert histogram.count == sum(weights)
    assert histogram.sum_ns == sum(value * weight for value, weight in pairs)
    assert histogram.min_ns == min(values)
    assert histogram.max_ns == max(values)


def test_the_worst_value_of_a_bin_keeps_the_stated_error() -> None:
    histogram = LogHistogram()
    lowest = 1 << 40  # the lower edge of a bin of 2**31 values, far from its middle
    histogram.add(lowest - (1 << 39), 1)
    histogram.add(lowest, 1)
    histogram.add(lowest << 1, 1)
    found = histogram.quantile(0.5)
    assert found == lowest + (1 << 30)
    assert (found - lowest) / lowest == LogHistogram.relative_error < 0.001


def test_small_values_and_zero_are_exact() -> None:
    histogram = LogHistogram()
    for value in range(1024):
        histogram.add(value)
    assert [histogram.quantile(rank / 1024) for rank in range(1, 1025)] == list(range(1024))
    assert histogram.quantile(0) == 0


def test_the_rank_reads_q_as_the_decimal_it_is_written_as() -> None:
    """In binary floating point 0.07 * 100 exceeds 7, which would give rank 8."""
    histogram = LogHistogram()
    for value in range(1, 101):
        histogram.add(value)
    assert histogram.quantile(0.07) == 7
    assert histogram.quantile(0.99) == 99


def test_an_empty_histogram_has_no_figures() -> None:
    histogram = LogHistogram()
    histogram.add(5, 0)
    expected = {"mean": None, "p50": None, "p90": None, "p99": None, "max": None, "count": 0}
    assert histogram.seconds() == expected
    assert histogram.min_ns is histogram.max_ns is histogram.quantile(0.5) is None


@pytest.mark.parametrize(("value", "weight"), [(-1, 1), (1, -1)])
def test_negative_values_and_weights_are_refused(value: int, weight: int) -> None:
    with pytest.raises(ValueError, match="-1"):
        LogHistogram().add(value, weight)
