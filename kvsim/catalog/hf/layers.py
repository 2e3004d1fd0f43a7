"""Attention of each layer, and what it keeps, for families with one shape of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvsim.catalog.hf.families import Family, Switch
from kvsim.catalog.hf.fields import Fields, shown
from kvsim.catalog.model import GqaAttention, LayerGroup, LayerKind, MlaAttention
from kvsim.catalog.states import GatedDeltaNet, StateAttention

LAYER_TYPES: Mapping[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "conv": "state",
    "mamba": "state",
    "deepseek_sparse_attention": "full",
}
LINEAR_TYPES = ("linear_attention", "full_attention")
INDEX_OFFSET = 3


def switch(fields: Fields, value: Switch) -> bool:
    """Whether a property of the family holds for this file."""
    return value if isinstance(value, bool) else fields.flag(value[0], default=value[1])


def gqa(
    fields: Fields,
    family: Family,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
) -> GqaAttention:
    """Attention with KV heads; the file's numbers where none are given."""
    heads = heads or fields.heads("num_attention_heads")
    usual = 1 if family.multi_query else heads
    kv_heads = kv_heads or fields.heads("num_key_value_heads", usual)
    if head_dim is None:
        head_dim = _head_dim(fields, family, heads)
    if heads % kv_heads:
        raise fields.error(f"num_attention_heads {heads} is no multiple of {kv_heads} KV heads")
    return GqaAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim or head_dim,
        qkv_bias=switch(fields, family.qkv_bias),
        out_bias=switch(fields, family.out_bias),
        qk_norm=switch(fields, family.qk_norm),
        qk_norm_heads=family.qk_norm_heads,
        out_gate=family.out_gate and fields.flag("attn_output_gate", default=True),
    )


def _head_dim(fields: Fields, family: Family, heads: int) -> int:
    hidden = fields.count("hidden_size")
    if not fields.has("head_dim") and family.head_dim is None and hidden % heads:
        raise fields.error(
            f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and head_dim is"
            " missing"
        )
    return fields.count("head_dim", family.head_dim or max(1, hidden // heads))


def mla(fields: Fields) -> MlaAttention:
    """Latent attention; no `q_lora_rank` means that queries are projected in one step."""
    indexed = fields.has("index_head_dim")
    return MlaAttention(
        heads=fields.heads("num_attention_heads"),
        q_lora_rank=fields.count("q_lora_rank", 0, least=0),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
        index_heads=fields.heads("index_n_heads") if indexed else 0,
        index_head_dim=fields.count("index_head_dim") if indexed else 0,
        out_gate=fields.flag("mla_use_output_gate"),
    )


def latent_layers(fields: Fields, layers: int) -> list[LayerGroup]:
    """Layers of latent attention, of which some share the tokens another one's index selects."""
    listed_kinds(fields, layers, default="full", known=("full",))
    own = mla(fields)
    shared = replace(own, index_heads=0, index_head_dim=0)
    return [
        LayerGroup(1, own if indexed else shared) for indexed in _indexed_layers(fields, layers)
    ]


def _indexed_layers(fields: Fields, layers: int) -> list[bool]:
    if fields.get("indexer_types") is not None:
        types = fields.items("indexer_types", layers)
        for one in types:
            if one not in ("full", "shared"):
                raise fields.error(f"indexer type {shown(one)} is not covered")
        return [one == "full" for one in types]
    every = fields.count("index_topk_freq", 1)
    offset = fields.count("index_skip_topk_offset", INDEX_OFFSET, least=0)
    return [max(layer - offset + 1, 0) % every == 0 for layer in range(layers)]


def listed_kinds(
    fields: Fields, layers: int, *, default: LayerKind | None, known: Sequence[LayerKind]
) -> list[LayerKind]:
    """`layer_types`, each of which is `known`; without it all layers are the default."""
    types = fields.get("layer_types")
    if types is None and default is not None:
        return [default] * layers
    if not isinstance(types, list | tuple):
        raise fields.error(f"layer_types must be a list, got {shown(types)}")
    for one in types:
        if not isinstance(one, str) or LAYER_TYPES.get(one) not in known:
            names = [name for name, kind in LAYER_TYPES.items() if kind in known]
            raise fields.error(
                f"layer type {shown(one)} is not covered", f"Use a model of {', '.join(names)}"
            )
    return [LAYER_TYPES[one] for one in fields.items("layer_types", layers)]


def layer_kinds(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    """What each layer keeps by the family's rule."""
    return RULES[family.windows](fields, family, layers)


def _none(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    if fields.get("use_sliding_window") is False:
        fields.get("sliding_window")
    return listed_kinds(fields, layers, default="full", known=("full",))


def _windowed(fields: Fields) -> bool:
    """Whether there is a window at all."""
    if not fields.flag("use_sliding_window", default=True):
        fields.get("sliding_window")
        return False
    if fields.get("sliding_window") is None:
        return False
    fields.count("sliding_window")
    return True


def _listed_or(fields: Fields, layers: int, default: Callable[[int], bool]) -> list[LayerKind]:
    """`layer_types`, or sliding where `default` says so; all full without a window."""
    if fields.get("layer_types") is not None:
        kinds = listed_kinds(fields, layers, default=None, known=("full", "sliding"))
        if "sliding" in kinds:
            fields.count("sliding_window")
        return kinds
    return ["sliding" if default(layer) else "full" for layer in range(layers)]


def _all(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    if not _windowed(fields):
        return listed_kinds(fields, layers, default="full", known=("full",))
    return _listed_or(fields, layers, lambda layer: True)


def _from_layer(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    """With `use_sliding_window`: the layers from `max_window_layers` on have the window."""
    if not fields.flag("use_sliding_window") or not _windowed(fields):
        fields.get("sliding_window")
        return listed_kinds(fields, layers, default="full", known=("full",))
    first = fields.count("max_window_layers", layers, least=0)
    return _listed_or(fields, layers, lambda layer: layer >= first)


def _alternate(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    if not _windowed(fields):
        return listed_kinds(fields, layers, default="full", known=("full",))
    return _listed_or(fields, layers, lambda layer: layer % 2 == 0)


def _pattern(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    """One full layer in `sliding_window_pattern`, or a pattern of L (sliding) and G (full)."""
    if fields.get("hybrid_layer_pattern") is not None:
        fields.count("sliding_window")
        flags = fields.counts("hybrid_layer_pattern", layers)
        return ["sliding" if one else "full" for one in flags]
    if not _windowed(fields):
        return listed_kinds(fields, layers, default="full", known=("full",))
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise fields.error(f"sliding_window_pattern {shown(pattern)} is not covered")
        return _listed_or(fields, layers, lambda layer: pattern[layer % len(pattern)] == "L")
    every = family.window_every or None
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        if fields.get(key) is not None:
            every = fields.count(key)
            break
    if every is None and fields.get("layer_types") is None:
        every = fields.count("sliding_window_pattern")
    return _listed_or(fields, layers, lambda layer: (layer + 1) % (every or 1) != 0)


def _chunks(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    """Llama 4: layers with rotary embedding attend to their chunk, the others to everything."""
    if not fields.has("attention_chunk_size"):
        fields.get("no_rope_layers")
        return ["full"] * layers
    if fields.get("layer_types") is not None:
        return listed_kinds(fields, layers, default=None, known=("full", "chunked"))
    every = fields.count("no_rope_layer_interval", family.window_every)
    if fields.get("no_rope_layers"):
        rotary = fields.counts("no_rope_layers", layers)
    else:
        rotary = [(layer + 1) % every for layer in range(layers)]
    return ["chunked" if one else "full" for one in rotary]


def _linear(fields: Fields, family: Family, layers: int) -> list[LayerKind]:
    """`layer_types`, or one full layer in `full_attention_interval`."""
    fields.get("full_attention_interval")
    if fields.get("layer_types") is None and fields.has("full_attention_interval"):
        every = fields.count("full_attention_interval")
        return ["state" if (layer + 1) % every else "full" for layer in range(layers)]
    types = fields.get("layer_types")
    if isinstance(types, list):
        odd = [one for one in types if isinstance(one, str) and one not in LINEAR_TYPES]
        if odd:
            raise fields.error(f"layer type {shown(odd[0])} is not covered")
    return listed_kinds(fields, layers, default=None, known=("full", "state"))


RULES: Mapping[str, Callable[[Fields, Family, int], list[LayerKind]]] = {
    "none": _none,
    "all": _all,
    "from_layer": _from_layer,
    "alternate": _alternate,
    "pattern": _pattern,
    "gpt_oss": _alternate,
    "chunks": _chunks,
    "linear": _linear,
}


def placed(
    fields: Fields,
    kinds: Sequence[LayerKind],
    attention: GqaAttention,
    *,
    sliding: GqaAttention | None = None,
    state: StateAttention | None = None,
) -> list[LayerGroup]:
    """One group per layer: its kind's attention, with the window or chunk of the file."""
    groups: dict[LayerKind, LayerGroup] = {"full": LayerGroup(1, attention)}
    if "sliding" in kinds:
        groups["sliding"] = LayerGroup(
            1, sliding or attention, window=fields.count("sliding_window")
        )
    if "chunked" in kinds:
        groups["chunked"] = LayerGroup(1, attention, chunk=fields.count("attention_chunk_size"))
    if state is not None:
        groups["state"] = LayerGroup(1, state)
    return [groups[kind] for kind in kinds]


def gated_delta_net(fields: Fields) -> GatedDeltaNet:
    """Linear attention of Qwen3-Next and Qwen3.5."""
    return GatedDeltaNet(
        key_heads=fields.heads("linear_num_key_heads"),
        value_heads=fields.heads("linear_num_value_heads"),
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
        state_dtype_bytes=state_dtype_bytes(fields),
    )


def state_dtype_bytes(fields: Fields) -> int:
    """Bytes per element of a state: 4 where the file asks for 32 bits, else 2."""
    for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        dtype = fields.text(key)
        if dtype is not None:
            if dtype not in ("float32", "bfloat16", "float16", "auto"):
                raise fields.error(f"{key} {shown(dtype)} is not known")
            return 4 if dtype == "float32" else 2
    return 2
