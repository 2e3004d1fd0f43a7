"""A decoder with random weights of real shapes, in fp32 numpy, and its attention alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from gpu_backend.cpu.arrays import NumpyArray
from gpu_backend.executor.shape import ModelShape

EPSILON = 1e-5
ROTARY_BASE = 10_000.0
MAX_TABLE_ROWS = 4096
"""Rows of the table that stands for the projections where only attention is run."""

Attend = Callable[[int, NumpyArray, NumpyArray, NumpyArray], NumpyArray]
"""(layer, queries, keys, values) -> attention; all [tokens, heads or kv_heads, head_dim]."""


class Model(Protocol):
    """What is computed around the attention."""

    def forward(
        self, tokens: NumpyArray, positions: NumpyArray, sampled: NumpyArray, attend: Attend
    ) -> NumpyArray:
        """Run all layers on int64 [tokens]; returns the next token ids [samples]."""


class Layer(NamedTuple):
    """Weights of one layer, float32, [inputs, outputs]."""

    attention_norm: NumpyArray
    qkv: NumpyArray
    output: NumpyArray
    mlp_norm: NumpyArray
    gate_up: NumpyArray
    down: NumpyArray


class Decoder:
    """RMSNorm, rotary grouped-query attention, SwiGLU; embedding and output head are one matrix."""

    def __init__(self, shape: ModelShape, *, layers: int, max_tokens: int, seed: int) -> None:
        random = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> NumpyArray:
            values = random.standard_normal((rows, columns), dtype=np.float32)
            values *= np.float32(rows**-0.5)
            return values

        def norm() -> NumpyArray:
            return random.uniform(0.5, 1.5, shape.hidden).astype(np.float32)

        self.shape = shape
        self.embedding = random.standard_normal((shape.vocab, shape.hidden), dtype=np.float32)
        """[vocab, hidden]."""
        attended = shape.heads * shape.head_dim
        self.layers = [
            Layer(
                norm(),
                matrix(shape.hidden, shape.qkv_elements),
                matrix(attended, shape.hidden),
                norm(),
                matrix(shape.hidden, 2 * shape.intermediate),
                matrix(shape.intermediate, shape.hidden),
            )
            for _ in range(layers)
        ]
        self._final_norm = norm()
        half = shape.head_dim // 2
        frequencies = ROTARY_BASE ** -(np.arange(half) / half)
        angles = np.arange(max_tokens)[:, None] * frequencies
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def forward(
        self, tokens: NumpyArray, positions: NumpyArray, sampled: NumpyArray, attend: Attend
    ) -> NumpyArray:
        """See `Model.forward`; the logits of sampled rows only are computed."""
        shape = self.shape
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        hidden = self.embedding[tokens]
        for index, layer in enumerate(self.layers):
            qkv = _rms_norm(hidden, layer.attention_norm) @ layer.qkv
            query, key, value = split_qkv(qkv, shape)
            query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
            attended = attend(index, query, key, np.ascontiguousarray(value))
            hidden += attended.reshape(len(tokens), -1) @ layer.output
            gate_up = _rms_norm(hidden, layer.mlp_norm) @ layer.gate_up
            gate, up = gate_up[:, : shape.intermediate], gate_up[:, shape.intermediate :]
            hidden += (gate / (1 + np.exp(-gate)) * up) @ layer.down
        last = _rms_norm(hidden[sampled], self._final_norm)
        return np.asarray((last @ self.embedding.T).argmax(axis=1))


class AttentionOnly:
    """No weights: queries, keys and values are rows of a random table, by token id."""

    def __init__(self, shape: ModelShape, *, layers: int, seed: int) -> None:
        rows = min(shape.vocab, MAX_TABLE_ROWS)
        random = np.random.default_rng(seed)
        self.shape = shape
        self.table = random.standard_normal((rows, shape.qkv_elements), dtype=np.float32)
        """[rows, qkv elements]; token t's is row t modulo the rows."""
        self._layers = layers

    def forward(
        self, tokens: NumpyArray, positions: NumpyArray, sampled: NumpyArray, attend: Attend
    ) -> NumpyArray:
        """See `Model.forward`; every layer gets the same inputs, and no token comes out."""
        parts = split_qkv(self.table[tokens % len(self.table)], self.shape)
        query, key, value = (np.ascontiguousarray(part) for part in parts)
        for layer in range(self._layers):
            attend(layer, query, key, value)
        return np.empty(0, np.int64)


def split_qkv(qkv: NumpyArray, shape: ModelShape) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Views [tokens, heads or kv_heads, head_dim] of [tokens, qkv elements]."""
    heads = qkv.reshape(len(qkv), -1, shape.head_dim)
    keys = shape.heads + shape.kv_heads
    return heads[:, : shape.heads], heads[:, shape.heads : keys], heads[:, keys:]


def _rms_norm(values: NumpyArray, weight: NumpyArray) -> NumpyArray:
    squares = np.einsum("th,th->t", values, values)[:, None]
    scale = 1 / np.sqrt(squares / np.float32(values.shape[1]) + np.float32(EPSILON))
    return np.asarray(values * scale * weight)


def _rotate(heads: NumpyArray, cos: NumpyArray, sin: NumpyArray) -> NumpyArray:
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    rotated = np.empty(heads.shape, np.float32)
    rotated[..., :half] = first * cos - second * sin
    rotated[..., half:] = second * cos + first * sin
    return rotated
