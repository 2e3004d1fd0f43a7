"""What layers of different kinds keep of a request, and what an allocator that ignores it wastes.

A request costs `fixed bytes + slope * tokens` per group of equal layers: a sliding window stops
growing, a linear-attention or Mamba layer keeps one state whatever the length, a cross-attention
layer keeps the encoder's tokens and none of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Literal, NamedTuple

from kvsim.catalog.kv import layer_bytes_per_token
from kvsim.catalog.model import LayerGroup, LayerKind, Model
from kvsim.catalog.states import StateAttention
from kvsim.errors import InputError

GroupRule = Literal["min", "max_if_close", "gcd"]
SAME_SIZE_RATIO = 1.5
"""Types whose numbers of layers differ by less are put into groups of the larger number."""


class LayerKv(NamedTuple):
    """Equal layers of one kind on one GPU."""

    kind: LayerKind
    layers: int
    bytes_per_token: int = 0
    """Of one layer, keys and values together; 0 for a state."""
    limit_tokens: int | None = None
    """Tokens of a sliding window, or of a chunk of chunked-local attention."""
    state_bytes: int = 0
    """Of one layer, per request, whatever its length."""

    def tokens_kept(self, tokens: int, encoder_tokens: int = 0) -> int:
        """Tokens whose keys and values a layer needs for a request of `tokens` text tokens."""
        if self.kind == "cross":
            return encoder_tokens
        if self.kind == "state":
            return 0
        return tokens if self.limit_tokens is None else min(tokens, self.limit_tokens)

    def request_bytes(self, tokens: int, encoder_tokens: int = 0) -> int:
        """Bytes of one request in all these layers."""
        kept = self.tokens_kept(tokens, encoder_tokens)
        return self.layers * (self.state_bytes + self.bytes_per_token * kept)

    def slope_bytes(self, tokens: int) -> int:
        """Bytes that the next token adds in all these layers."""
        return self.request_bytes(tokens + 1) - self.request_bytes(tokens)


def layer_kvs(model: Model, *, tp: int = 1, kv_dtype_bytes: int | None = None) -> list[LayerKv]:
    """The kinds of layers of a catalogue model on one of `tp` GPUs, in the model's order.

    Layers that keep nothing are left out.
    """
    size = kv_dtype_bytes or model.kv_dtype_bytes
    return [
        LayerKv(
            group.kind,
            group.layers,
            layer_bytes_per_token(group, tp, size),
            group.limit_tokens,
            state_bytes_of(group, tp),
        )
        for group in model.groups
        if group.kind != "none"
    ]


def state_bytes_of(group: LayerGroup, tp: int) -> int:
    """Bytes that one layer keeps of a request whatever its length, on one of `tp` GPUs."""
    beside = 0 if group.beside is None else group.beside.state_bytes(tp)
    attention = group.attention
    return beside + (attention.state_bytes(tp) if isinstance(attention, StateAttention) else 0)


def hybrid_bytes(layers: Sequence[LayerKv], tokens: int, encoder_tokens: int = 0) -> int:
    """Bytes that a request needs: what an allocator with a group per kind of layer gives it."""
    return sum(layer.request_bytes(tokens, encoder_tokens) for layer in layers)


def unified_bytes(layers: Sequence[LayerKv], tokens: int, encoder_tokens: int = 0) -> int:
    """Bytes where every layer with keys and values gets room for every token, the encoder's too.

    So did vLLM before its hybrid allocator (V1 0.10; vllm issue 11382).
    """
    return sum(
        layer.layers * (layer.state_bytes + layer.bytes_per_token * (tokens + encoder_tokens))
        for layer in layers
    )


def unified_waste(layers: Sequence[LayerKv], tokens: int, encoder_tokens: int = 0) -> float:
    """Share of the unified bytes that no layer needs, from 0 to 1."""
    given = unified_bytes(layers, tokens, encoder_tokens)
    return 1 - hybrid_bytes(layers, tokens, encoder_tokens) / given if given else 0.0


def group_layers(counts: Mapping[str, int], rule: GroupRule, ratio: float = SAME_SIZE_RATIO) -> int:
    """Layers of a group where each type of layer is split into groups of one size.

    `min`: the fewest layers of any type (vLLM 0.10). `max_if_close`: the most, where that is less
    than `ratio` times the fewest (1.5 in most releases with the rule, 1.25 in others; vllm pull
    29303), else the fewest. `gcd`: the greatest common divisor, which pads nothing and makes more
    groups (vllm pull 56445). Raises `InputError` for a type without layers.
    """
    if not counts or min(counts.values()) < 1:
        raise InputError(f"every type needs at least one layer, got {dict(counts)}", where="layers")
    least, most = min(counts.values()), max(counts.values())
    if rule == "gcd":
        return gcd(*counts.values())
    return most if rule == "max_if_close" and most < ratio * least else least


def padding_layers(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Layers by type that hold nothing, since whole groups of `size` layers are made.

    Each takes as much of the pool as a layer that holds tokens. As a share of the type's layers it
    is the waste that reports of the field quote.
    """
    return {name: -count % size for name, count in counts.items()}
