"""Dense feed-forwards and experts of each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvsim.catalog.hf.families import Family
from kvsim.catalog.hf.fields import LARGEST_FIELD, Fields, shown
from kvsim.catalog.hf.mamba import block_types
from kvsim.catalog.hf.quantization import ElementTypes
from kvsim.catalog.hf.special import nas_widths
from kvsim.catalog.model import Moe

LARGEST_EXPERTS = 100_000


class FeedForwards(NamedTuple):
    """What `Model` takes."""

    intermediate: int
    mlp_layers: tuple[tuple[int, int], ...] | None
    moe: Moe | None


def feed_forwards(fields: Fields, family: Family, kind: str, types: ElementTypes) -> FeedForwards:
    """Width of the dense feed-forwards, and the experts, with the layers that have them.

    Raises `InputError` for a pattern of layers that is not understood.
    """
    layers = len(block_types(fields)) if kind == "nemotron_h" else fields.layers()
    sparse = _sparse_layers(fields, family, kind, layers)
    experts = sum(sparse)
    if kind == "nemotron_h":
        dense = [
            fields.count("intermediate_size") if one == "mlp" else 0 for one in block_types(fields)
        ]
    elif kind in ("nemotron-nas", "deci"):
        dense = nas_widths(fields, layers)
    elif kind == "gemma4":
        dense = _gemma4_widths(fields, layers)
    elif experts == layers:
        dense = [0] * layers
    else:
        widths = _widths(fields, family, kind, layers)
        dense = [0 if has else width for has, width in zip(sparse, widths, strict=True)]
    moe = _moe(fields, family, kind, types, experts, layers) if experts else None
    counts = Counter(width for width in dense if width)
    usual = sum(counts.values()) == layers - experts and len(counts) <= 1
    intermediate = max(counts) if counts else _fallback_width(fields, family, kind, moe)
    return FeedForwards(intermediate, None if usual else _by_width(counts), moe)


def _by_width(counts: Counter[int]) -> tuple[tuple[int, int], ...]:
    return tuple((layers, width) for width, layers in sorted(counts.items()))


def _fallback_width(fields: Fields, family: Family, kind: str, moe: Moe | None) -> int:
    """Of a model whose layers all have experts: what the file states, else a token's experts."""
    if moe is not None and not isinstance(fields.get("intermediate_size"), int):
        return min(LARGEST_FIELD, moe.intermediate * moe.experts_per_token)
    return fields.count("intermediate_size")


def _widths(fields: Fields, family: Family, kind: str, layers: int) -> list[int]:
    """Width of a dense feed-forward by layer."""
    key = DENSE_WIDTH.get(kind, "intermediate_size")
    if isinstance(fields.get(key), list):
        return fields.counts(key, layers, least=1)
    ratio = family.mlp_ratio
    default = ratio * fields.count("hidden_size") if ratio else None
    return [fields.count(key, default)] * layers


def _gemma4_widths(fields: Fields, layers: int) -> list[int]:
    """Layers that use another layer's keys may have a feed-forward of twice the width."""
    width = fields.count("intermediate_size")
    shared = fields.count("num_kv_shared_layers", 0, least=0, most=layers)
    wide = 2 * width if fields.flag("use_double_wide_mlp") else width
    return [width] * (layers - shared) + [wide] * shared


def _sparse_layers(fields: Fields, family: Family, kind: str, layers: int) -> list[bool]:
    """Which layers have experts."""
    if kind == "nemotron_h":
        return [one == "moe" for one in block_types(fields)]
    if kind == "gemma4":
        return [fields.flag("enable_moe_block")] * layers
    if not family.experts:
        return [False] * layers
    return RULES[family.experts](fields, layers)


def _all(fields: Fields, layers: int) -> list[bool]:
    return [True] * layers


def _steps(fields: Fields, layers: int) -> list[bool]:
    """Qwen: every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    every = fields.count("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(one) is not int for one in dense):
        raise fields.error(f"mlp_only_layers must be a list of layers, got {shown(dense)}")
    only = set(dense)
    return [(layer + 1) % every == 0 and layer not in only for layer in range(layers)]


def _first_dense(fields: Fields, layers: int) -> list[bool]:
    """DeepSeek: dense up to `first_k_dense_replace`; then every `moe_layer_freq`-th layer."""
    if fields.get("mlp_layer_types") is not None:
        types = fields.items("mlp_layer_types", layers)
        for one in types:
            if one not in ("dense", "sparse"):
                raise fields.error(f"mlp_layer_types has {shown(one)}, which is not covered")
        return [one == "sparse" for one in types]
    if isinstance(fields.get("moe_layer_freq"), list):
        return _listed(fields, layers)
    if not fields.has("experts"):
        return [False] * layers
    first = fields.count("first_k_dense_replace", 0, least=0)
    every = fields.count("moe_layer_freq", 1)
    return [layer >= first and layer % every == 0 for layer in range(layers)]


def _listed(fields: Fields, layers: int) -> list[bool]:
    return [one != 0 for one in fields.counts("moe_layer_freq", layers)]


def _period(fields: Fields, layers: int) -> list[bool]:
    every = fields.count("expert_layer_period")
    offset = fields.count("expert_layer_offset", least=0)
    return [layer % every == offset for layer in range(layers)]


def _interval(fields: Fields, layers: int) -> list[bool]:
    """Llama 4 and Ernie 4.5: every so many layers, between two of them."""
    key = "moe_layer_interval" if fields.has("moe_layer_interval") else "interleave_moe_layer_step"
    if key == "interleave_moe_layer_step" and fields.kind.startswith("ernie"):
        every = 1
    else:
        every = fields.count(key)
    first = fields.count("moe_layer_start_index", 0, least=0)
    last = fields.get("moe_layer_end_index")
    end = layers - 1 if last in (None, -1) else fields.count("moe_layer_end_index", least=0)
    return [first <= layer <= end and (layer + 1) % every == 0 for layer in range(layers)]


RULES: Mapping[str, Callable[[Fields, int], list[bool]]] = {
    "all": _all,
    "steps": _steps,
    "first_dense": _first_dense,
    "listed": _listed,
    "period": _period,
    "interval": _interval,
}
DENSE_WIDTH = {"llama4": "intermediate_size_mlp", "minimax_m3": "dense_intermediate_size"}
"""The field with the elements of a dense feed-forward, where it has another name."""
ALWAYS_ONE_SHARED = ("llama4",)
SHARED_WIDTH_NAMES = ("shared_intermediate_size",)


def _moe(
    fields: Fields, family: Family, kind: str, types: ElementTypes, count: int, layers: int
) -> Moe:
    experts = fields.count("experts", most=LARGEST_EXPERTS)
    width = fields.count("expert_width" if fields.has("expert_width") else "intermediate_size")
    shared, shared_width = _shared(fields, kind, width)
    separate = kind in ("nemotron_h", "gemma4")
    latent = "routed_expert_hidden_size" if kind == "kimi_linear" else "moe_latent_size"
    per_token = fields.count("experts_per_token", most=LARGEST_EXPERTS)
    if per_token > experts:
        raise fields.error(f"a token takes {per_token} experts of {experts}")
    return Moe(
        experts=experts,
        experts_per_token=per_token,
        intermediate=width,
        shared_experts=shared,
        dense_layers=0 if separate else layers - count,
        layers=count if separate else None,
        shared_intermediate=None if shared_width == shared * width else shared_width,
        shared_gate=family.shared_gate and shared_width > 0,
        routing_bias=family.routing_bias,
        expert_bias=family.expert_bias,
        latent=fields.count(latent, 0, least=0) if fields.has(latent) else 0,
        weight_dtype=types.expert_dtype,
        shared_dtype=types.shared_expert_dtype,
    )


def _shared(fields: Fields, kind: str, width: int) -> tuple[int, int]:
    """Number of shared experts, and their intermediate elements together."""
    if kind in ALWAYS_ONE_SHARED:
        return 1, width
    number = fields.count("shared_experts", 0, least=0, most=LARGEST_EXPERTS)
    for key in ("shared_width", *SHARED_WIDTH_NAMES):
        if fields.has(key):
            total = fields.count(key, least=0)
            if key == "shared_width" and number > 1:
                # One width per shared expert, unless the name says that they are one.
                total *= number
            return (number or 1, total) if total else (0, 0)
    return number, number * width
