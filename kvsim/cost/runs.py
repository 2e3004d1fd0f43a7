"""Closed forms for k identical decode steps.

A decode-only step of n rows takes the largest of a few affine functions of S, the sum of the
contexts, and S grows by n per step. `pieces` are (constant, slope) pairs: one for most clocks,
two for the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from kvsim.core.plan import StepPlan

LONGEST_RUN = 1 << 62

Pieces = Sequence[tuple[float, float]]


def rows_of(plan: StepPlan) -> int:
    """Rows of a decode-only plan; a plan with chunks or copies cannot repeat."""
    if plan.chunks or plan.copies:
        raise ValueError("a step with prefill chunks or copies is not a decode run")
    return plan.num_decodes + plan.padded_decodes


def run_seconds(pieces: Pieces, rows: int, context_tokens: int, steps: int) -> float:
    """Seconds of `steps` decode steps; the first reads `context_tokens`."""
    if len(pieces) == 1:
        return _affine(pieces[0], rows, context_tokens, 0, steps)
    flat, steep = sorted(pieces, key=lambda piece: piece[1])
    turn = _crossing(flat, steep, rows, context_tokens, steps)
    return _affine(flat, rows, context_tokens, 0, turn) + _affine(
        steep, rows, context_tokens, turn, steps
    )


def steps_within(total: Callable[[int], float], seconds: float) -> int:
    """Largest k with `total(k) <= seconds`, for a non-decreasing `total`."""
    if total(1) > seconds:
        return 0
    low, high = 1, 2
    while total(high) <= seconds:
        low, high = high, high * 2
        if high > LONGEST_RUN:
            return LONGEST_RUN
    while high - low > 1:
        middle = (low + high) // 2
        if total(middle) <= seconds:
            low = middle
        else:
            high = middle
    return low


def _affine(piece: tuple[float, float], rows: int, context: int, first: int, end: int) -> float:
    constant, slope = piece
    steps = end - first
    tokens = steps * (context + first * rows) + rows * (steps * (steps - 1) // 2)
    return steps * constant + slope * tokens


def _crossing(
    flat: tuple[float, float], steep: tuple[float, float], rows: int, context: int, steps: int
) -> int:
    """First step in 0..steps at which `steep` is the larger function."""
    gap = flat[0] - steep[0]
    lead = steep[1] - flat[1]
    if lead <= 0 or rows == 0:
        return 0 if gap + lead * -context <= 0 else steps
    return min(steps, max(0, ceil((gap / lead - context) / rows)))
