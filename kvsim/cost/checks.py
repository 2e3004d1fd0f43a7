"""Checks of the numbers that clocks are given."""

from __future__ import annotations

from kvsim.errors import InputError


def check_seconds(**values: float) -> None:
    """Raise `InputError` unless every value is a finite number of seconds >= 0."""
    for name, value in values.items():
        if not 0.0 <= value < float("inf"):
            raise InputError(f"{name} must be >= 0 s and finite, got {value!r}", where=name)
