"""How certain a difference is: from the per-seed figures of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.results.intervals import Interval, t_interval, t_quantile, welch_interval
from kvsim.results.merge import has_interval, leaves
from kvsim.results.requests import LATENCIES

_LATENCIES = (*LATENCIES, "itl_s")

Figures = Mapping[str, float | None]
"""Figures by dotted path."""


def per_seed_figures(entry: Mapping[str, Any]) -> dict[int, Figures]:
    """The figures of a variant under each seed; empty for a run of a single seed."""
    return {seed["seed"]: dict(leaves(seed)) for seed in entry.get("per_seed", [])}


def is_paired(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> bool:
    """Whether two workloads had the same seeds, and the same requests under each of them."""
    return seed_digests(base) == seed_digests(candidate) != {}


def seed_digests(workload: Mapping[str, Any]) -> dict[int, str]:
    """Digest of the requests under each seed; empty for a run of a single seed."""
    return {seed["seed"]: seed["digest"] for seed in workload.get("per_seed", [])}


class Spread:
    """Intervals of the differences between two variants of several seeds each."""

    def __init__(
        self, base: Mapping[int, Figures], candidate: Mapping[int, Figures], *, paired: bool
    ) -> None:
        """The figures of both sides by seed; `paired` where a seed means the same on both."""
        self._base = base
        self._candidate = candidate
        self._paired = paired
        self._t = t_quantile(len(base) - 1) if len(base) > 1 else 0.0

    def judges(self, path: str) -> bool:
        """Whether a change at a path can be told from chance, or nothing is known of chance.

        With seeds it cannot where the figure has no interval, as a maximum, or a seed lacks it.
        """
        if len(self._base) < 2 or len(self._candidate) < 2:
            return True
        return has_interval(path, _LATENCIES) and None not in (
            _values(self._base, path),
            _values(self._candidate, path),
        )

    def interval(self, path: str, base: float, candidate: float) -> Interval | None:
        """95 % interval of candidate - base, the figures of all seeds together.

        Paired by seed, or Welch's for unrelated replicas. None where a side has fewer than two
        seeds, a seed lacks the figure, or no seed differs from another.
        """
        if not has_interval(path, _LATENCIES):
            return None
        ours, theirs = _values(self._base, path), _values(self._candidate, path)
        if ours is None or theirs is None:
            return None
        if self._paired:
            differences = [theirs[seed] - ours[seed] for seed in ours]
            return t_interval(differences, candidate - base, self._t)
        return welch_interval(list(ours.values()), base, list(theirs.values()), candidate)


def _values(figures: Mapping[int, Figures], path: str) -> dict[int, float] | None:
    """By seed; a reason that a seed never met counts as 0."""
    absent = 0 if "_by_reason." in path else None
    values = {seed: by_path.get(path, absent) for seed, by_path in figures.items()}
    defined = {seed: value for seed, value in values.items() if value is not None}
    return defined if len(defined) == len(values) > 1 else None
