"""A decoder with random weights of real shapes in torch, and its attention alone.

What `cpu_model` computes, on any device and in any dtype; padded in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.functional import linear, rms_norm, silu

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.padding import padded_rows
from gpu_backend.executor.rotary import rotary_tables
from gpu_backend.executor.runtime import Settings, Weights
from gpu_backend.executor.shape import EPSILON, MAX_TABLE_ROWS
from gpu_backend.executor.torch_staging import DeviceInputs

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, queries, keys, values) -> attention; all [tokens, heads or kv_heads, head_dim].

The result has `padded_rows(tokens)` rows: zeros behind the tokens.
"""


class TorchModel(Protocol):
    """What is computed around the attention."""

    def forward(self, inputs: DeviceInputs, attend: Attend) -> torch.Tensor:
        """Run all layers; returns the next token ids int64 [samples]."""

    def weights(self) -> Weights:
        """See `Runtime.weights`."""


class TorchLayer(NamedTuple):
    """Weights of one layer: norms [hidden], matrices [outputs, inputs]."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class TorchDecoder:
    """RMSNorm, rotary grouped-query attention, SwiGLU; embedding and output head are one matrix.

    Norms, angles and sums of products are float32 inside, whatever the dtype.
    """

    def __init__(self, settings: Settings, dtype: torch.dtype, device: torch.device) -> None:
        shape = self.shape = settings.shape
        generator = seeded(settings.seed, device)

        def matrix(outputs: int, inputs: int, scale: float) -> torch.Tensor:
            values = torch.empty((outputs, inputs), dtype=dtype, device=device)
            return values.normal_(0.0, scale, generator=generator)

        def norm() -> torch.Tensor:
            values = torch.empty(shape.hidden, dtype=dtype, device=device)
            return values.uniform_(0.5, 1.5, generator=generator)

        hidden, inner, attended = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
        self.embedding = matrix(shape.vocab, hidden, 1.0)
        """[vocab, hidden]."""
        self.layers = [
            TorchLayer(
                norm(),
                matrix(shape.qkv_elements, hidden, hidden**-0.5),
                matrix(hidden, attended, attended**-0.5),
                norm(),
                matrix(2 * inner, hidden, hidden**-0.5),
                matrix(hidden, inner, inner**-0.5),
            )
            for _ in range(settings.layers)
        ]
        self.final_norm = norm()
        tables = rotary_tables(shape.head_dim, settings.max_tokens)
        self._cos, self._sin = (torch.tensor(table, device=device) for table in tables)
        self._hidden = _Rows(shape.hidden, dtype, device)
        self._last = _Rows(shape.hidden, dtype, device)

    def forward(self, inputs: DeviceInputs, attend: Attend) -> torch.Tensor:
        """See `TorchModel.forward`; the logits of sampled rows only are computed."""
        return self.logits(inputs, attend).argmax(dim=1)

    def logits(self, inputs: DeviceInputs, attend: Attend) -> torch.Tensor:
        """As `forward`, but [samples, vocab]."""
        tokens, count = inputs.tokens, len(inputs.tokens)
        cos, sin = (
            table.index_select(0, inputs.positions)[:, None] for table in (self._cos, self._sin)
        )
        hidden = self._hidden.take(self.embedding, tokens)
        for index, layer in enumerate(self.layers):
            qkv = linear(self._norm(hidden, layer.attention_norm), layer.qkv)
            query, key, value = self._turned(qkv[:count], cos, sin)
            attended = attend(index, query, key, value)
            hidden.addmm_(attended.flatten(1), layer.output.t())
            gate, up = linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=1)
            hidden.addmm_(silu(gate) * up, layer.down.t())
        last = self._last.take(hidden, inputs.sampled)
        logits = linear(self._norm(last, self.final_norm), self.embedding)
        return logits[: len(inputs.sampled)]

    def weights(self) -> Weights:
        """See `Runtime.weights`."""
        first = self.layers[0]
        return Weights(
            self.shape,
            lambda tokens: _rows_of(self.embedding, tokens),
            lambda: (_as_numpy(first.attention_norm), _as_numpy(first.qkv).T),
        )

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, (self.shape.hidden,), weight, EPSILON)

    def _turned(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys turned to their positions, and values."""
        shape = self.shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        both = shape.heads + shape.kv_heads
        first, second = heads[:, :both].chunk(2, dim=-1)
        turned = heads.new_empty((len(qkv), both, shape.head_dim))
        real, imaginary = turned.chunk(2, dim=-1)
        torch.sub(first * cos, second * sin, out=real)
        torch.add(second * cos, first * sin, out=imaginary)
        return turned[:, : shape.heads], turned[:, shape.heads :], heads[:, both:]


class TorchAttentionOnly:
    """No weights: queries, keys and values are rows of a random table, by token id."""

    def __init__(self, settings: Settings, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = settings.shape
        generator = seeded(settings.seed, device)
        size = (min(self.shape.vocab, MAX_TABLE_ROWS), self.shape.qkv_elements)
        table = torch.empty(size, dtype=dtype, device=device)
        self.table = table.normal_(0.0, 1.0, generator=generator)
        """[rows, qkv elements]; token t's is row t modulo the rows."""
        self._layers = settings.layers

    def forward(self, inputs: DeviceInputs, attend: Attend) -> torch.Tensor:
        """See `TorchModel.forward`; every layer gets the same inputs, and no token comes out."""
        qkv = self.table.index_select(0, inputs.tokens % len(self.table))
        query, key, value = self.shape.split_qkv(qkv)
        for layer in range(self._layers):
            attend(layer, query, key, value)
        return inputs.tokens[:0]

    def weights(self) -> Weights:
        """See `Runtime.weights`."""
        rows = len(self.table)
        return Weights(self.shape, lambda tokens: _rows_of(self.table, tokens % rows), None)


class _Rows:
    """Room for padded rows that stays."""

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._room = torch.zeros((0, elements), dtype=dtype, device=device)

    def take(self, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Rows of `source` [padded indices, elements]; zeros behind them."""
        count, rows = len(indices), padded_rows(len(indices))
        if rows > len(self._room):
            rows_held = max(rows, 2 * len(self._room))
            self._room = self._room.new_zeros((rows_held, self._room.shape[1]))
        taken = self._room[:rows]
        torch.index_select(source, 0, indices, out=taken[:count])
        if rows > count:
            taken[count:].zero_()
        return taken


def seeded(seed: int, device: torch.device) -> torch.Generator:
    """Random numbers of this device."""
    return torch.Generator(device).manual_seed(seed)


def _rows_of(table: torch.Tensor, indices: NumpyArray) -> NumpyArray:
    return _as_numpy(table.index_select(0, torch.tensor(indices, device=table.device)))


def _as_numpy(tensor: torch.Tensor) -> NumpyArray:
    return np.asarray(tensor.float().cpu().numpy())
