"""Kernels on several threads: each takes the next piece of work from one counter till none is left.

Threads that wait sleep; numba's and OpenMP's pools spin for a while after each call, which would be
counted as CPU time of the next thing that is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np


def available_threads() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="gpu_backend.cpu")


def run_on_threads(kernel: Callable[..., Any], *arguments: Any, num_threads: int | None) -> None:
    """Call `kernel(*arguments, counter)` on `num_threads` threads (None: all), this one included.

    The kernel releases the GIL and takes work from `counter`, int64 [1], which starts at 0.
    """
    threads = available_threads() if num_threads is None else num_threads
    if threads < 1:
        raise ValueError(f"num_threads must be >= 1, got {threads}")
    counter = np.zeros(1, np.int64)
    others = []
    if threads > 1:
        pool = _helpers(threads - 1)
        others = [pool.submit(kernel, *arguments, counter) for _ in range(threads - 1)]
    kernel(*arguments, counter)
    for other in others:
        if not other.cancel():  # one that has not begun yet has nothing left to do
            other.result()
