"""KV bytes per token."""

from __future__ import annotations

from kvsim.catalog.model import CompressedAttention, LayerGroup, Model
from kvsim.catalog.states import StateAttention
from kvsim.errors import InputError

KV_DTYPE_BYTES = (1, 2, 4)


def kv_bytes_per_token(model: Model, *, tp: int = 1, kv_dtype_bytes: int | None = None) -> int:
    """Bytes one token occupies in the KV cache of one GPU, summed over the layers.

    Sliding-window layers count too, although they give a token up when it leaves the window.
    Grouped KV heads: `layers * max(1, kv_heads / tp) * (d_k + d_v) * bytes`; heads are replicated
    when there are fewer than tp. Latent attention: `layers * (kv_lora_rank + qk_rope_head_dim) *
    bytes`, not divided by tp. An index adds its key, whose bytes do not depend on the KV type.
    Layers that keep a state, the encoder's tokens or another layer's KV add nothing.
    `kv_dtype_bytes` (1, 2 or 4) defaults to the model's own.
    """
    size = _element_bytes(model, kv_dtype_bytes)
    return sum(
        group.layers * layer_bytes_per_token(group, tp, size)
        for group in model.groups
        if group.keeps_text
    )


def layer_bytes_per_token(group: LayerGroup, tp: int, element_bytes: int) -> int:
    """Bytes that one layer of the group keeps of a token on one GPU, its index key included.

    `InputError` for a compressed past, whose entries stand for several tokens.
    """
    attention = group.attention
    if isinstance(attention, CompressedAttention):
        raise InputError(
            "layers with a compressed past (compress_ratios) have no bytes per token: what they"
            " keep depends on the length",
            where="model",
            fix="Use kvsim fit for vLLM 0.21 and later, without a load: only its memory is known",
        )
    if isinstance(attention, StateAttention):
        return 0
    return attention.kv_elements(tp) * element_bytes + attention.index_bytes


def kv_bytes_per_group_token(
    model: Model, layers: int, *, tp: int = 1, kv_dtype_bytes: int | None = None
) -> int:
    """Bytes one token occupies on one GPU in `layers` layers like the model's widest."""
    size = _element_bytes(model, kv_dtype_bytes)
    return layers * widest_layer_bytes(model, tp=tp, element_bytes=size)


def widest_layer_bytes(model: Model, *, tp: int, element_bytes: int) -> int:
    """Most bytes that one layer keeps of a token on one GPU: pages of all layers have its size."""
    return max(
        layer_bytes_per_token(group, tp, element_bytes)
        for group in model.groups
        if group.keeps_text
    )


def naive_kv_bytes_per_token(model: Model, *, kv_dtype_bytes: int | None = None) -> int:
    """The often quoted figure that charges every query head: `4 * layers * heads * d` at 16 bits.

    It ignores grouped KV heads, latent attention and tensor parallelism. Shown beside the real
    figure because published estimates use it.
    """
    size = _element_bytes(model, kv_dtype_bytes)
    return (
        sum(g.layers * g.attention.naive_kv_elements() for g in model.groups if g.keeps_text) * size
    )


def _element_bytes(model: Model, kv_dtype_bytes: int | None) -> int:
    if kv_dtype_bytes is None:
        return model.kv_dtype_bytes
    if kv_dtype_bytes not in KV_DTYPE_BYTES:
        raise InputError(
            f"kv_dtype_bytes must be 1, 2 or 4, got {kv_dtype_bytes!r}",
            where="kv_dtype_bytes",
            fix="1 is fp8, 2 is bf16 or fp16",
        )
    return kv_dtype_bytes
