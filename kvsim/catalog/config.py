"""config.json of the Hugging Face Hub -> Model, for the families the catalogue carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.catalog.model import (
    Attention,
    GatedDeltaNet,
    GqaAttention,
    LayerGroup,
    LayerKind,
    MlaAttention,
    Model,
    Moe,
)
from kvsim.errors import InputError

LARGEST_FIELD = 10_000_000
TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
KNOWN_TYPES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "opt",
    "deepseek_v3",
    "gemma3_text",
    "llama4_text",
    "qwen3_5_text",
    "gpt_oss",
)
SLIDING_EVERYWHERE = ("mistral", "mixtral")
"""Families all of whose layers have the window that the config states."""
LAYER_TYPES: Mapping[str, LayerKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "state",
}
GLOBAL_EVERY = 4
"""Llama 4, where its config lists nothing (`no_rope_layers`): each fourth layer has no rotary
embedding and attends to everything, the others to their chunk."""


_DENSE_WIDTH = {"opt": "ffn_dim", "llama4_text": "intermediate_size_mlp"}
"""The field with the elements of a dense feed-forward, where it has another name."""


def model_from_config(config: Mapping[str, Any], *, name: str, source: str) -> Model:
    """The model a config.json describes.

    Raises `InputError` for a family, a field or a value that is not understood.
    """
    kind = config.get("model_type")
    if kind not in KNOWN_TYPES:
        known = ", ".join(KNOWN_TYPES)
        raise InputError(f"model_type {kind!r} is not known", where=source, fix=f"Known: {known}")
    fields = _Fields(config, source)
    opt = kind == "opt"
    gemma = kind == "gemma3_text"
    return Model(
        name=name,
        source=source,
        groups=_groups(fields, str(kind)),
        hidden=fields.count("hidden_size"),
        intermediate=fields.count(_DENSE_WIDTH.get(str(kind), "intermediate_size")),
        vocab=fields.count("vocab_size"),
        max_position=fields.count("max_position_embeddings"),
        weight_dtype=fields.weight_dtype(),
        kv_dtype_bytes=4 if fields.dtype() == "float32" else 2,
        tied_embeddings=bool(config.get("tie_word_embeddings", opt or gemma)),
        gated_mlp=not opt,
        mlp_bias=opt,
        norm_bias=opt,
        norms_per_layer=4 if gemma else 2,
        # OPT's position table has two rows more than positions.
        learned_positions=fields.count("max_position_embeddings") + 2 if opt else 0,
        moe=_moe(fields, str(kind)),
    )


class _Fields:
    """Checked access to the numbers of one config.json."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config = config
        self._source = source

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number in 1..LARGEST_FIELD."""
        value = self._config.get(key, default)
        if type(value) is not int or not 1 <= value <= LARGEST_FIELD:
            raise InputError(
                f"{key} must be a whole number in 1..{LARGEST_FIELD}, got {value!r}",
                where=self._source,
                fix="Take the value from the model's own config.json",
            )
        return value

    def text(self, key: str) -> str | None:
        """A word; None where it is missing."""
        value = self._config.get(key)
        return value if isinstance(value, str) else None

    def layer_kinds(self, kind: str) -> list[LayerKind]:
        """What each layer keeps.

        `InputError` for layers that are none of full, sliding-window, chunked and linear attention.
        """
        config, layers = self._config, self.count("num_hidden_layers")
        if kind == "llama4_text":
            rotary = config.get("no_rope_layers") or [
                (layer + 1) % GLOBAL_EVERY for layer in range(layers)
            ]
            return ["chunked" if one else "full" for one in rotary]
        if kind == "qwen3_5_text":
            return self._listed_kinds("full", "state")
        window = config.get("sliding_window")
        if not window or not config.get("use_sliding_window", True):
            return ["full"] * layers
        self.count("sliding_window")
        if kind in SLIDING_EVERYWHERE:
            return ["sliding"] * layers
        if kind not in ("gemma3_text", "gpt_oss"):
            raise InputError(
                f"sliding_window {window!r} is not supported for model_type {kind!r}",
                where=self._source,
                fix="Use a model whose layers all attend to the whole sequence",
            )
        if config.get("layer_types") is None:
            every = self.count("sliding_window_pattern")
            return ["full" if (layer + 1) % every == 0 else "sliding" for layer in range(layers)]
        return self._listed_kinds("full", "sliding")

    def _listed_kinds(self, *known: LayerKind) -> list[LayerKind]:
        """`layer_types`, where each is one of `known`."""
        names = {name: kind for name, kind in LAYER_TYPES.items() if kind in known}
        types = self._config.get("layer_types")
        if not isinstance(types, list):
            raise InputError(
                f"layer_types must be a list, got {types!r}",
                where=self._source,
                fix="Take it from the model's own config.json",
            )
        for layer_type in types:
            if not isinstance(layer_type, str) or layer_type not in names:
                raise InputError(
                    f"layer type {layer_type!r} is not covered",
                    where=self._source,
                    fix=f"Use a model of {' and '.join(names)} layers",
                )
        return [names[layer_type] for layer_type in types]

    def expert_dtype(self) -> str | None:
        """Element type of the experts where it is not that of the other matrices."""
        quantization = self._config.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        return "mxfp4" if method == "mxfp4" else None

    def weight_dtype(self) -> str:
        """Element type of the large matrices."""
        quantization = self._config.get("quantization_config")
        if isinstance(quantization, Mapping):
            method = quantization.get("quant_method")
            if method == "mxfp4" and self._config.get("model_type") == "gpt_oss":
                return "bf16"  # the experts alone have 4 bits
            if method != "fp8":
                raise InputError(
                    f"quant_method {method!r} is not supported yet",
                    where=self._source,
                    fix="Supported: fp8, or no quantization_config",
                )
            return "fp8"
        dtype = self.dtype()
        if dtype not in TORCH_DTYPES:
            known = ", ".join(TORCH_DTYPES)
            raise InputError(
                f"torch_dtype {dtype!r} is not known", where=self._source, fix=f"Known: {known}"
            )
        return TORCH_DTYPES[dtype]

    def dtype(self) -> Any:
        """`torch_dtype`, which newer files call `dtype`. `InputError` when they contradict."""
        old, new = (self._config.get(key) for key in ("torch_dtype", "dtype"))
        if old is not None and new is not None and old != new:
            raise InputError(
                f"torch_dtype {old!r} contradicts dtype {new!r}",
                where=self._source,
                fix="Keep one of them",
            )
        return new if old is None else old


def _groups(fields: _Fields, kind: str) -> tuple[LayerGroup, ...]:
    attention = _attention(fields, kind)
    counts: dict[LayerKind, int] = {}
    for layer in fields.layer_kinds(kind):
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(_group(fields, layer, count, attention) for layer, count in counts.items())


def _group(fields: _Fields, kind: LayerKind, layers: int, attention: Attention) -> LayerGroup:
    if kind == "sliding":
        return LayerGroup(layers, attention, window=fields.count("sliding_window"))
    if kind == "chunked":
        return LayerGroup(layers, attention, chunk=fields.count("attention_chunk_size"))
    return LayerGroup(layers, _linear_attention(fields) if kind == "state" else attention)


def _linear_attention(fields: _Fields) -> GatedDeltaNet:
    return GatedDeltaNet(
        key_heads=fields.count("linear_num_key_heads"),
        value_heads=fields.count("linear_num_value_heads"),
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
        state_dtype_bytes=4 if fields.text("mamba_ssm_dtype") == "float32" else 2,
    )


def _attention(fields: _Fields, kind: str) -> Attention:
    heads = fields.count("num_attention_heads")
    if kind == "deepseek_v3":
        return MlaAttention(
            heads=heads,
            q_lora_rank=fields.count("q_lora_rank"),
            kv_lora_rank=fields.count("kv_lora_rank"),
            qk_nope_head_dim=fields.count("qk_nope_head_dim"),
            qk_rope_head_dim=fields.count("qk_rope_head_dim"),
            v_head_dim=fields.count("v_head_dim"),
        )
    head_dim = fields.count("head_dim", fields.count("hidden_size") // heads)
    return GqaAttention(
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=kind in ("qwen2", "opt", "gpt_oss"),
        out_bias=kind in ("opt", "gpt_oss"),
        qk_norm=kind in ("qwen3", "gemma3_text", "qwen3_5_text"),
        out_gate=kind == "qwen3_5_text",
    )


def _moe(fields: _Fields, kind: str) -> Moe | None:
    if kind == "mixtral":
        return Moe(
            experts=fields.count("num_local_experts"),
            experts_per_token=fields.count("num_experts_per_tok"),
            intermediate=fields.count("intermediate_size"),
        )
    if kind == "gpt_oss":
        return Moe(
            experts=fields.count("num_local_experts"),
            experts_per_token=fields.count("num_experts_per_tok"),
            intermediate=fields.count("intermediate_size"),
            routing_bias=True,
            expert_bias=True,
            weight_dtype=fields.expert_dtype(),
        )
    if kind == "llama4_text":
        layers, every = fields.count("num_hidden_layers"), fields.count("interleave_moe_layer_step")
        return Moe(
            experts=fields.count("num_local_experts"),
            experts_per_token=fields.count("num_experts_per_tok"),
            intermediate=fields.count("intermediate_size"),
            shared_experts=1,
            dense_layers=layers - layers // every,
        )
    if kind == "deepseek_v3":
        return Moe(
            experts=fields.count("n_routed_experts"),
            experts_per_token=fields.count("num_experts_per_tok"),
            intermediate=fields.count("moe_intermediate_size"),
            shared_experts=fields.count("n_shared_experts"),
            dense_layers=fields.count("first_k_dense_replace"),
            routing_bias=True,
        )
    return None
