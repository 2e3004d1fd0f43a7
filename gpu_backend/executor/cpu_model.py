"""A decoder with random weights of real shapes, in fp32 numpy, and its attention alone.

Matrix products run on padded rows (`padding`). What is behind the real rows is zero in every layer,
and no cache or attention sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.padding import padded_rows
from gpu_backend.executor.rotary import rotary_tables
from gpu_backend.executor.runtime import Weights
from gpu_backend.executor.shape import EPSILON, MAX_TABLE_ROWS, ModelShape

Attend = Callable[[int, NumpyArray, NumpyArray, NumpyArray], NumpyArray]
"""(layer, queries, keys, values) -> attention; all [tokens, heads or kv_heads, head_dim].

The result has `padded_rows(tokens)` rows: zeros behind the tokens.
"""


class Model(Protocol):
    """What is computed around the attention."""

    def forward(
        self, tokens: NumpyArray, positions: NumpyArray, sampled: NumpyArray, attend: Attend
    ) -> NumpyArray:
        """Run all layers on int64 [tokens]; returns the next token ids [samples]."""

    def weights(self) -> Weights:
        """See `Runtime.weights`."""


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
        self.final_norm = norm()
        self._cos, self._sin = rotary_tables(shape.head_dim, max_tokens)
        self._hidden = np.zeros((0, shape.hidden), np.float32)

    def forward(
        self, tokens: NumpyArray, positions: NumpyArray, sampled: NumpyArray, attend: Attend
    ) -> NumpyArray:
        """See `Model.forward`; the logits of sampled rows only are computed."""
        return np.asarray(self.logits(tokens, positions, sampled, attend).argmax(axis=1))

    def logits(
        self, tokens: NumpyArray, positions: NumpyArray, sampled: NumpyArray, attend: Attend
    ) -> NumpyArray:
        """As `forward`, but float32 [samples, vocab]."""
        shape, count = self.shape, len(tokens)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        hidden = self._embedded(tokens)
        for index, layer in enumerate(self.layers):
            qkv = _rms_norm(hidden, layer.attention_norm) @ layer.qkv
            query, key, value = shape.split_qkv(qkv[:count])
            query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
            attended = attend(index, query, key, np.ascontiguousarray(value))
            hidden += attended.reshape(len(hidden), -1) @ layer.output
            gate_up = _rms_norm(hidden, layer.mlp_norm) @ layer.gate_up
            gate, up = gate_up[:, : shape.intermediate], gate_up[:, shape.intermediate :]
            hidden += (gate / (1 + np.exp(-gate)) * up) @ layer.down
        last = np.zeros((padded_rows(len(sampled)), shape.hidden), np.float32)
        last[: len(sampled)] = hidden[sampled]
        logits = _rms_norm(last, self.final_norm) @ self.embedding.T
        return np.asarray(logits[: len(sampled)])

    def weights(self) -> Weights:
        """See `Runtime.weights`."""
        first = self.layers[0]
        return Weights(
            self.shape,
            lambda tokens: np.asarray(self.embedding[tokens]),
            lambda: (first.attention_norm, first.qkv),
        )

    def _embedded(self, tokens: NumpyArray) -> NumpyArray:
        """The tokens' embeddings [padded tokens, hidden], in a buffer that stays."""
        rows = padded_rows(len(tokens))
        if rows > len(self._hidden):
            self._hidden = np.zeros((max(rows, 2 * len(self._hidden)), self.shape.hidden), "f4")
        hidden = self._hidden[:rows]
        # "clip" (no token is outside) writes straight into `out`; the default checks and copies.
        np.take(self.embedding, tokens, axis=0, out=hidden[: len(tokens)], mode="clip")
        hidden[len(tokens) :] = 0
        return hidden


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
        parts = self.shape.split_qkv(self._rows(tokens))
        query, key, value = (np.ascontiguousarray(part) for part in parts)
        for layer in range(self._layers):
            attend(layer, query, key, value)
        return np.empty(0, np.int64)

    def weights(self) -> Weights:
        """See `Runtime.weights`."""
        return Weights(self.shape, self._rows, None)

    def _rows(self, tokens: NumpyArray) -> NumpyArray:
        return np.asarray(self.table[tokens % len(self.table)])


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
