"""Shapes of a language model: what its weights and its KV cache weigh.

A model is a list of layer groups, in the order of their first layers. Layers of a group have the
same attention, hence the same KV layout; models with one kind of layer have one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsim.catalog.compressed import CompressedAttention as CompressedAttention
from kvsim.catalog.encoder import Encoder
from kvsim.catalog.heads import split_heads
from kvsim.catalog.states import GatedDeltaNet as GatedDeltaNet
from kvsim.catalog.states import NoAttention, StateAttention
from kvsim.errors import InputError

DTYPE_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int6": 0.75,
    "int5": 0.625,
    "int4": 0.5,
    "int3": 0.375,
    "int2": 0.25,
    "nf4": 0.5,
    "mxfp4": 17 / 32,
    "nvfp4": 9 / 16,
    "mxfp8": 33 / 32,
}
"""Bytes per element of the weight types the catalogue knows. mxfp4 and mxfp8 have a byte of scale
per 32 elements, nvfp4 one per 16; scales of other types are `Model.weight_scale_bytes`."""
LayerKind = Literal["full", "sliding", "chunked", "compressed", "state", "cross", "none"]
"""What a layer keeps of a request: all tokens, the last ones, those of a chunk, the last ones and
entries for several earlier ones, one state, the encoder's tokens, or nothing."""
INDEX_SCALE_BYTES = 4
INDEX_SCALE_ELEMENTS = 128
"""Index keys beside a latent cache have one byte per element and a scale per 128."""


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
    head_gate: bool = False
    """Whether one number per query head gates the output."""
    qk_norm_heads: bool = False
    """Whether the norms of queries and keys have weights of their own for every head."""
    sinks: bool = False
    k_is_v: bool = False
    """Whether one matrix makes keys and values. Both are stored."""
    own_kv: bool = True
    """False: an earlier layer's keys and values are used, nothing is stored."""
    kv_matrices: bool = True
    """Whether the layer has matrices for keys and values, used or not."""
    index_heads: int = 0
    """Query heads of an index that selects blocks of tokens (MiniMax-M3)."""
    index_dim: int = 0
    """Elements of its one key per token, stored in 16 bits."""

    kind = "gqa"

    @property
    def index_bytes(self) -> int:
        """Bytes per token and layer of index keys, the same on every GPU."""
        return 2 * self.index_dim

    def kv_elements(self, tp: int) -> int:
        """Elements of K and V per token and layer on one GPU."""
        if not self.own_kv:
            return 0
        return split_heads(self.kv_heads, tp, "KV heads") * (self.head_dim + self.v_head_dim)

    def naive_kv_elements(self) -> int:
        """The same if every query head had its own K and V."""
        if not self.own_kv:
            return 0
        return self.heads * (self.head_dim + self.v_head_dim)

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the matrix products of one layer on one GPU, K input and N output elements."""
        heads = split_heads(self.heads, tp, "query heads")
        kv_heads = split_heads(self.kv_heads, tp, "KV heads")
        q, k, v = heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.v_head_dim
        if self.k_is_v or not self.kv_matrices:
            v = 0
        if not self.kv_matrices:
            k = 0
        gate = (heads * self.v_head_dim if self.out_gate else 0) + heads * self.head_gate
        index = (self.index_heads + 1) * self.index_dim if self.index_dim else 0
        return [(q + gate + k + v + index, hidden), (hidden, heads * self.v_head_dim)]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Biases and norms of one layer on one GPU."""
        heads = split_heads(self.heads, tp, "query heads")
        kv_heads = split_heads(self.kv_heads, tp, "KV heads")
        keys = (heads + kv_heads) * self.head_dim
        qkv = keys + kv_heads * self.v_head_dim
        norms = (keys if self.qk_norm_heads else 2 * self.head_dim) * self.qk_norm
        index = 2 * self.index_dim
        return qkv * self.qkv_bias + hidden * self.out_bias + norms + heads * self.sinks + index


@dataclass(frozen=True, slots=True)
class MlaAttention:
    """Multi-head latent attention (DeepSeek V2, V3, R1): one latent vector per token."""

    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_heads: int = 0
    """Query heads of an index that selects tokens (DeepSeek-V3.2, GLM-5)."""
    index_head_dim: int = 0
    """Elements of its one key per token."""
    out_gate: bool = False
    """Whether a product as wide as the values gates the output."""

    kind = "mla"

    @property
    def index_bytes(self) -> int:
        """Bytes per token and layer of index keys, the same on every GPU: 132 for 128 elements."""
        scales = -(-self.index_head_dim // INDEX_SCALE_ELEMENTS)
        return self.index_head_dim + INDEX_SCALE_BYTES * scales

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
        if self.out_gate:
            absorbed.append((heads * self.v_head_dim, hidden))
        if not self.q_lora_rank:
            return [(down + heads * self.head_dim, hidden), *absorbed]
        query = (heads * self.head_dim, self.q_lora_rank)
        index = []
        if self.index_head_dim:
            index_queries = (self.index_heads * self.index_head_dim, self.q_lora_rank)
            index = [(self.index_head_dim + self.index_heads, hidden), index_queries]
        return [(self.q_lora_rank + down, hidden), query, *index, *absorbed]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Norms of one layer on one GPU."""
        return self.q_lora_rank + self.kv_lora_rank + 2 * self.index_head_dim


TokenAttention = GqaAttention | MlaAttention | CompressedAttention
"""Attention that keeps something of every token it may still attend to."""
Attention = TokenAttention | StateAttention


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
    cross: bool = False
    """Whether the layers attend to an encoder's tokens and keep none of the text's."""
    image_tokens: tuple[int, int] = (0, 0)
    """Fewest and most of an image that such layers keep."""
    beside: StateAttention | None = None
    """What works beside the attention of each layer and keeps a state (Falcon-H1)."""

    @property
    def kind(self) -> LayerKind:
        """What the layers keep of a request."""
        if isinstance(self.attention, NoAttention):
            return "none"
        if isinstance(self.attention, StateAttention):
            return "state"
        if isinstance(self.attention, GqaAttention) and not self.attention.own_kv:
            return "none"
        if isinstance(self.attention, CompressedAttention):
            return "compressed"
        if self.cross:
            return "cross"
        if self.chunk is not None:
            return "chunked"
        return "full" if self.window is None else "sliding"

    @property
    def keeps_text(self) -> bool:
        """Whether the layers keep something of every token they may still attend to."""
        return self.kind in ("full", "sliding", "chunked", "compressed")

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
    layers: int | None = None
    """Layers with experts; None: all but `dense_layers`."""
    shared_intermediate: int | None = None
    """Intermediate elements of all shared experts; None: `shared_experts * intermediate`."""
    shared_gate: bool = False
    """Whether one number per token gates the shared experts."""
    latent: int = 0
    """Elements that routed experts work on, projected from and to `hidden`; 0: `hidden` itself."""
    shared_dtype: str | None = None
    """Element type of the shared experts; None: that of the routed ones."""

    @property
    def shared_width(self) -> int:
        """Intermediate elements of all shared experts."""
        own = self.shared_intermediate
        return self.shared_experts * self.intermediate if own is None else own


class ExtraWeights(NamedTuple):
    """Parameters outside the layers' attention and feed-forward."""

    name: str
    elements: int
    element_bytes: int = 2


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
    mlp_layers: tuple[tuple[int, int], ...] | None = None
    """(layers, intermediate elements) of the dense feed-forwards, where not every layer without
    experts has one of `intermediate` elements."""
    extra_weights: tuple[ExtraWeights, ...] = ()
    weight_scale_bytes: float = 0.0
    """Bytes of group scales and zero points per element of the large matrices."""
    attention_dtype: str | None = None
    """Element type of the attention's matrices; None: `weight_dtype`."""
    checkpoint_bytes: int | None = None
    """Size of the published checkpoint, which replaces the bytes by shape on one GPU."""
    encoder: Encoder | None = None
    """Towers of images and sound before the decoder, in none of the other figures."""
    assumptions: tuple[str, ...] = ()
    """What the configuration leaves open and how it was read."""
    published_size: str = ""
    """As published: 8.03B (parameters) or 26GB."""
    published_size_source: str = ""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return sum(group.layers for group in self.groups)

    @property
    def attention(self) -> TokenAttention:
        """Attention of the first layer group that keeps tokens. `InputError` without one."""
        for group in self.groups:
            if group.keeps_text and not isinstance(group.attention, StateAttention):
                return group.attention
        raise InputError(
            f"{self.name} has no layer that keeps keys and values",
            where=self.source,
            fix="Choose a model with attention",
        )

    @property
    def weight_element_bytes(self) -> float:
        """Bytes per element of the large matrices, but those of experts."""
        return DTYPE_BYTES[self.weight_dtype] + self.weight_scale_bytes

    @property
    def attention_element_bytes(self) -> float:
        """Bytes per element of the attention's matrices."""
        own = self.attention_dtype
        return self.weight_element_bytes if own is None else DTYPE_BYTES[own]

    @property
    def expert_element_bytes(self) -> float:
        """Bytes per element of the experts' matrices."""
        own = None if self.moe is None else self.moe.weight_dtype
        if self.moe is None or own is None:
            return self.weight_element_bytes
        return DTYPE_BYTES[own]

    @property
    def shared_expert_element_bytes(self) -> float:
        """Bytes per element of the shared experts' matrices."""
        own = None if self.moe is None else self.moe.shared_dtype
        return self.expert_element_bytes if own is None else DTYPE_BYTES[own]

    @property
    def expert_dtype(self) -> str:
        """Element type of the experts' matrices; the model's without experts."""
        own = self.moe.weight_dtype if self.moe is not None else None
        return own or self.weight_dtype
