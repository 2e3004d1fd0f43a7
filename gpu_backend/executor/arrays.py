"""The type of numpy arrays here; their element types and shapes are in the docstrings."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

NumpyArray = npt.NDArray[Any]
