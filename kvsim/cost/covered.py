"""Which layers the clocks that compute times from a model's shapes know."""

from __future__ import annotations

from kvsim.catalog.model import GatedDeltaNet, LayerGroup, TokenAttention
from kvsim.errors import InputError


def token_attention(group: LayerGroup) -> TokenAttention:
    """The attention of layers that keep tokens. `InputError` for linear attention."""
    if isinstance(group.attention, GatedDeltaNet):
        raise InputError(
            "linear-attention layers have no time by shape: none was measured or modelled",
            where="model",
            fix="Use a clock of kind fixed or linear",
        )
    return group.attention
