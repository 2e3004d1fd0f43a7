"""Families that mix attention with Mamba or convolution layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from kvsim.catalog.hf.families import Family
from kvsim.catalog.hf.fields import LARGEST_LAYERS, Fields, shown
from kvsim.catalog.hf.layers import gqa, listed_kinds, placed, state_dtype_bytes
from kvsim.catalog.model import LayerGroup
from kvsim.catalog.states import Mamba1, Mamba2, NoAttention, ShortConv

BlockType = Literal["mamba", "attention", "moe", "mlp"]
PATTERN: Mapping[str, BlockType] = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
"""Letters of `hybrid_override_pattern`."""
BLOCK_TYPES: tuple[BlockType, ...] = ("mamba", "attention", "moe", "mlp")


def block_types(fields: Fields) -> list[BlockType]:
    """What each layer of a Nemotron-H is: one of Mamba, attention, experts, feed-forward."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern is not None:
        if not 1 <= len(pattern) <= LARGEST_LAYERS:
            raise fields.error(
                f"hybrid_override_pattern has {len(pattern)} layers, at most {LARGEST_LAYERS}"
                " are covered"
            )
        odd = sorted(set(pattern) - set(PATTERN))
        if odd:
            raise fields.error(
                f"hybrid_override_pattern has layers {shown(odd[0])}, which are not covered"
            )
        found = [PATTERN[letter] for letter in pattern]
    else:
        listed = fields.get("layers_block_type")
        if not isinstance(listed, list) or not 1 <= len(listed) <= LARGEST_LAYERS:
            raise fields.error(
                "hybrid_override_pattern and layers_block_type are missing, or not a list:"
                f" {shown(listed)}"
            )
        for one in listed:
            if one not in BLOCK_TYPES:
                raise fields.error(f"layers_block_type has {shown(one)}, which is not covered")
        found = listed
    if fields.has("num_hidden_layers") and fields.layers() != len(found):
        raise fields.error(
            f"num_hidden_layers {fields.layers()} contradicts a pattern of {len(found)} layers"
        )
    return found


def _nemotron_h(fields: Fields, family: Family) -> list[LayerGroup]:
    types = block_types(fields)
    groups = {
        "moe": LayerGroup(1, NoAttention()),
        "mlp": LayerGroup(1, NoAttention()),
    }
    if "mamba" in types:
        state = Mamba2(
            heads=fields.heads("mamba_num_heads"),
            head_dim=fields.count("mamba_head_dim"),
            groups=fields.heads("n_groups"),
            state_size=fields.count("ssm_state_size"),
            conv_kernel=fields.count("conv_kernel"),
            state_dtype_bytes=state_dtype_bytes(fields),
            conv_bias=fields.flag("use_conv_bias", default=True),
            proj_bias=fields.flag("mamba_proj_bias"),
        )
        groups["mamba"] = LayerGroup(1, state)
    if "attention" in types:
        groups["attention"] = LayerGroup(1, gqa(fields, family))
    return [groups[one] for one in types]


def _mamba2(fields: Fields, *, norm: bool) -> Mamba2:
    """Fields of Bamba, Granite 4 and Falcon-H1."""
    heads = fields.heads("mamba_n_heads")
    hidden = fields.count("hidden_size")
    inner = fields.count("mamba_d_ssm", fields.count("mamba_expand", 2) * hidden)
    head_dim = fields.get("mamba_d_head")
    if head_dim in (None, "auto"):
        head_dim = inner // heads
    else:
        head_dim = fields.count("mamba_d_head")
    return Mamba2(
        heads=heads,
        head_dim=max(1, head_dim),
        groups=fields.heads("mamba_n_groups", 1),
        state_size=fields.count("mamba_d_state"),
        conv_kernel=fields.count("mamba_d_conv"),
        state_dtype_bytes=state_dtype_bytes(fields),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        proj_bias=fields.flag("mamba_proj_bias"),
        norm=norm,
    )


def _granite_hybrid(fields: Fields, family: Family) -> list[LayerGroup]:
    layers = fields.layers()
    kinds = listed_kinds(fields, layers, default="full", known=("full", "state"))
    state = _mamba2(fields, norm=True) if "state" in kinds else None
    return placed(fields, kinds, gqa(fields, family), state=state)


def _bamba(fields: Fields, family: Family) -> list[LayerGroup]:
    layers = fields.layers()
    listed = fields.get("attn_layer_indices")
    if not isinstance(listed, list) or any(
        type(one) is not int or not 0 <= one < layers for one in listed
    ):
        raise fields.error(
            f"attn_layer_indices must be a list of layers below {layers}, got {shown(listed)}"
        )
    state, own, full = _mamba2(fields, norm=True), gqa(fields, family), set(listed)
    return [LayerGroup(1, own if layer in full else state) for layer in range(layers)]


def _falcon_h1(fields: Fields, family: Family) -> list[LayerGroup]:
    """Falcon-H1: every layer has attention and, beside it, Mamba."""
    state = _mamba2(fields, norm=fields.flag("mamba_rms_norm"))
    return [LayerGroup(1, gqa(fields, family), beside=state)] * fields.layers()


def _jamba(fields: Fields, family: Family) -> list[LayerGroup]:
    """Jamba: one attention layer in `attn_layer_period`, from `attn_layer_offset` on."""
    hidden = fields.count("hidden_size")
    rank = fields.get("mamba_dt_rank")
    if rank in (None, "auto"):
        rank = -(-hidden // 16)
    else:
        rank = fields.count("mamba_dt_rank")
    state = Mamba1(
        inner=fields.count("mamba_expand") * hidden,
        state_size=fields.count("mamba_d_state"),
        dt_rank=rank,
        conv_kernel=fields.count("mamba_d_conv"),
        state_dtype_bytes=state_dtype_bytes(fields),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        proj_bias=fields.flag("mamba_proj_bias"),
        inner_norms=fields.flag("mamba_inner_layernorms", default=True),
    )
    every = fields.count("attn_layer_period")
    offset = fields.count("attn_layer_offset", least=0)
    own = gqa(fields, family)
    return [
        LayerGroup(1, own if layer % every == offset else state) for layer in range(fields.layers())
    ]


def _lfm2(fields: Fields, family: Family) -> list[LayerGroup]:
    """LFM2: convolutions, and attention in the listed layers."""
    layers, hidden = fields.layers(), fields.count("hidden_size")
    state = ShortConv(hidden, fields.count("conv_L_cache"), bias=fields.flag("conv_bias"))
    own = gqa(fields, family)
    listed = fields.get("full_attn_idxs")
    if fields.get("layer_types") is not None or listed is None:
        kinds = listed_kinds(fields, layers, default=None, known=("full", "state"))
        return placed(fields, kinds, own, state=state)
    if not isinstance(listed, list) or any(type(one) is not int for one in listed):
        raise fields.error(f"full_attn_idxs must be a list of layers, got {shown(listed)}")
    full = set(listed)
    return [LayerGroup(1, own if layer in full else state) for layer in range(layers)]


MIXED: Mapping[str, Callable[[Fields, Family], list[LayerGroup]]] = {
    "nemotron_h": _nemotron_h,
    "granitemoehybrid": _granite_hybrid,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
}
