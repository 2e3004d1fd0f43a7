"""Wall and CPU seconds of a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Seconds(NamedTuple):
    """`wall` seconds and `cpu` seconds of all this process's threads.

    On a machine shared with others wall time contains the time the process waited for a core; CPU
    time does not, but still what others cost it in caches and memory bandwidth.
    """

    wall: float
    cpu: float


def timed(call: Callable[[], object]) -> Seconds:
    """Run `call` once. CPU time is the process's: nothing else may run in it meanwhile."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)
