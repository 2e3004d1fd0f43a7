"""Families whose files put usual quantities in a form of their own.

An adapter gives the usual fields, computed from the family's own, and the family as the file's
switches make it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvsim.catalog.hf.families import Family
from kvsim.catalog.hf.fields import Fields, shown

Adapted = tuple[dict[str, Any], Family]
FALCON_POSITIONS = 2048
"""Of the family's configuration class; most files leave it out."""


def _falcon(fields: Fields, family: Family) -> Adapted:
    """One KV head (`multi_query`), `num_kv_heads` or `n_head_kv` of them, or one per head."""
    heads = fields.heads("num_attention_heads")
    named = next((key for key in ("num_kv_heads", "n_head_kv") if fields.has(key)), None)
    grouped = fields.flag("new_decoder_architecture", default=fields.has("n_head_kv"))
    single = fields.flag("multi_query", default=True)
    if grouped:
        kv_heads = fields.heads(named, None) if named else heads
    else:
        kv_heads = 1 if single else heads
    bias = fields.flag("bias")
    parallel = fields.flag("parallel_attn", default=True)
    norms = 2 if grouped else 1
    if fields.has("num_ln_in_parallel_attn"):
        norms = fields.count("num_ln_in_parallel_attn", most=2)
    positions = fields.count("max_position_embeddings", FALCON_POSITIONS)
    family = replace(
        family,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norms=norms if parallel or grouped else 2,
    )
    return {"num_key_value_heads": kv_heads, "max_position_embeddings": positions}, family


def _chatglm(fields: Fields, family: Family) -> Adapted:
    """ChatGLM2, ChatGLM3, GLM-4: `multi_query_group_num` KV heads of `kv_channels` elements."""
    heads = fields.heads("num_attention_heads")
    groups = heads
    if fields.flag("multi_query_attention"):
        groups = fields.heads("multi_query_group_num")
    bias = fields.flag("add_bias_linear")
    family = replace(
        family,
        qkv_bias=bias or fields.flag("add_qkv_bias"),
        out_bias=bias,
        mlp_bias=bias,
    )
    return {"num_key_value_heads": groups, "head_dim": fields.count("kv_channels", 128)}, family


def _mpt(fields: Fields, family: Family) -> Adapted:
    """MPT: `attn_config` has the KV heads and says whether positions are learned."""
    heads, hidden = fields.heads("num_attention_heads"), fields.count("hidden_size")
    found: dict[str, Any] = {"num_key_value_heads": heads}
    alibi = False
    if fields.has("attn_config"):
        attention = fields.inner("attn_config")
        kind = attention.text("attn_type") or "multihead_attention"
        if kind == "multiquery_attention":
            found["num_key_value_heads"] = 1
        elif kind == "grouped_query_attention" or attention.has("kv_n_heads"):
            found["num_key_value_heads"] = attention.heads("kv_n_heads")
        elif kind != "multihead_attention":
            raise attention.unsupported("attn_type")
        alibi = attention.flag("alibi")
        if attention.flag("rope"):
            alibi = True
    ratio = fields.number("expansion_ratio", 4)
    found["intermediate_size"] = round(ratio * hidden)
    bias = not fields.flag("no_bias", default=True)
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    return found, replace(
        family,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_bias=bias,
        positions=0 if learned else None,
    )


def _dbrx(fields: Fields, family: Family) -> Adapted:
    """DBRX: KV heads in `attn_config`, experts in `ffn_config`."""
    attention, experts = fields.inner("attn_config"), fields.inner("ffn_config")
    return {
        "num_key_value_heads": attention.heads("kv_n_heads"),
        "num_local_experts": experts.count("moe_num_experts"),
        "num_experts_per_tok": experts.count("moe_top_k"),
        "intermediate_size": experts.count("ffn_hidden_size"),
    }, family


def _qwen(fields: Fields, family: Family) -> Adapted:
    """Qwen 1: `intermediate_size` counts both halves of the gated feed-forward."""
    return {"intermediate_size": fields.count("intermediate_size") // 2}, family


def _gpt_bigcode(fields: Fields, family: Family) -> Adapted:
    """One KV head unless `multi_query` is false."""
    heads = fields.heads("num_attention_heads")
    return {"num_key_value_heads": 1 if fields.flag("multi_query", default=True) else heads}, family


def _phi(fields: Fields, family: Family) -> Adapted:
    """Phi-1 and Phi-2; norms of queries and keys with `qk_layernorm` have a bias each."""
    if fields.flag("qk_layernorm"):
        raise fields.unsupported("qk_layernorm")
    return {}, family


def _stablelm(fields: Fields, family: Family) -> Adapted:
    """One norm per layer where attention and feed-forward are parallel; norms per head."""
    parallel = fields.flag("use_parallel_residual")
    norms = fields.flag("qk_layernorm")
    return {}, replace(family, norms=1 if parallel else 2, qk_norm=norms, qk_norm_heads=norms)


def _opt(fields: Fields, family: Family) -> Adapted:
    """OPT; narrower word embeddings (OPT-350M) are not covered."""
    if fields.has("word_embed_proj_dim"):
        width = fields.count("word_embed_proj_dim")
        if width != fields.count("hidden_size"):
            raise fields.unsupported("word_embed_proj_dim")
    return {}, family


def _lfm2(fields: Fields, family: Family) -> Adapted:
    """LFM2: `block_ff_dim` is cut to two thirds and rounded up to a multiple."""
    if fields.kind == "lfm2_moe":
        first = fields.count("num_dense_layers", 0, least=0)
        return {"first_k_dense_replace": first}, family
    key = "block_ff_dim" if fields.has("block_ff_dim") else "intermediate_size"
    width = fields.count(key)
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        width = int(fields.number("block_ffn_dim_multiplier", 1.0) * width)
        multiple = fields.count("block_multiple_of", 256)
        width = multiple * -(-width // multiple)
    return {"intermediate_size": width}, family


def _jamba(fields: Fields, family: Family) -> Adapted:
    """Jamba: experts where `expert_layer_period` and `expert_layer_offset` put them."""
    if fields.count("num_experts", 1, least=0) <= 1:
        return {"num_experts": None}, replace(family, experts="")
    return {}, family


def _granite_hybrid(fields: Fields, family: Family) -> Adapted:
    """Granite 4: without experts, the shared feed-forward is the only one."""
    shared = fields.count("shared_intermediate_size", 0, least=0)
    if fields.count("num_local_experts", 0, least=0) == 0:
        changed = {"intermediate_size": shared, "num_local_experts": None}
        return changed | {"shared_intermediate_size": None}, replace(family, experts="")
    return {}, family


def _olmo(fields: Fields, family: Family) -> Adapted:
    """OLMo: no feed-forward width is left out; `mlp_hidden_size` counts both halves."""
    if fields.has("intermediate_size"):
        return {}, family
    return {"intermediate_size": fields.count("mlp_hidden_size") // 2}, family


def _step(fields: Fields, family: Family) -> Adapted:
    """Step 3.5: `moe_layers_enum` lists the layers with experts."""
    listed = fields.text("moe_layers_enum")
    if listed is None:
        return {}, family
    layers = fields.layers()
    if len(listed) > 8 * layers:
        raise fields.error("moe_layers_enum lists more layers than there are")
    numbers = {part.strip() for part in listed.split(",")}
    known = {str(layer) for layer in range(layers)}
    if not numbers <= known:
        odd = sorted(numbers - known)[0]
        raise fields.error(f"moe_layers_enum names layer {shown(odd)} of {layers}")
    flags = [int(str(layer) in numbers) for layer in range(layers)]
    return {"moe_layer_freq": flags}, replace(family, experts="listed")


ADAPTERS: Mapping[str, Callable[[Fields, Family], Adapted]] = {
    "falcon": _falcon,
    "refinedweb": _falcon,
    "refinedwebmodel": _falcon,
    "chatglm": _chatglm,
    "mpt": _mpt,
    "dbrx": _dbrx,
    "qwen": _qwen,
    "gpt_bigcode": _gpt_bigcode,
    "phi": _phi,
    "stablelm": _stablelm,
    "opt": _opt,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "jamba": _jamba,
    "granitemoehybrid": _granite_hybrid,
    "olmo": _olmo,
    "step3p5": _step,
    "step3p7": _step,
}
