"""Limits of time that hold on slow and busy machines."""

from __future__ import annotations

import time
from collections.abc import Callable

_WORK = 300_000
_QUIET_S = 0.016
"""Seconds that the reference takes on a quiet core of 3 GHz."""


def slow(seconds: float, clock: Callable[[], float] = time.process_time) -> float:
    """A limit of so many seconds on a quiet core, for this machine as busy as it is now.

    `clock` is the one that the limit is compared with.
    """
    begin = clock()
    total = 0
    for number in range(_WORK):
        total += number
    return seconds * max(1.0, (clock() - begin) / _QUIET_S)
