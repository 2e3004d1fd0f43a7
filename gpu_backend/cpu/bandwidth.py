"""The read ceiling: how fast this machine sums a large array, with the same threads as the kernels.

No kernel that reads its keys and values from memory can be faster, so attention is reported as a
fraction of it. The sum is as good as the attention kernel's own loops (wide loads, prefetched
ahead); a plain numba sum reaches two thirds of it and would flatter the kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from gpu_backend.cpu.simd import sum_ahead, take_next
from gpu_backend.cpu.threads import run_on_threads

PIECE = 65536
"""Floats that a thread takes at a time (256 KiB)."""
_AHEAD = 512  # floats; measured: 256 to 1024 are within 5 % of it, 64 is 40 % slower
_UNKNOWN_CACHE_BYTES = 64 << 20


def last_level_cache_bytes() -> int:
    """The size of the largest cache the kernel reports for CPU 0; 64 MiB where it reports none."""
    sizes = [_bytes(path.read_text()) for path in _CACHES.glob("index*/size")]
    return max(sizes, default=_UNKNOWN_CACHE_BYTES)


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def _bytes(text: str) -> int:
    """`"2048K"` -> 2097152."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip()
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


@njit(nogil=True, fastmath=True)
def _sum_pieces(values, sums, counter):
    """Sum of every piece, on as many threads as call it."""
    while True:
        piece = take_next(counter)
        if piece >= sums.size:
            return
        sums[piece] = sum_ahead(values[piece * PIECE : (piece + 1) * PIECE], PIECE, _AHEAD)


def read_once(values: npt.NDArray[Any], *, num_threads: int | None = None) -> float:
    """Read `values`, flat float32, once from end to end; returns their sum.

    Time this call. A remainder below 256 KiB is not read. For a ceiling of the memory rather than
    of the caches, read in turn the parts of a buffer at least four times as large as the last-level
    cache.
    """
    sums = np.empty(values.size // PIECE, np.float32)
    run_on_threads(_sum_pieces, values, sums, num_threads=num_threads)
    return float(sums.sum())
