"""Layer 0's attention in float64 from token values alone: no cache, no table, no slot."""

from __future__ import annotations

import numpy as np

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.content import tokens_of
from gpu_backend.executor.rotary import rotary_speeds
from gpu_backend.executor.runtime import Weights
from gpu_backend.executor.shape import EPSILON
from kvsim.core.request import Request
from kvsim.errors import CheckFailedError

TOLERANCE = 3e-5
"""fp32: largest difference, relative to 1 + the value. Values are about 1; it stays below 2e-6."""
ROUNDINGS = 10
"""fp16, bf16: largest distance between the vectors of a head, in roundings of its length.

About ten values are rounded on the way to an output (norm, projection, rotary and cache of keys and
values, weights of the softmax, output); tests see four such errors add up at most. A vector and not
its elements, which can be small where their neighbours are not. One wrong token among a thousand
still moves the vector by more.
"""
ROUNDING = {"fp16": 2**-11, "bf16": 2**-8}
"""Largest error of one rounding, relative to the value."""


class Oracle:
    """Recomputes keys and values of a sequence's whole context."""

    def __init__(self, weights: Weights, dtype: str) -> None:
        """`dtype`: in what the attention under test was computed."""
        self._weights = weights
        self._dtype = dtype
        self._projection: tuple[NumpyArray, NumpyArray] | None = None

    def attention(self, request: Request, positions: NumpyArray) -> NumpyArray:
        """Layer 0's causal attention output, float64 [positions, heads, head_dim]."""
        shape = self._weights.shape
        context = int(positions.max()) + 1
        tokens = tokens_of(request, 0, context, shape.vocab)
        query, key, value = self._projections(tokens)
        group = shape.heads // shape.kv_heads
        key, value = key.repeat(group, axis=1), value.repeat(group, axis=1)
        scores = np.einsum("phd,chd->phc", query[positions], key) * shape.head_dim**-0.5
        hidden = np.arange(context)[None, :] > positions[:, None]
        scores[np.broadcast_to(hidden[:, None], scores.shape)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray(np.einsum("phc,chd->phd", weights, value))

    def compare(self, request: Request, positions: NumpyArray, found: NumpyArray) -> None:
        """AssertionError where `found` [positions, heads, head_dim] is not this attention."""
        expected = self.attention(request, positions)
        error = np.abs(found - expected)
        wrong = self._is_wrong(error, expected)
        if wrong.any():
            worst = np.where(wrong, np.nan_to_num(error, nan=np.inf), -1).argmax()
            row, head, element = (int(index) for index in np.unravel_index(worst, wrong.shape))
            raise CheckFailedError(
                f"attention of request {request.request_id!r} at position {positions[row]}, head "
                f"{head}, element {element} is {found[row, head, element]:.6g}, the reference "
                f"says {expected[row, head, element]:.6g} ({int(wrong.sum())} of {wrong.size} "
                f"elements differ)"
            )

    def _is_wrong(self, error: NumpyArray, expected: NumpyArray) -> NumpyArray:
        """By element; in half precision all or none of a head's. NaN is wrong."""
        if self._dtype == "fp32":
            return np.asarray(~(error <= TOLERANCE * (1 + np.abs(expected))))
        distances, lengths = np.linalg.norm([error, expected], axis=-1)
        is_far = ~(distances <= ROUNDINGS * ROUNDING[self._dtype] * lengths)
        return np.broadcast_to(is_far[..., None], error.shape)

    def _projections(self, tokens: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Queries, keys and values float64 of tokens at positions 0, 1, ..."""
        shape, project = self._weights.shape, self._weights.projection
        rows = self._weights.rows(tokens).astype(np.float64)
        if project is None:
            return shape.split_qkv(rows)
        if self._projection is None:
            norm, qkv = project()
            self._projection = norm.astype(np.float64), qkv.astype(np.float64)
        norm, qkv = self._projection
        rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + EPSILON)
        query, key, value = shape.split_qkv(rows * norm @ qkv)
        return _turn(query), _turn(key), value


def _turn(heads: NumpyArray) -> NumpyArray:
    """Rotary embedding at positions 0, 1, ..., as a turn of complex numbers."""
    half = heads.shape[-1] // 2
    speeds = rotary_speeds(heads.shape[-1])
    turns = np.exp(1j * np.arange(len(heads))[:, None, None] * speeds)
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turns
    return np.concatenate([turned.real, turned.imag], axis=-1)
