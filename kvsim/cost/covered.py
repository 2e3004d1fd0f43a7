"""Which layers the clocks that compute times from a model's shapes know."""

from __future__ import annotations

from kvsim.catalog.model import CompressedAttention, GqaAttention, LayerGroup, MlaAttention
from kvsim.catalog.states import StateAttention
from kvsim.errors import InputError


def token_attention(group: LayerGroup) -> GqaAttention | MlaAttention:
    """The attention of layers that keep tokens. `InputError` for all others."""
    attention = group.attention
    if isinstance(attention, StateAttention) or group.beside is not None:
        problem = "linear-attention"
    elif not group.keeps_text:
        problem = "cross-attention" if group.cross else "KV-sharing"
    elif isinstance(attention, CompressedAttention):
        problem = "compressed-attention"
    elif attention.index_bytes:
        problem = "sparse-attention"
    else:
        return attention
    raise InputError(
        f"{problem} layers have no time by shape: none was measured or modelled",
        where="model",
        fix="Use a clock of kind fixed or linear",
    )
