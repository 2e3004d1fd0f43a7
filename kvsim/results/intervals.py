"""95 % intervals from independent replicas: Student's t on the values of the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, fsum, isfinite, pi, sin, sqrt

CONFIDENCE = 0.95

_ROUNDING = 1e-13
"""Below this share of the values, a spread is that of floating-point numbers."""

Interval = tuple[float, float]
"""Lower and upper end."""


def t_quantile(degrees: int) -> float:
    """The t with P(|T| < t) = 0.95 for so many degrees of freedom (>= 1), to the last bits.

    Bisects the closed form of the distribution for whole degrees of freedom (Abramowitz & Stegun,
    26.7.3 and 26.7.4).
    """
    if degrees < 1:
        raise ValueError(f"degrees(={degrees}) must be >= 1")
    low, high = 1.9, 13.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if _inside(middle, degrees) < CONFIDENCE:
            low = middle
        else:
            high = middle


def _inside(t: float, degrees: int) -> float:
    """P(|T| < t)."""
    angle = atan(t / sqrt(degrees))
    square = cos(angle) ** 2
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(2 + odd, degrees - 1, 2):
        term *= square * (step - 1) / step
        total += term
    total *= sin(angle)
    return (angle + total) * 2 / pi if odd else total


def t_interval(values: Sequence[float], center: float, t: float) -> Interval | None:
    """`center` plus and minus `t` standard errors; None when that has no width.

    `values` are those of the seeds, `t` is `t_quantile(len(values) - 1)`. With their mean as the
    center this is Student's interval. A pooled figure is centered on itself, deviations included
    ("sectioning", Asmussen & Glynn 2007, section III.5b): it always lies in its interval.
    """
    half = t * sqrt(squared_error(values, center)) if len(values) > 1 else 0.0
    if half <= _ROUNDING * max(map(abs, values)) or not isfinite(half):
        return None
    return center - half, center + half


def squared_error(values: Sequence[float], center: float) -> float:
    """Estimated variance of a figure around `center` from its values in n >= 2 replicas."""
    n = len(values)
    return fsum((value - center) ** 2 for value in values) / (n * (n - 1))


def welch_interval(
    base: Sequence[float],
    base_center: float,
    candidate: Sequence[float],
    candidate_center: float,
) -> Interval | None:
    """Interval of candidate - base for unrelated replicas, n >= 2 each; None without width.

    Welch's, its degrees of freedom rounded down to whole ones, which widens it slightly.
    """
    errors = [squared_error(base, base_center), squared_error(candidate, candidate_center)]
    total = errors[0] + errors[1]
    if total <= 0 or not isfinite(total):
        return None
    # Shares instead of squares of the errors themselves, which could underflow.
    shares = [error / total for error in errors]
    inverse = shares[0] ** 2 / (len(base) - 1) + shares[1] ** 2 / (len(candidate) - 1)
    half = t_quantile(int(1 / inverse + 1e-9)) * sqrt(total)
    difference = candidate_center - base_center
    return difference - half, difference + half
