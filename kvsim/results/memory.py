"""Sums of the memory's state over time or over steps, and their split into terms.

The terms of the conservation equation are linear in what an allocator counts, so the counts are
summed as integers (slots, or slot-nanoseconds) and split once, by the core's own equation.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from operator import mul

from kvsim.core.accounting import MemoryTerms, Usage, split

STATE = (
    "running",
    "largest_free_extent",
    "live_tokens",
    "allocated",
    "internal_tail",
    "over_reservation",
    "roundup",
    "shared",
    "cached",
    "reserved_tokens",
    "final_tokens",
)
"""Order of the numbers in a state; all are >= 0 and summed the same way."""


def state_of(usage: Usage, *, running: int, largest_free_extent: int, live_tokens: int) -> Seq[int]:
    """One state in the order of `STATE`: sequences, slots, tokens, then the allocator's slots."""
    return (
        running,
        largest_free_extent,
        live_tokens,
        usage.allocated,
        usage.internal_tail,
        usage.over_reservation,
        usage.roundup,
        usage.shared,
        usage.cached,
        usage.reserved_tokens,
        usage.final_tokens,
    )


class StateSums:
    """Weighted sums of states. The weight is nanoseconds (by time) or one per step."""

    __slots__ = ("_sums", "held_up_cached", "held_up_free", "weight")

    def __init__(self) -> None:
        self._sums = [0] * len(STATE)
        self.weight = 0
        """Sum of the weights."""
        self.held_up_free = 0
        """Weighted sum of the free slots while the head of the queue fitted no free extent."""
        self.held_up_cached = 0
        """The cached ones among them."""

    def add(self, state: Seq[int], weight: int) -> None:
        """Add one state."""
        self.weight += weight
        self._sums = [
            total + value * weight for total, value in zip(self._sums, state, strict=True)
        ]

    def add_columns(self, columns: Seq[Seq[int]], weights: Seq[int] | None) -> None:
        """Add many states, given as one column for each name of `STATE`; None weighs each as 1."""
        self.weight += len(columns[0]) if weights is None else sum(weights)
        for index, column in enumerate(columns):
            total = sum(column)
            if total and weights is not None:
                total = sum(map(mul, column, weights))
            self._sums[index] += total

    def add_held_up(self, free: int, cached: int, weight: int) -> None:
        """Say that in a state already added the head of the queue fitted no free extent."""
        self.held_up_free += free * weight
        self.held_up_cached += cached * weight

    def total(self, name: str) -> int:
        """Weighted sum of one number of `STATE`."""
        return self._sums[STATE.index(name)]

    def mean(self, name: str) -> float | None:
        """Weighted mean of one number of `STATE`; None without any weight."""
        return self.total(name) / self.weight if self.weight else None

    def terms(self, capacity: int, *, reserves_ahead: bool) -> MemoryTerms:
        """Split `capacity * weight` into the terms, exactly.

        Raises `AssertionError` with both sides unless no term is negative and their sum is that
        product: then an allocator's counts contradict the scheduler's.
        """
        usage = Usage()
        for name in STATE[3:]:
            setattr(usage, name, self.total(name))
        terms = split(
            usage,
            live_tokens=self.total("live_tokens"),
            capacity=capacity * self.weight,
            reserves_ahead=reserves_ahead,
            held_up=False,
        )
        terms = terms._replace(
            external=self.held_up_free,
            usable_free=terms.usable_free - self.held_up_free,
            cached=terms.cached - self.held_up_cached,
        )
        if terms.total != capacity * self.weight or min(terms) < 0:
            raise AssertionError(
                f"memory terms {terms} must be >= 0 and sum to capacity {capacity} x weight "
                f"{self.weight}, their sum is {terms.total}"
            )
        return terms


def fractions(terms: MemoryTerms, whole: int) -> dict[str, object]:
    """Terms as shares of `whole` slots (or slot-nanoseconds), in the summary's shape.

    Every share is None when `whole` is 0: nothing was observed.
    """

    def share(slots: int) -> float | None:
        return slots / whole if whole else None

    return {
        "live": share(terms.live),
        "reservation": share(terms.reservation),
        "internal": share(terms.internal),
        "external": share(terms.external),
        "usable_free": share(terms.usable_free),
        "detail": {
            "reservation": {
                "tail": share(terms.reservation_tail),
                "ahead": share(terms.reservation_ahead),
            },
            "internal": {
                "tail": share(terms.internal_tail),
                "over_reservation": share(terms.over_reservation),
                "roundup": share(terms.roundup),
            },
            "usable_free": {"cached": share(terms.cached)},
        },
    }


def paper_terms(by_iteration: StateSums, capacity: int) -> dict[str, float | None]:
    """The PagedAttention paper's coarser rule (Fig. 2), averaged by iteration, as shares.

    tokens = current lengths; reservation = prompt + final output - current length; internal =
    reserved length - (prompt + final output); external and others = the rest, where the free pool
    and every rounding land. An allocator that reserves nothing has no reservation and no internal.
    """
    whole = capacity * by_iteration.weight
    if not whole:
        return dict.fromkeys(("tokens", "reservation", "internal", "external_and_others"))
    live = by_iteration.total("live_tokens") - by_iteration.total("shared")
    final = by_iteration.total("final_tokens")
    reservation = final - live if final else 0
    internal = by_iteration.total("reserved_tokens") - final
    return {
        "tokens": live / whole,
        "reservation": reservation / whole,
        "internal": internal / whole,
        "external_and_others": (whole - live - reservation - internal) / whole,
    }
