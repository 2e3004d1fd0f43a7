"""Where every number of a model, a GPU or a budget comes from, as rows for a table."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.catalog.budget import Budget
from kvsim.catalog.compressed_bytes import compresses, kept, kept_bytes
from kvsim.catalog.gpu import GIB, Gpu
from kvsim.catalog.kv import (
    kv_bytes_per_token,
    layer_bytes_per_token,
    naive_kv_bytes_per_token,
)
from kvsim.catalog.kv_layers import (
    LayerKv,
    group_layers,
    hybrid_bytes,
    layer_kvs,
    padding_layers,
    unified_bytes,
    unified_waste,
)
from kvsim.catalog.model import (
    CompressedAttention,
    GqaAttention,
    MlaAttention,
    Model,
    Moe,
    TokenAttention,
)
from kvsim.catalog.states import StateAttention
from kvsim.catalog.weights import (
    active_parameters,
    dense_layers,
    moe_layers,
    parameters,
    weight_bytes,
)


class Fact(NamedTuple):
    """One explained number."""

    name: str
    value: int | float | str
    unit: str
    source: str
    """A formula, a document, or both."""


def explain_model(model: Model, *, tp: int = 1, kv_dtype_bytes: int | None = None) -> list[Fact]:
    """Shape, parameters, weights and KV bytes of a model."""
    config = model.source
    published = f"; published: {model.published_size} ({model.published_size_source})"
    facts = [
        Fact("layers", model.layers, "layers", f"{config}: num_hidden_layers"),
        Fact("hidden", model.hidden, "elements", f"{config}: hidden_size"),
        *_attention_facts(model.attention, config),
        *_limit_facts(model, tp),
        Fact("intermediate", model.intermediate, "elements", f"{config}: intermediate size"),
        Fact("vocab", model.vocab, "tokens", f"{config}: vocab_size"),
        Fact("max_position", model.max_position, "tokens", f"{config}: max_position_embeddings"),
        Fact("tied_embeddings", str(model.tied_embeddings), "", f"{config}: tie_word_embeddings"),
        Fact("weight_dtype", model.weight_dtype, "", f"{config}: torch_dtype, quantization_config"),
    ]
    if model.moe is not None:
        facts += _moe_facts(model, model.moe)
        facts.append(Fact("expert_dtype", model.expert_dtype, "", f"{config}: quantization_config"))
        facts.append(
            Fact("active_parameters", active_parameters(model), "parameters", "per token, by shape")
        )
    facts += [
        Fact("parameters", parameters(model), "parameters", f"by shape{published}"),
        Fact("weights", weight_bytes(model, tp=tp), "bytes/GPU", f"by shape, tp {tp}"),
    ]
    if model.encoder is not None:
        size = model.encoder.elements
        facts.append(Fact("encoder", size, "parameters", f"{config}: vision_config, audio_config"))
    facts += [Fact("assumption", text, "", config) for text in model.assumptions]
    if compresses(model):
        return facts + _compressed_facts(model, kv_dtype_bytes or model.kv_dtype_bytes)
    facts += [
        Fact(
            "kv_bytes_per_token",
            kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes),
            "bytes/token/GPU",
            f"{_kv_formula(model)}, tp {tp}",
        ),
        Fact(
            "naive_kv_bytes_per_token",
            naive_kv_bytes_per_token(model, kv_dtype_bytes=kv_dtype_bytes),
            "bytes/token",
            f"{_naive_formula(model)}: charges every query head; often quoted, wrong",
        ),
    ]
    layers = layer_kvs(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
    mixed = len(layers) > 1 or any(layer.state_bytes for layer in layers)
    return facts + (_layer_facts(model, layers) if mixed else [])


def _compressed_facts(model: Model, element_bytes: int) -> list[Fact]:
    """What a request of full length keeps where entries stand for several tokens."""
    tokens = model.max_position
    at = f"one request of {tokens:,} tokens, {8 * element_bytes}-bit entries"
    facts = [
        Fact(
            f"kv_request.{one.part}" + (f".ratio_{one.ratio}" if one.ratio else ""),
            one.bytes,
            "bytes/request/GPU",
            f"{at}: {one.formula()}, not divided by tp",
        )
        for one in kept(model, tokens, element_bytes)
    ]
    total = kept_bytes(model, tokens, element_bytes)
    return [
        *facts,
        Fact("kv_request.sum", total, "bytes/request/GPU", f"{at}: sum of the above"),
        Fact(
            f"kv_bytes_per_token.at_{tokens}",
            round(total / tokens, 1),
            "bytes/token/GPU",
            f"{at}: the sum / {tokens:,}; shorter requests take more per token",
        ),
    ]


def _counted_layers(model: Model) -> str:
    kept = sum(group.layers for group in model.groups if group.keeps_text)
    return "layers" if kept == model.layers else f"{kept} layers that keep tokens"


def _kv_formula(model: Model) -> str:
    """How the bytes per token come about; a sum where layers have different heads."""
    kept = [group for group in model.groups if group.keeps_text]
    heads = {group.attention for group in kept}
    attention = model.attention
    if isinstance(attention, MlaAttention):
        indexed = sum(group.layers for group in kept if layer_bytes_per_token(group, 1, 0))
        index = f" + {indexed} layers * {layer_bytes_per_token(kept[0], 1, 0)} bytes of index keys"
        formula = f"{_counted_layers(model)} * (kv_lora_rank + qk_rope_head_dim) * bytes"
        return f"{formula}{index if indexed else ''}, not divided by tp"
    if len(heads) == 1 and attention.head_dim == attention.v_head_dim and not attention.index_bytes:
        return f"{_counted_layers(model)} * max(1, kv_heads / tp) * 2 * head_dim * bytes"
    terms = []
    for group in kept:
        one = group.attention
        if isinstance(one, GqaAttention):
            index = f" + {group.layers} * {one.index_bytes} bytes" if one.index_bytes else ""
            width = f"({one.head_dim} + {one.v_head_dim})"
            terms.append(f"{group.layers} * max(1, {one.kv_heads} / tp) * {width} * bytes{index}")
    return " + ".join(terms)


def _naive_formula(model: Model) -> str:
    attention, counted = model.attention, _counted_layers(model)
    if attention.kind == "mla":
        return f"{counted} * heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim) * bytes"
    kept = {group.attention for group in model.groups if group.keeps_text}
    if len(kept) == 1 and attention.head_dim == attention.v_head_dim:
        return f"{counted} * heads * 2 * head_dim * bytes"
    return f"{counted} * query heads * (key + value elements) * bytes, each with its own heads"


def _limit_facts(model: Model, tp: int) -> list[Fact]:
    """What layers keep that do not keep every token."""
    facts = []
    for group in model.groups:
        where = f"{model.source}: {group.layers} layers"
        if group.window is not None:
            facts.append(Fact("sliding_window", group.window, "tokens", where))
        if group.chunk is not None:
            facts.append(Fact("attention_chunk", group.chunk, "tokens", where))
        state = group.attention if group.beside is None else group.beside
        if isinstance(state, StateAttention) and group.kind != "none":
            facts.append(
                Fact(
                    "state_bytes",
                    state.state_bytes(tp),
                    "bytes/layer/request/GPU",
                    f"{where} of {state.state_formula(tp)}",
                )
            )
        if isinstance(group.attention, GqaAttention | MlaAttention) and group.attention.index_bytes:
            facts.append(
                Fact("index_bytes", group.attention.index_bytes, "bytes/token/layer/GPU", where)
            )
    return facts


def _layer_facts(model: Model, layers: list[LayerKv]) -> list[Fact]:
    """What a request of full length takes where layers keep different tokens."""
    tokens = model.max_position
    names = [f"{layer.kind} {layer.limit_tokens or ''}".strip() for layer in layers]
    names = [
        name if names.count(name) == 1 else f"{name}, {layer.bytes_per_token} bytes"
        for name, layer in zip(names, layers, strict=True)
    ]
    counts: dict[str, int] = {}
    for name, layer in zip(names, layers, strict=True):
        counts[name] = counts.get(name, 0) + layer.layers
    size = group_layers(counts, "max_if_close")
    hybrid, unified = hybrid_bytes(layers, tokens), unified_bytes(layers, tokens)
    waste = f"{100 * unified_waste(layers, tokens):.2f} % of it is never read"
    at = f"one request of {tokens:,} tokens"
    facts = [
        Fact(
            f"kv_request.{name}",
            layer.request_bytes(tokens),
            "bytes/request/GPU",
            f"{at}: {layer.layers} layers * {_kept(layer, tokens)}",
        )
        for name, layer in zip(names, layers, strict=True)
    ]
    facts.append(Fact("kv_request.hybrid", hybrid, "bytes/request/GPU", f"{at}: sum of the above"))
    if not any(layer.state_bytes for layer in layers):
        facts.append(
            Fact(
                "kv_request.unified",
                unified,
                "bytes/request/GPU",
                f"{at}, every layer with every token (vLLM before 0.10): {waste}",
            )
        )
    return [
        *facts,
        Fact(
            "kv_padding_layers",
            sum(padding_layers(counts, size).values()),
            "layers",
            f"groups of {size} layers each; empty layers take as much of the pool as others",
        ),
    ]


def _kept(layer: LayerKv, tokens: int) -> str:
    """What one layer keeps of a request."""
    state = f"{layer.state_bytes} bytes of state"
    kept = f"{layer.bytes_per_token} bytes * {layer.tokens_kept(tokens):,} tokens kept"
    if not layer.state_bytes:
        return kept
    return f"({kept} + {state})" if layer.bytes_per_token else state


def _attention_facts(attention: TokenAttention, config: str) -> list[Fact]:
    facts = [
        Fact("attention", attention.kind, "", config),
        Fact("heads", attention.heads, "heads", f"{config}: num_attention_heads"),
    ]
    if isinstance(attention, GqaAttention):
        return [
            *facts,
            Fact("kv_heads", attention.kv_heads, "heads", f"{config}: num_key_value_heads"),
            Fact(
                "head_dim",
                attention.head_dim,
                "elements",
                f"{config}: head_dim, else hidden_size / num_attention_heads",
            ),
        ]
    if isinstance(attention, CompressedAttention):
        names: tuple[str, ...] = ("head_dim", "q_lora_rank", "o_groups", "o_lora_rank")
    else:
        names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        names += ("v_head_dim",)
    return [
        *facts,
        *(Fact(name, getattr(attention, name), "elements", f"{config}: {name}") for name in names),
    ]


def _moe_facts(model: Model, moe: Moe) -> list[Fact]:
    config = model.source
    return [
        Fact("experts", moe.experts, "experts", f"{config}: number of routed experts"),
        Fact("experts_per_token", moe.experts_per_token, "experts", f"{config}: per token"),
        Fact("shared_experts", moe.shared_experts, "experts", f"{config}: n_shared_experts"),
        Fact("expert_intermediate", moe.intermediate, "elements", f"{config}: per expert"),
        Fact("moe_layers", moe_layers(model), "layers", f"{config}: layers with experts"),
        Fact("dense_layers", dense_layers(model), "layers", f"{config}: dense feed-forwards"),
    ]


def explain_gpu(gpu: Gpu) -> list[Fact]:
    """Datasheet, reported memory, and every fitted constant of the calibrated clock."""
    sheet = gpu.datasheet_source
    facts = [
        Fact("full_name", gpu.full_name, "", sheet),
        Fact("memory", gpu.memory_bytes, "bytes", sheet),
        Fact(
            "reported_memory",
            round(gpu.reported_bytes / GIB, 3),
            "GiB",
            f"middle of {gpu.reported_gib_low:g}..{gpu.reported_gib_high:g}; {gpu.reported_source}",
        ),
        Fact("memory_bw", gpu.memory_bw, "B/s", sheet),
        *(Fact(f"flops.{dtype}", value, "FLOP/s", sheet) for dtype, value in gpu.flops.items()),
        Fact("link_bw", gpu.link_bw, "B/s", sheet),
        Fact("pcie_bw", gpu.pcie_bw, "B/s", sheet),
        Fact("measured", str(gpu.measured), "", gpu.fit_source),
    ]
    return facts + _fit_facts(gpu)


def _fit_facts(gpu: Gpu) -> list[Fact]:
    fit = gpu.fit
    groups: list[tuple[str, object]] = [
        *((f"gemm.{key}", value) for key, value in fit.gemm.items()),
        *((f"attn_decode.{key}", value) for key, value in fit.attn_decode.items()),
        ("attn_prefill.bf16", fit.attn_prefill),
        *((f"moe.{key}", value) for key, value in fit.moe.items()),
        *((f"allreduce.{tp}", value) for tp, value in fit.allreduce.items()),
        ("small", fit.small),
    ]
    facts = []
    for operator, constants in groups:
        for field in constants.__slots__:  # type: ignore[attr-defined]
            value = getattr(constants, field)
            facts.append(
                Fact(f"{operator}.{field}", value, _unit(field), _fit_source(gpu, operator))
            )
    facts.append(Fact("mixed_kappa", fit.mixed_kappa, "", "class value"))
    return facts


def _unit(field: str) -> str:
    if field.endswith("_s"):
        return "s"
    return {"bus_bw": "B/s", "fill_rows": "rows", "pad_rows": "rows"}.get(field, "")


def _fit_source(gpu: Gpu, operator: str) -> str:
    kind, _, rest = operator.partition(".")
    error = gpu.operator_error_percent.get("attn_prefill" if kind == "attn_prefill" else operator)
    if kind == "allreduce":
        error = gpu.operator_error_percent.get(kind, {}).get(rest)
    if error:
        return f"fitted here; error median {error['median']} %, p90 {error['p90']} %"
    if kind == "small":
        return "class value"
    assumed = gpu.assumed_error_percent or 40
    return f"class default, {assumed} % assumed"


def explain_budget(budget: Budget) -> list[Fact]:
    """The terms of a budget with their 80 % intervals, then the blocks."""
    facts = []
    for term in budget.terms():
        exact = term.low == term.high
        interval = "" if exact else f" [{term.low / GIB:.2f}..{term.high / GIB:.2f} GiB, 80 %]"
        facts.append(
            Fact(term.name, term.bytes, "bytes", f"{term.formula}{interval}; {term.source}")
        )
    facts.append(
        Fact(
            "block_bytes",
            budget.block_bytes,
            "bytes",
            "block_size * bytes per token, of one group of layers where windows differ",
        )
    )
    facts.append(
        Fact(
            "num_blocks",
            budget.num_blocks,
            "blocks",
            f"kv_pool // block_bytes [{budget.num_blocks_low}..{budget.num_blocks_high}, 80 %]",
        )
    )
    return facts
