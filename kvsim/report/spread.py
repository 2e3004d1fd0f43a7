"""How certain a difference is: from the per-seed figures of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
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


def common_seeds(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[int, ...]:
    """The seeds that two workloads share with the same requests, in the order of the base."""
    theirs = seed_digests(candidate)
    return tuple(seed for seed, digest in seed_digests(base).items() if theirs.get(seed) == digest)


def seed_digests(workload: Mapping[str, Any]) -> dict[int, str]:
    """Digest of the requests under each seed; empty for a run of a single seed."""
    return {seed["seed"]: seed["digest"] for seed in workload.get("per_seed", [])}


class Spread:
    """Intervals of the differences between two variants of several seeds each."""

    def __init__(
        self,
        base: Mapping[int, Figures],
        candidate: Mapping[int, Figures],
        *,
        common: tuple[int, ...],
    ) -> None:
        """The figures of both sides by seed, and the seeds that mean the same on both.

        At least two of these make pairs, and what only one side has of the others is left out.
        """
        self.paired = len(common) > 1 and all(s in base and s in candidate for s in common)
        self.narrowed = self.paired and {*common} != {*base} | {*candidate}
        """Whether a side has seeds that are left out."""
        self._base = {seed: base[seed] for seed in common} if self.paired else base
        self._candidate = {seed: candidate[seed] for seed in common} if self.paired else candidate
        self._t = t_quantile(len(common) - 1) if self.paired else 0.0

    def figures(
        self, path: str, base: float | None, candidate: float | None
    ) -> tuple[float | None, float | None]:
        """Both sides' figures at a path, given those of all seeds.

        Where seeds are left out, the means over those in common. A maximum or a count of pooled
        requests stays that of all seeds, as does a figure that a seed lacks.
        """
        if not self.narrowed or not has_interval(path, _LATENCIES):
            return base, candidate
        ours, theirs = _values(self._base, path), _values(self._candidate, path)
        if ours is None or theirs is None:
            return base, candidate
        return _mean(ours), _mean(theirs)

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
        """95 % interval of candidate - base, as `figures` gives them.

        Paired by seed, or Welch's as for unrelated replicas. None where a side has fewer than two
        seeds, a seed lacks the figure, or no seed differs from another.
        """
        if not has_interval(path, _LATENCIES):
            return None
        ours, theirs = _values(self._base, path), _values(self._candidate, path)
        if ours is None or theirs is None:
            return None
        if self.paired:
            differences = [theirs[seed] - ours[seed] for seed in ours]
            return t_interval(differences, candidate - base, self._t)
        return welch_interval(list(ours.values()), base, list(theirs.values()), candidate)


def _mean(values: Mapping[int, float]) -> float:
    first = next(iter(values.values()))
    if all(value == first for value in values.values()):
        return first
    return fsum(values.values()) / len(values)


def _values(figures: Mapping[int, Figures], path: str) -> dict[int, float] | None:
    """By seed; a reason that a seed never met counts as 0."""
    absent = 0 if "_by_reason." in path else None
    values = {seed: by_path.get(path, absent) for seed, by_path in figures.items()}
    defined = {seed: value for seed, value in values.items() if value is not None}
    return defined if len(defined) == len(values) > 1 else None
