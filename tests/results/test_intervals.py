from __future__ import annotations

import random
from statistics import fmean

import pytest

from kvsim.results.intervals import t_interval, t_quantile, welch_interval

T_TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    9: 2.262,
    10: 2.228,
    29: 2.045,
    30: 2.042,
    60: 2.000,
    120: 1.980,
}
"""Two-sided 95 %, as printed in every table of Student's t."""


@pytest.mark.parametrize(("degrees", "quantile"), T_TABLE.items())
def test_quantiles_are_those_of_the_t_table(degrees: int, quantile: float) -> None:
    assert round(t_quantile(degrees), 3) == quantile


def test_many_degrees_of_freedom_are_the_normal_law_and_none_is_an_error() -> None:
    """For large n the quantile is z + (z^3 + z) / 4n, z = 1.959964 (Abramowitz & Stegun 26.7.5)."""
    z = 1.959963984540054
    assert t_quantile(4999) == pytest.approx(z + (z**3 + z) / (4 * 4999), abs=2e-7)
    with pytest.raises(ValueError, match="degrees"):
        t_quantile(0)


def test_the_interval_of_three_values_by_hand() -> None:
    """1, 2, 3: mean 2, standard deviation 1, half-width 4.302653 / sqrt(3)."""
    low, high = t_interval([1, 2, 3], 2, t_quantile(2)) or (0, 0)
    assert (low, high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_a_pooled_figure_is_the_center_and_its_deviations_count() -> None:
    """1 and 3 around 3: sqrt((4 + 0) / (2 * 1)) = sqrt(2) standard errors of t(1) = 12.706205."""
    low, high = t_interval([1, 3], 3, t_quantile(1)) or (0, 0)
    assert (low, high) == pytest.approx((3 - 17.969287, 3 + 17.969287), abs=1e-6)


def test_values_without_spread_have_no_interval() -> None:
    assert t_interval([5, 5, 5], 5, t_quantile(2)) is None
    assert t_interval([5], 5, 0) is None
    assert t_interval([24.0, 24.000000000000007], 24.0, t_quantile(1)) is None
    assert welch_interval([1, 1], 1, [2, 2], 2) is None


def test_unrelated_replicas_by_hand() -> None:
    """Equal variances of 2: standard error sqrt(1 + 1), 2 degrees of freedom.

    Variances 2 and 8: sqrt(1 + 4), 25 / (1 + 16) = 1.47 degrees of freedom, taken as 1.
    """
    low, high = welch_interval([0, 2], 1, [4, 6], 5) or (0, 0)
    assert (low, high) == pytest.approx((4 - 6.084870, 4 + 6.084870), abs=1e-5)
    low, high = welch_interval([1, 3], 2, [10, 14], 12) or (0, 0)
    assert (low, high) == pytest.approx((10 - 28.411941, 10 + 28.411941), abs=1e-5)


def test_of_many_intervals_95_percent_hold_the_mean_of_the_law() -> None:
    """2,000 samples of five normal values; two standard deviations of the share are 1 %."""
    rng = random.Random(7)
    t = t_quantile(4)
    inside = 0
    for _ in range(2000):
        values = [rng.gauss(10, 3) for _ in range(5)]
        low, high = t_interval(values, fmean(values), t) or (0, 0)
        inside += low <= 10 <= high
    assert inside / 2000 == pytest.approx(0.95, abs=0.01)
