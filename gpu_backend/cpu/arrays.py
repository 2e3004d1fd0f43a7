"""Arguments as numpy arrays, without copies, or an error that says what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = Any
"""A numpy array or a CPU torch tensor."""
NumpyArray = npt.NDArray[Any]


def as_numpy(
    name: str, array: Array, dtype: npt.DTypeLike, *shape: int | None, gaps: bool = False
) -> NumpyArray:
    """The array's own memory as numpy, after checking its type and shape.

    None in `shape` stands for any length. Raises TypeError for another element type and ValueError
    for another shape or, unless `gaps`, for memory that is not C-contiguous.
    """
    found = array if isinstance(array, np.ndarray) else array.detach().numpy()
    if found.dtype != np.dtype(dtype):
        raise TypeError(f"{name} must be {np.dtype(dtype)}, got {found.dtype}")
    wanted = "[" + ", ".join("any" if length is None else str(length) for length in shape) + "]"
    fits = len(shape) == found.ndim and all(
        length in (None, actual) for length, actual in zip(shape, found.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have the shape {wanted}, got {list(found.shape)}")
    if not gaps and not found.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous, got strides {found.strides} bytes")
    return found


def lengths(name: str, array: Array, count: int) -> NumpyArray:
    """A short vector of counts or indices as int64 [count] (copied: the kernels know one type)."""
    found = array if isinstance(array, np.ndarray) else array.detach().numpy()
    if found.dtype.kind != "i":
        raise TypeError(f"{name} must hold integers, got {found.dtype}")
    if found.shape != (count,):
        raise ValueError(f"{name} must have the shape [{count}], got {list(found.shape)}")
    return found.astype(np.int64)
