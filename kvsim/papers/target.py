"""A published number, how close we must come to it, and how close we come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Basis = Literal["prediction", "fit", "closed form"]
"""prediction: no parameter that matters to the value was set to meet the figure. fit: one was.
closed form: arithmetic, which the simulation must meet."""

LengthSource = Literal["real", "preset"]
"""Whether prompt and output lengths are those of the published list, or drawn from the preset."""

Values = Mapping[str, float]


class NoResultError(Exception):
    """A run ended in a way in which none of its figures means anything; says how."""


class Interval(NamedTuple):
    """Accepted values, both ends included."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, float | int) and self.low <= value <= self.high


def within(center: float, tolerance: float) -> Interval:
    """`center` and the tolerance on both sides."""
    return Interval(center - tolerance, center + tolerance)


@dataclass(frozen=True)
class Target:
    """One number of a paper, or one closed form.

    `tag` says how the number was read: READ, DIGITISED (off a figure, 1.5 % of the axis), DERIVED,
    FORMULA or CLAIM (common talk); OURS: nobody published one. Without `accepted` the number is
    shown, not judged.
    """

    key: str
    what: str
    unit: str
    paper: float | None
    tag: str
    basis: Basis
    accepted: Interval | None = None
    accepted_preset: Interval | None = None
    """What is accepted where lengths come from the preset; None: the same."""
    digits: int = 2

    def interval(self, lengths: LengthSource) -> Interval | None:
        """The accepted values of the mean over seeds."""
        if lengths == "preset" and self.accepted_preset is not None:
            return self.accepted_preset
        return self.accepted


class Job(NamedTuple):
    """One process's share of a reproduction. Can be pickled."""

    figure: str
    part: str
    seed: int
    lengths: LengthSource


@dataclass(frozen=True)
class Figure:
    """A table or figure of a paper and how it is reproduced.

    `measure` runs one part under one seed; `derive` turns the values of all parts of a seed into
    those that need several of them. Keys are those of the targets; others are not shown.
    """

    name: str
    title: str
    how: str
    targets: tuple[Target, ...]
    measure: Callable[[Job], dict[str, float]]
    scenario: str | None = None
    seeds: tuple[int, ...] = (0,)
    parts: tuple[str, ...] = ("all",)
    derive: Callable[[Values], dict[str, float]] = dict
    uses_lengths: bool = False
    """Whether the published list of lengths is read."""
    remarks: tuple[str, ...] = ()
    """What is not reached, and why."""


class Result(NamedTuple):
    """A target and what we got, by seed; NaN where a run gave no result."""

    target: Target
    values: tuple[float, ...]
    lengths: LengthSource

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return sum(self.values) / len(self.values)

    @property
    def accepted(self) -> Interval | None:
        """The accepted values of the mean."""
        return self.target.interval(self.lengths)

    @property
    def passed(self) -> bool | None:
        """None where the number is shown only."""
        return None if self.accepted is None else self.mean in self.accepted


class FigureResult(NamedTuple):
    """A figure and the results of its targets, in their order."""

    figure: Figure
    lengths: LengthSource
    results: tuple[Result, ...]
    problems: tuple[str, ...] = ()
    """Runs that gave no result, and why."""

    @property
    def passed(self) -> bool:
        """Whether every run gave a result and no judged target failed."""
        return not self.problems and all(row.passed is not False for row in self.results)
