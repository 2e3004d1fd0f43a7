"""Layers that keep one state per request whatever its length: linear attention, Mamba, convolution.

All sizes are elements, of one layer; byte figures are per request. Convolutions keep their last
inputs, `conv_kernel - 1` of them, in 16 bits. Shapes follow the published model definitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog.heads import split_heads

CONV_DTYPE_BYTES = 2


class StateAttention:
    """What all such layers have in common: nothing per token."""

    __slots__ = ()
    kind = "state"

    def kv_elements(self, tp: int) -> int:
        """None per token."""
        return 0

    def naive_kv_elements(self) -> int:
        """None per token."""
        return 0

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request in one layer on one GPU."""
        raise NotImplementedError

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the matrix products of one layer on one GPU."""
        raise NotImplementedError

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Biases, norms and other vectors of one layer on one GPU."""
        raise NotImplementedError

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(StateAttention):
    """Linear attention with a gated delta rule (Qwen3-Next, Qwen3.5): one state per request.

    The state is a matrix of key by value elements per value head, and the last inputs of the
    causal convolution over queries, keys and values.
    """

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    """Inputs under the convolution, the current one included."""
    state_dtype_bytes: int
    """Per element of the matrices."""
    conv_dtype_bytes: int = CONV_DTYPE_BYTES
    """Per element of the convolution's inputs."""

    kind = "gated delta net"

    def _conv_channels(self, tp: int) -> int:
        keys = split_heads(self.key_heads, tp, "linear-attention key heads")
        values = split_heads(self.value_heads, tp, "linear-attention value heads")
        return 2 * keys * self.key_head_dim + values * self.value_head_dim

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request in one layer on one GPU."""
        values = split_heads(self.value_heads, tp, "linear-attention value heads")
        matrices = values * self.key_head_dim * self.value_head_dim * self.state_dtype_bytes
        inputs = self._conv_channels(tp) * (self.conv_kernel - 1)
        return matrices + inputs * self.conv_dtype_bytes

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the matrix products of one layer on one GPU.

        In: queries, keys, values, the output's gate, and two numbers per value head. The
        convolution counts as a product of its channels by its kernel.
        """
        values = split_heads(self.value_heads, tp, "linear-attention value heads")
        width, channels = values * self.value_head_dim, self._conv_channels(tp)
        return [
            (channels + width + 2 * values, hidden),
            (channels, self.conv_kernel),
            (hidden, width),
        ]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Decay, its bias, and the output's norm, of one layer on one GPU."""
        values = split_heads(self.value_heads, tp, "linear-attention value heads")
        return 2 * values + self.value_head_dim

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        return (
            f"linear attention: value heads {self.value_heads} * {self.key_head_dim} *"
            f" {self.value_head_dim} * {self.state_dtype_bytes} bytes, and {self.conv_kernel - 1}"
            f" inputs of the convolution at {self.conv_dtype_bytes} bytes, divided by tp {tp}"
        )


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention(StateAttention):
    """Linear attention with a gated delta rule and a decay per channel (Kimi Linear)."""

    heads: int
    head_dim: int
    conv_kernel: int
    full_rank_gate: bool = False
    """Whether the output's gate is one matrix instead of two of rank `head_dim`."""
    state_dtype_bytes: int = 4

    kind = "kimi delta attention"

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request: a matrix per head; inputs of three convolutions (q, k, v)."""
        heads = split_heads(self.heads, tp, "linear-attention heads")
        inputs = 3 * heads * self.head_dim * (self.conv_kernel - 1)
        matrices = heads * self.head_dim**2
        return matrices * self.state_dtype_bytes + inputs * CONV_DTYPE_BYTES

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K): q, k, v, the decay and the gate in two steps each, the step size, the output."""
        heads = split_heads(self.heads, tp, "linear-attention heads")
        width = heads * self.head_dim
        decay = [(self.head_dim, hidden), (width, self.head_dim)]
        gate = [(width, hidden)] if self.full_rank_gate else decay
        inward = [(3 * width + heads, hidden), (3 * width, self.conv_kernel)]
        return [*inward, *decay, *gate, (hidden, width)]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Decay per head, its bias per channel, the output's norm."""
        heads = split_heads(self.heads, tp, "linear-attention heads")
        return heads + heads * self.head_dim + self.head_dim

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        return (
            f"linear attention: heads {self.heads} * {self.head_dim}^2 * {self.state_dtype_bytes}"
            f" bytes, and {self.conv_kernel - 1} inputs of three convolutions at"
            f" {CONV_DTYPE_BYTES} bytes, divided by tp {tp}"
        )


@dataclass(frozen=True, slots=True)
class LightningAttention(StateAttention):
    """Linear attention without convolution (MiniMax-Text-01, MiniMax-M1)."""

    heads: int
    head_dim: int
    state_dtype_bytes: int = 2

    kind = "lightning attention"

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request: a square matrix per head."""
        heads = split_heads(self.heads, tp, "linear-attention heads")
        return heads * self.head_dim**2 * self.state_dtype_bytes

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K): q, k, v and the gate; the output."""
        width = split_heads(self.heads, tp, "linear-attention heads") * self.head_dim
        return [(4 * width, hidden), (hidden, width)]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """The output's norm."""
        return split_heads(self.heads, tp, "linear-attention heads") * self.head_dim

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        return (
            f"linear attention: heads {self.heads} * {self.head_dim}^2 *"
            f" {self.state_dtype_bytes} bytes, divided by tp {tp}"
        )


@dataclass(frozen=True, slots=True)
class Mamba2(StateAttention):
    """State space layer with heads (Nemotron-H, Granite 4, Falcon-H1, Bamba)."""

    heads: int
    head_dim: int
    groups: int
    """Heads of a group share the input's and the output's projection into the state."""
    state_size: int
    conv_kernel: int
    state_dtype_bytes: int
    conv_bias: bool = True
    proj_bias: bool = False
    norm: bool = True

    kind = "mamba2"

    def _widths(self, tp: int) -> tuple[int, int, int]:
        """Heads, inner elements, channels of the convolution on one GPU."""
        heads = split_heads(self.heads, tp, "Mamba heads")
        groups = split_heads(self.groups, tp, "Mamba groups")
        inner = heads * self.head_dim
        return heads, inner, inner + 2 * groups * self.state_size

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request: `state_size` per inner element, and the convolution's inputs."""
        _, inner, channels = self._widths(tp)
        states = inner * self.state_size * self.state_dtype_bytes
        return states + channels * (self.conv_kernel - 1) * CONV_DTYPE_BYTES

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K): gate, convolved channels and a time step per head; convolution; output."""
        heads, inner, channels = self._widths(tp)
        inward = (inner + channels + heads, hidden)
        return [inward, (channels, self.conv_kernel), (hidden, inner)]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Decay, skip and time bias per head; biases; the gated norm."""
        heads, inner, channels = self._widths(tp)
        biases = (inner + channels + heads + hidden) * self.proj_bias
        return 3 * heads + channels * self.conv_bias + inner * self.norm + biases

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        return (
            f"Mamba: heads {self.heads} * {self.head_dim} * {self.state_size} *"
            f" {self.state_dtype_bytes} bytes, and {self.conv_kernel - 1} inputs of the convolution"
            f" at {CONV_DTYPE_BYTES} bytes, divided by tp {tp}"
        )


@dataclass(frozen=True, slots=True)
class Mamba1(StateAttention):
    """State space layer of the first kind (Jamba)."""

    inner: int
    state_size: int
    dt_rank: int
    conv_kernel: int
    state_dtype_bytes: int = 2
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False
    """Whether time step and both projections into the state are normed (Jamba)."""

    kind = "mamba"

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request: `state_size` per inner element, and the convolution's inputs."""
        inner = split_heads(self.inner, tp, "Mamba channels")
        inputs = inner * (self.conv_kernel - 1) * CONV_DTYPE_BYTES
        return inner * self.state_size * self.state_dtype_bytes + inputs

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K): input and gate, convolution, time step and state projections, decay, output."""
        inner = split_heads(self.inner, tp, "Mamba channels")
        return [
            (2 * inner, hidden),
            (inner, self.conv_kernel),
            (self.dt_rank + 2 * self.state_size, inner),
            (inner, self.dt_rank),
            (inner, self.state_size),
            (hidden, inner),
        ]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Skip and time bias per channel; biases; norms."""
        inner = split_heads(self.inner, tp, "Mamba channels")
        norms = (self.dt_rank + 2 * self.state_size) * self.inner_norms
        return 2 * inner + inner * self.conv_bias + norms + (2 * inner + hidden) * self.proj_bias

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        return (
            f"Mamba: {self.inner} * {self.state_size} * {self.state_dtype_bytes} bytes, and"
            f" {self.conv_kernel - 1} inputs of the convolution at {CONV_DTYPE_BYTES} bytes,"
            f" divided by tp {tp}"
        )


@dataclass(frozen=True, slots=True)
class ShortConv(StateAttention):
    """Gated convolution over the last few tokens (LFM2)."""

    width: int
    conv_kernel: int
    bias: bool = False

    kind = "short convolution"

    def state_bytes(self, tp: int) -> int:
        """Bytes of one request: the convolution's inputs."""
        width = split_heads(self.width, tp, "channels")
        return width * (self.conv_kernel - 1) * CONV_DTYPE_BYTES

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K): input and two gates, convolution, output."""
        width = split_heads(self.width, tp, "channels")
        return [(3 * width, hidden), (width, self.conv_kernel), (hidden, width)]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Biases."""
        return (4 * split_heads(self.width, tp, "channels") + hidden) * self.bias

    def state_formula(self, tp: int) -> str:
        """How `state_bytes` comes about, in words."""
        return (
            f"convolution: {self.width} * {self.conv_kernel - 1} inputs at {CONV_DTYPE_BYTES}"
            f" bytes, divided by tp {tp}"
        )


@dataclass(frozen=True, slots=True)
class NoAttention(StateAttention):
    """A layer that is a feed-forward alone, and keeps nothing (Nemotron-H, DeciLM)."""

    linear: bool = False
    """Whether one matrix from hidden to hidden takes the attention's place (DeciLM)."""

    kind = "none"

    def state_bytes(self, tp: int) -> int:
        """None."""
        return 0

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the replacement, if there is one."""
        return [(-(-hidden // tp), hidden)] if self.linear else []

    def vector_elements(self, hidden: int, tp: int) -> int:
        """None."""
        return 0

    def state_formula(self, tp: int) -> str:
        """Nothing is kept."""
        return "no attention: nothing is kept"
