"""Attention of each layer in families that mix several shapes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvsim.catalog.hf.compressed import compressed_layers
from kvsim.catalog.hf.families import Family
from kvsim.catalog.hf.fields import LARGEST_FIELD, Fields, shown
from kvsim.catalog.hf.layers import (
    gated_delta_net,
    gqa,
    latent_layers,
    layer_kinds,
    listed_kinds,
    mla,
    placed,
)
from kvsim.catalog.model import GqaAttention, LayerGroup
from kvsim.catalog.states import KimiDeltaAttention, LightningAttention, NoAttention

LARGEST_BLOCK_FIELDS = 100


def layer_list(fields: Fields, family: Family, kind: str) -> list[LayerGroup]:
    """One group of one layer for each layer, in order."""
    layers = fields.layers()
    if kind in SPECIAL:
        return SPECIAL[kind](fields, family, layers)
    if family.latent:
        return latent_layers(fields, layers)
    kinds = layer_kinds(fields, family, layers)
    state = gated_delta_net(fields) if "state" in kinds else None
    attention = gqa(fields, family)
    if kind == "gpt_oss":
        attention = replace(attention, sinks=True)
    return placed(fields, kinds, attention, state=state)


def _mimo_v2(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """MiMo-V2: sliding layers have heads of their own (`swa_*`), values are narrower than keys."""
    full = gqa(fields, family, v_head_dim=fields.count("v_head_dim"))
    sliding = gqa(
        fields,
        family,
        heads=fields.heads("swa_num_attention_heads", full.heads),
        kv_heads=fields.heads("swa_num_key_value_heads", full.kv_heads),
        head_dim=fields.count("swa_head_dim", full.head_dim),
        v_head_dim=fields.count("swa_v_head_dim", full.v_head_dim),
    )
    full = replace(full, sinks=fields.flag("add_full_attention_sink_bias"))
    sliding = replace(sliding, sinks=fields.flag("add_swa_attention_sink_bias"))
    window = fields.count("sliding_window")
    if fields.count("attention_chunk_size", window) != window:
        raise fields.unsupported("attention_chunk_size")
    return placed(fields, layer_kinds(fields, family, layers), full, sliding=sliding)


def _step3(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """Step 3.5 and 3.7: `attention_other_setting` has the heads of the sliding layers."""
    gate = fields.flag("use_head_wise_attn_gate")
    full = replace(gqa(fields, family), head_gate=gate)
    sliding = full
    if fields.has("attention_other_setting"):
        other = fields.inner("attention_other_setting")
        if other.text("attention_type") != "sliding_attention":
            raise other.unsupported("attention_type")
        sliding = gqa(
            fields,
            family,
            heads=other.heads("num_attention_heads"),
            kv_heads=other.heads("num_key_value_heads"),
            head_dim=other.count("head_dim", full.head_dim),
        )
        sliding = replace(sliding, head_gate=gate)
    kinds = layer_kinds(fields, family, layers)
    return placed(fields, kinds, full, sliding=sliding)


def _sharing(fields: Fields, groups: list[LayerGroup], matrices: bool) -> list[LayerGroup]:
    """The last `num_kv_shared_layers` use the keys and values of earlier layers."""
    shared = fields.count("num_kv_shared_layers", 0, least=0, most=len(groups))
    if shared == len(groups):
        raise fields.error(f"num_kv_shared_layers {shared} leaves no layer with keys and values")
    first = len(groups) - shared
    found = groups[:first]
    for group in groups[first:]:
        assert isinstance(group.attention, GqaAttention)
        user = replace(group.attention, own_kv=False, kv_matrices=matrices)
        found.append(replace(group, attention=user))
    return found


def _gemma3n(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    kinds = listed_kinds(fields, layers, default=None, known=("full", "sliding"))
    groups = placed(fields, kinds, gqa(fields, family))
    return _sharing(fields, groups, matrices=True)


def _gemma4(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """Gemma 4: full layers have heads of their own, one matrix may make keys and values."""
    sliding = gqa(fields, family)
    same = fields.flag("attention_k_eq_v")
    kv_heads = sliding.kv_heads
    if same and fields.has("num_global_key_value_heads"):
        kv_heads = fields.heads("num_global_key_value_heads")
    else:
        fields.get("num_global_key_value_heads")
    head_dim = fields.count("global_head_dim", sliding.head_dim)
    full = replace(gqa(fields, family, kv_heads=kv_heads, head_dim=head_dim), k_is_v=same)
    kinds = listed_kinds(fields, layers, default=None, known=("full", "sliding"))
    return _sharing(fields, placed(fields, kinds, full, sliding=sliding), matrices=False)


def _mllama(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """Llama 3.2 Vision: listed layers attend to the image's tokens, with norms of q and k."""
    own = gqa(fields, family)
    across = replace(own, qk_norm=True)
    listed = fields.get("cross_attention_layers")
    if not isinstance(listed, list) or any(
        type(one) is not int or not 0 <= one < layers for one in listed
    ):
        raise fields.error(
            f"cross_attention_layers must be a list of layers below {layers}, got {shown(listed)}"
        )
    crossing = set(listed)
    return [
        LayerGroup(1, across, cross=True) if layer in crossing else LayerGroup(1, own)
        for layer in range(layers)
    ]


def _minimax_m3(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """MiniMax-M3: layers of `sparse_attention_freq` keep one index key per token in 16 bits."""
    own = replace(gqa(fields, family), out_gate=fields.flag("attention_output_gate"))
    if not fields.has("sparse_attention_config"):
        return [LayerGroup(1, own)] * layers
    sparse = fields.inner("sparse_attention_config")
    if not sparse.flag("use_sparse_attention"):
        return [LayerGroup(1, own)] * layers
    flags = sparse.counts("sparse_attention_freq", layers)
    silent = sparse.counts("sparse_disable_index_value", layers)
    if any(on and not off for on, off in zip(flags, silent, strict=True)):
        raise sparse.unsupported("sparse_disable_index_value")
    indexed = replace(
        own,
        index_heads=sparse.heads("sparse_num_index_heads"),
        index_dim=sparse.count("sparse_index_dim"),
    )
    return [LayerGroup(1, indexed if on else own) for on in flags]


def _minimax_01(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """MiniMax-Text-01 and M1: `attn_type_list` has 1 for attention, 0 for linear attention."""
    own = gqa(fields, family)
    state = LightningAttention(own.heads, own.head_dim)
    if fields.get("attn_type_list") is None and fields.get("layer_types") is not None:
        kinds = listed_kinds(fields, layers, default=None, known=("full", "state"))
        return placed(fields, kinds, own, state=state)
    return [LayerGroup(1, own if one else state) for one in attention_types(fields, layers, 0)]


def attention_types(fields: Fields, layers: int, least: int) -> list[int]:
    """`attn_type_list`: 1 is attention, 0 linear attention."""
    types = fields.counts("attn_type_list", layers)
    for one in types:
        if not least <= one <= 1:
            raise fields.error(f"attn_type_list has type {shown(one)}, which is not covered")
    return types


def _minimax_m2(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """MiniMax-M2: attention everywhere; `qk_norm_type` says whether heads share a norm."""
    if fields.get("attn_type_list") is not None:
        attention_types(fields, layers, 1)
    norm = fields.text("qk_norm_type") or "per_layer"
    if norm not in ("per_layer", "per_head"):
        raise fields.unsupported("qk_norm_type")
    own = replace(
        gqa(fields, family),
        qk_norm=fields.flag("use_qk_norm", default=True),
        qk_norm_heads=norm == "per_layer",
    )
    return placed(fields, layer_kinds(fields, family, layers), own)


def _kimi_linear(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """Kimi Linear: `linear_attn_config` lists both kinds of layers, counted from 1."""
    linear = fields.inner("linear_attn_config")
    full, states = (_numbers(linear, key, layers) for key in ("full_attn_layers", "kda_layers"))
    if full & states or len(full | states) != layers:
        raise linear.error(
            f"full_attn_layers and kda_layers must name each of {layers} layers once"
        )
    state = KimiDeltaAttention(
        heads=linear.heads("num_heads"),
        head_dim=linear.count("head_dim"),
        conv_kernel=linear.count("short_conv_kernel_size"),
        full_rank_gate=linear.flag("use_full_rank_gate"),
    )
    own = mla(fields)
    return [LayerGroup(1, own if layer + 1 in full else state) for layer in range(layers)]


def _numbers(fields: Fields, key: str, layers: int) -> set[int]:
    listed = fields.get(key)
    if not isinstance(listed, list) or any(
        type(one) is not int or not 1 <= one <= layers for one in listed
    ):
        raise fields.error(f"{key} must be a list of layers 1..{layers}, got {shown(listed)}")
    return set(listed)


def _nas(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """DeciLM and Nemotron-NAS: `block_configs` has the query heads per KV head of each layer."""
    heads = fields.heads("num_attention_heads")
    if fields.get("num_key_value_heads_per_layer") is not None:
        counts = fields.counts("num_key_value_heads_per_layer", layers, least=1)
        return [LayerGroup(1, gqa(fields, family, kv_heads=one)) for one in counts]
    found: list[LayerGroup] = []
    made: dict[int, LayerGroup] = {}
    for block in fields.items("block_configs", layers):
        part = block_part(fields, block, "attention")
        if part.flag("no_op") or part.flag("replace_with_linear"):
            found.append(LayerGroup(1, NoAttention(linear=part.flag("replace_with_linear"))))
            continue
        for key in ("window_length", "llama4", "mamba", "sparsify"):
            if part.get(key) is not None:
                raise part.unsupported(key)
        if part.has("num_key_value_heads"):
            kv_heads = part.heads("num_key_value_heads")
        else:
            kv_heads = max(1, heads // part.heads("n_heads_in_group"))
        if kv_heads not in made:
            made[kv_heads] = LayerGroup(1, gqa(fields, family, kv_heads=kv_heads))
        found.append(made[kv_heads])
    return found


def block_part(fields: Fields, block: Any, key: str) -> Fields:
    """`attention` or `ffn` of one of the `block_configs`; null is a block without it."""
    part = block.get(key, ()) if isinstance(block, Mapping) else ()
    if part is None:
        part = {"no_op": True}
    if not isinstance(part, Mapping) or len(part) > LARGEST_BLOCK_FIELDS:
        raise fields.error(f"{key} of block_configs must be objects, got {shown(part)}")
    return Fields(part, fields.source, fields.kind)


def nas_widths(fields: Fields, layers: int) -> list[int]:
    """Intermediate elements per layer: `ffn_mult` of two thirds of hidden, in steps of 256."""
    if fields.get("block_configs") is None:
        return [fields.count("intermediate_size")] * layers
    hidden, found = fields.count("hidden_size"), []
    for block in fields.items("block_configs", layers):
        part = block_part(fields, block, "ffn")
        if part.flag("no_op") or part.flag("replace_with_linear"):
            found.append(0)
            continue
        for key in ("moe", "sparsify"):
            if part.get(key) is not None:
                raise part.unsupported(key)
        if part.has("intermediate_size"):
            found.append(part.count("intermediate_size"))
            continue
        width = int(2 * part.number("ffn_mult", most=1000) * hidden / 3)
        found.append(min(LARGEST_FIELD, 256 * -(-width // 256)))
    return found


SPECIAL: Mapping[str, Callable[[Fields, Family, int], list[LayerGroup]]] = {
    "deepseek_v4": compressed_layers,
    "mimo_v2_flash": _mimo_v2,
    "step3p5": _step3,
    "step3p7": _step3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "mllama": _mllama,
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "minimax_text_01": _minimax_01,
    "minimax_m1": _minimax_01,
    "minimax": _minimax_01,
    "kimi_linear": _kimi_linear,
    "nemotron-nas": _nas,
    "deci": _nas,
}
