"""Rotary position embedding: the angles, for every device and for the reference."""

from __future__ import annotations

import numpy as np

from gpu_backend.executor.arrays import NumpyArray

ROTARY_BASE = 10_000.0


def rotary_speeds(head_dim: int) -> NumpyArray:
    """Radians per position, float64 [head_dim / 2]; element i turns with element i + half."""
    half = head_dim // 2
    return np.asarray(ROTARY_BASE ** -(np.arange(half) / half))


def rotary_tables(head_dim: int, max_tokens: int) -> tuple[NumpyArray, NumpyArray]:
    """Cosines and sines float32 [max_tokens, head_dim / 2]."""
    angles = np.arange(max_tokens)[:, None] * rotary_speeds(head_dim)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
