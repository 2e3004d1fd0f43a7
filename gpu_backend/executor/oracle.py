"""Layer 0's attention in float64 from token values alone: no cache, no table, no slot."""

from __future__ import annotations

import numpy as np

from gpu_backend.cpu.arrays import NumpyArray
from gpu_backend.executor.content import tokens_of
from gpu_backend.executor.model import EPSILON, ROTARY_BASE, AttentionOnly, Decoder, split_qkv
from kvsim.core.request import Request

TOLERANCE = 3e-5
"""Largest difference, relative to 1 + the value. Values are about 1; fp32 stays below 2e-6."""


class Oracle:
    """Recomputes keys and values of a sequence's whole context."""

    def __init__(self, model: Decoder | AttentionOnly) -> None:
        self._model = model
        self._qkv: NumpyArray | None = None

    def attention(self, request: Request, positions: NumpyArray) -> NumpyArray:
        """Layer 0's causal attention output, float64 [positions, heads, head_dim]."""
        shape = self._model.shape
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
        wrong = ~(np.abs(found - expected) <= TOLERANCE * (1 + np.abs(expected)))
        if wrong.any():
            row, head, element = (int(index) for index in np.argwhere(wrong)[0])
            raise AssertionError(
                f"attention of request {request.request_id!r} at position {positions[row]}, head "
                f"{head}, element {element} is {found[row, head, element]:.6g}, the reference "
                f"says {expected[row, head, element]:.6g} ({int(wrong.sum())} of {wrong.size} "
                f"elements differ)"
            )

    def _projections(self, tokens: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Queries, keys and values float64 of tokens at positions 0, 1, ..."""
        model = self._model
        if isinstance(model, AttentionOnly):
            rows = model.table[tokens % len(model.table)].astype(np.float64)
            return split_qkv(rows, model.shape)
        hidden = model.embedding[tokens].astype(np.float64)
        layer = model.layers[0]
        hidden /= np.sqrt((hidden**2).mean(axis=1, keepdims=True) + EPSILON)
        if self._qkv is None:
            self._qkv = layer.qkv.astype(np.float64)
        query, key, value = split_qkv(hidden * layer.attention_norm @ self._qkv, model.shape)
        return _turn(query), _turn(key), value


def _turn(heads: NumpyArray) -> NumpyArray:
    """Rotary embedding at positions 0, 1, ..., as a turn of complex numbers."""
    half = heads.shape[-1] // 2
    speeds = ROTARY_BASE ** -(np.arange(half) / half)
    turns = np.exp(1j * np.arange(len(heads))[:, None, None] * speeds)
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turns
    return np.concatenate([turned.real, turned.imag], axis=-1)
