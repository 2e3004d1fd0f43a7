"""The number of threads of numpy's matrix products, where numpy brings its own OpenBLAS."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


@cache
def _library() -> tuple[Any, Any] | None:
    """OpenBLAS's functions that get and set its number of threads; None for another BLAS."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(path))  # numpy has loaded it: this is the same one
            for name in _NAMES:
                if hasattr(library, name.format("set_num_threads")):
                    get = getattr(library, name.format("get_num_threads"))
                    return get, getattr(library, name.format("set_num_threads"))
    return None


def blas_threads() -> int | None:
    """Threads of a matrix product now; None where only the BLAS's own environment sets it."""
    found = _library()
    return None if found is None else int(found[0]())


@contextmanager
def limited_blas(threads: int | None) -> Iterator[None]:
    """Matrix products inside use at most so many threads (None: as many as outside).

    Nothing happens where numpy has another BLAS. The setting is the process's.
    """
    found, before = _library(), blas_threads()
    if found is None or before is None or threads is None or threads == before:
        yield
        return
    found[1](threads)
    try:
        yield
    finally:
        found[1](before)
