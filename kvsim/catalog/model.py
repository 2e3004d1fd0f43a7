"""Shapes of a language model: what its weights and its KV cache weigh.

A model is a list of layer groups, in the order of their first layers. Layers of a group have the
same attention, hence the same KV layout; models with one kind of layer have one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvsim.errors import InputError

DTYPE_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "mxfp4": 17 / 32,
}
"""Bytes per element of the weight types the catalogue knows; mxfp4 has a byte of scale per 32."""
LayerKind = Literal["full", "sliding", "chunked", "state"]
"""What a layer keeps of a request: all tokens, the last ones, those of a chunk, or one state."""


def split_heads(heads: int, tp: int, what: str) -> int:
    """Heads per GPU under tensor parallelism; heads are replicated when there are fewer than tp.

    Raises `InputError` when neither number divides the other (servers refuse this too).
    """
    if tp < 1:
        raise InputError(f"tensor parallel size must be >= 1, got {tp}", where="tp")
    if heads % tp == 0:
        return heads // tp
    if tp % heads == 0:
        return 1
    raise InputError(
        f"{heads} {what} cannot be divided over tensor parallel size {tp}",
        where="tp",
        fix=f"Use a divisor or a multiple of {heads}",
    )


@dataclass(frozen=True, slots=True)
class GqaAttention:
    """Multi-head attention with grouped KV heads (multi-head and multi-query included)."""

    heads: int
    kv_heads: int
    head_dim: int
    """Elements of one query or key head."""
    v_head_dim: int
    """Elements of one value head; `head_dim` in almost every model."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    out_gate: bool = False
    """Whether a second product as wide as the queries gates the output."""

    kind = "gqa"

    def kv_elements(self, tp: int) -> int:
        """Elements of K and V per token and layer on one GPU."""
        return split_heads(self.kv_heads, tp, "KV heads") * (self.head_dim + self.v_head_dim)

    def naive_kv_elements(self) -> int:
        """The same if every query head had its own K and V."""
        return self.heads * (self.head_dim + self.v_head_dim)

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the matrix products of one layer on one GPU, K input and N output elements."""
        heads = split_heads(self.heads, tp, "query heads")
        kv_heads = split_heads(self.kv_heads, tp, "KV heads")
        q, k, v = heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.v_head_dim
        gate = q if self.out_gate else 0
        return [(q + gate + k + v, hidden), (hidden, heads * self.v_head_dim)]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Biases and norms of one layer on one GPU."""
        heads = split_heads(self.heads, tp, "query heads")
        kv_heads = split_heads(self.kv_heads, tp, "KV heads")
        qkv = (heads + kv_heads) * self.head_dim + kv_heads * self.v_head_dim
        return qkv * self.qkv_bias + hidden * self.out_bias + (2 * self.head_dim) * self.qk_norm


@dataclass(frozen=True, slots=True)
class MlaAttention:
    """Multi-head latent attention (DeepSeek V2, V3, R1): one latent vector per token."""

    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    kind = "mla"

    @property
    def head_dim(self) -> int:
        """Elements of one query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kv_heads(self) -> int:
        """KV heads as the cache sees them: the latent vector is one head."""
        return 1

    def kv_elements(self, tp: int) -> int:
        """Elements per token and layer on one GPU: every GPU holds the whole latent vector."""
        split_heads(self.heads, tp, "query heads")
        return self.kv_lora_rank + self.qk_rope_head_dim

    def naive_kv_elements(self) -> int:
        """The same if the heads' keys and values were stored."""
        return self.heads * (self.head_dim + self.v_head_dim)

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the matrix products of one layer on one GPU.

        Down projections are replicated. The up projections of K and V are absorbed into the
        query's and the output's side, which costs the same FLOPs and bytes.
        """
        heads = split_heads(self.heads, tp, "query heads")
        down = self.kv_lora_rank + self.qk_rope_head_dim
        absorbed = [
            (heads * self.kv_lora_rank, self.qk_nope_head_dim),
            (heads * self.v_head_dim, self.kv_lora_rank),
            (hidden, heads * self.v_head_dim),
        ]
        if not self.q_lora_rank:
            return [(down + heads * self.head_dim, hidden), *absorbed]
        query = (heads * self.head_dim, self.q_lora_rank)
        return [(self.q_lora_rank + down, hidden), query, *absorbed]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Norms of one layer on one GPU."""
        return self.q_lora_rank + self.kv_lora_rank


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
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
    conv_dtype_bytes: int = 2
    """Per element of the convolution's inputs."""

    kind = "gated delta net"

    def kv_elements(self, tp: int) -> int:
        """None per token."""
        return 0

    def naive_kv_elements(self) -> int:
        """None per token."""
        return 0

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


TokenAttention = GqaAttention | MlaAttention
"""Attention that keeps something of every token it may still attend to."""
Attention = TokenAttention | GatedDeltaNet


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share one KV layout."""

    layers: int
    attention: Attention
    window: int | None = None
    """Tokens that a layer attends to, the current one included; None: all of them."""
    chunk: int | None = None
    """Tokens of a chunk of chunked-local attention: a layer attends to the tokens from the start
    of the current chunk on; None: all of them."""

    @property
    def kind(self) -> LayerKind:
        """What the layers keep of a request."""
        if isinstance(self.attention, GatedDeltaNet):
            return "state"
        if self.chunk is not None:
            return "chunked"
        return "full" if self.window is None else "sliding"

    @property
    def limit_tokens(self) -> int | None:
        """Most tokens that a layer attends to; None: no limit, or no tokens at all."""
        return self.window if self.chunk is None else self.chunk


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts in every layer but `dense_layers` of them."""

    experts: int
    experts_per_token: int
    intermediate: int
    """Intermediate elements of one expert."""
    shared_experts: int = 0
    dense_layers: int = 0
    routing_bias: bool = False
    expert_bias: bool = False
    weight_dtype: str | None = None
    """Element type of the experts; None: the model's."""


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder, as far as memory and time are concerned. Elements unless a unit says otherwise."""

    name: str
    source: str
    groups: tuple[LayerGroup, ...]
    hidden: int
    intermediate: int
    """Intermediate elements of a dense layer's feed-forward."""
    vocab: int
    max_position: int
    weight_dtype: str
    """Element type of the large matrices; embeddings, norms and the router have 16 bits."""
    kv_dtype_bytes: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    mlp_bias: bool = False
    norm_bias: bool = False
    norms_per_layer: int = 2
    learned_positions: int = 0
    moe: Moe | None = None
    published_size: str = ""
    """As published: 8.03B (parameters) or 26GB."""
    published_size_source: str = ""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(group.layers for group in self.groups)

    @property
    def attention(self) -> TokenAttention:
        """Attention of the first layer group that keeps tokens."""
        kept = (group.attention for group in self.groups)
        return next(one for one in kept if not isinstance(one, GatedDeltaNet))

    @property
    def weight_element_bytes(self) -> float:
        """Bytes per element of the large matrices, but those of experts."""
        return DTYPE_BYTES[self.weight_dtype]

    @property
    def expert_dtype(self) -> str:
        """Element type of the experts' matrices; the model's without experts."""
        own = self.moe.weight_dtype if self.moe is not None else None
        return own or self.weight_dtype
