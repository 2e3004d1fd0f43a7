"""One figure of a start-up log against what it must be."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.startup_logs import Found, Reading, StartupLog


@dataclass(frozen=True, slots=True)
class Check:
    """A figure of the log against what other figures, or the model, say it must be."""

    what: str
    unit: str
    printed: float
    low: float
    high: float
    """What it may be, the rounding of the figures that it follows from included."""
    line: int
    how: str

    @property
    def agrees(self) -> bool:
        """Whether the printed value is one that it may be."""
        return self.low <= self.printed <= self.high


def number(found: Found | Reading | None) -> tuple[float, float] | None:
    """Value and rounding of a figure that is a number."""
    if found is None or isinstance(found.value, bool | str) or found.value is None:
        return None
    return float(found.value), found.rounding


def whole(log: StartupLog, setting: str, default: int) -> int:
    """A setting that is a whole number, or what servers take where the log has none."""
    found = number(log.settings.get(setting))
    return default if found is None else int(found[0])


def check(what: str, one: Found | Reading, low: float, high: float, how: str) -> Check:
    """The figure `what` against an interval; its own rounding widens it."""
    value, rounding = number(one) or (0.0, 0.0)
    slack = rounding + 1e-9 if rounding else 0.0  # floats of the printed decimals
    return Check(what, one.unit, value, low - slack, high + slack, one.line, how)
