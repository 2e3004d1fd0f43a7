"""DeepSeek V4: layers with a window and a compressed past, hyper-connections, hash routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsim.catalog.compressed import INDEXED_RATIO, RATIOS, CompressedAttention
from kvsim.catalog.hf.families import Family
from kvsim.catalog.hf.fields import Fields, shown
from kvsim.catalog.hf.quantization import ElementTypes
from kvsim.catalog.model import ExtraWeights, LayerGroup

MICRO_SCALED_GROUP = 16
"""Elements per scale of nvfp4; mxfp4 has one per 32."""
LARGEST_MULTIPLE = 100


def compressed_layers(fields: Fields, family: Family, layers: int) -> list[LayerGroup]:
    """One layer per item of `compress_ratios`; further items are modules for prediction."""
    plain = CompressedAttention(
        heads=fields.heads("num_attention_heads"),
        head_dim=fields.count("head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        q_lora_rank=fields.count("q_lora_rank"),
        o_groups=fields.heads("o_groups"),
        o_lora_rank=fields.count("o_lora_rank"),
        window=fields.count("sliding_window"),
    )
    if fields.count("num_key_value_heads", 1) != 1:
        raise fields.unsupported("num_key_value_heads")
    if plain.rope_dim > plain.head_dim or plain.heads * plain.head_dim % plain.o_groups:
        raise fields.error(
            f"{plain.heads} heads of {plain.head_dim} elements, {plain.rope_dim} of them rotary, do"
            f" not go into {plain.o_groups} o_groups"
        )
    index_heads, index_dim = fields.heads("index_n_heads"), fields.count("index_head_dim")
    by_ratio = {
        ratio: LayerGroup(
            1,
            replace(
                plain,
                ratio=ratio,
                index_heads=index_heads if ratio == INDEXED_RATIO else 0,
                index_dim=index_dim if ratio == INDEXED_RATIO else 0,
            ),
        )
        for ratio in RATIOS
    }
    return [by_ratio[ratio] for ratio in _ratios(fields, layers)]


def _ratios(fields: Fields, layers: int) -> list[int]:
    more = fields.count("num_nextn_predict_layers", 0, least=0)
    listed = fields.get("compress_ratios")
    length = len(listed) if isinstance(listed, list) else layers
    if layers < length <= layers + max(more, 1):
        ratios = fields.counts("compress_ratios", length)
    else:
        ratios = fields.counts("compress_ratios", layers)
    for ratio in ratios:
        if ratio not in RATIOS:
            raise fields.error(
                f"compress_ratios has {ratio}: what its layers keep is not known",
                f"Known: {', '.join(map(str, RATIOS))}",
            )
    return ratios[:layers]


def compressed_extras(fields: Fields, family: Family) -> list[ExtraWeights]:
    """Compressors, hyper-connections, and what hash-routed layers have instead of a bias.

    `hc_mult` residual streams m of `hidden` elements are mixed before attention and before
    feed-forward by (2 + m) * m products of all streams, and by m at the end, in 32 bits.
    """
    layers, hidden = fields.layers(), fields.count("hidden_size")
    groups = [one.attention for one in compressed_layers(fields, family, layers)]
    found = [one for one in groups if isinstance(one, CompressedAttention)]
    streams = fields.count("hc_mult", most=LARGEST_MULTIPLE)
    mixes = (2 + streams) * streams
    mixing = 2 * layers * (mixes * streams * hidden + mixes + 3)
    ends = streams * streams * hidden + streams + 1
    hashed = fields.count("num_hash_layers", 0, least=0, most=layers)
    table = fields.count("vocab_size") * fields.count("experts_per_token")
    return [
        ExtraWeights("compressors", sum(one.compressor_elements(hidden) for one in found)),
        ExtraWeights("compressors", sum(one.position_elements() for one in found), 4),
        ExtraWeights("hyper_connections", mixing + ends, 4),
        ExtraWeights("router", -hashed * fields.count("experts")),
        ExtraWeights("hash_routing", hashed * table, 4),
    ]


def compressed_types(
    fields: Fields, types: ElementTypes, quantization: Mapping[str, Any] | None
) -> ElementTypes:
    """8-bit matrices around experts of `expert_dtype`; fp4 has a scale per 32 or 16 elements."""
    dtype = fields.text("expert_dtype")
    if dtype is None or dtype == "fp8":
        return types
    if dtype != "fp4":
        raise fields.error(f"expert_dtype {shown(dtype)} is not known", "Known: fp4, fp8")
    given = fields.get("quantization_config")
    inner = (quantization or {}).get("quantization", quantization)
    groups = [one.get("group_size") for one in (given, inner) if isinstance(one, Mapping)]
    micro = MICRO_SCALED_GROUP in groups
    return ElementTypes(
        "fp8",
        types.kv_dtype_bytes,
        expert_dtype="nvfp4" if micro else "mxfp4",
        shared_expert_dtype="fp8",
    )
