"""Rows of the matrix products: a serving engine pads its batch to a few sizes."""

from __future__ import annotations

SMALL_MULTIPLE = 4
LARGE_MULTIPLE = 8
SMALL_LIMIT = 64
"""Most rows that are padded to the small multiple."""


def padded_rows(n: int) -> int:
    """Rows that are computed for `n` rows: 1, 2, multiples of 4 up to 64, of 8 above; 0 for 0.

    Matrix products have kernels for these, and other counts can take longer than more rows do.
    """
    if n <= 2:
        return n
    multiple = SMALL_MULTIPLE if n <= SMALL_LIMIT else LARGE_MULTIPLE
    return -(-n // multiple) * multiple
