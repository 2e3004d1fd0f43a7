"""config.json of the Hugging Face Hub -> Model, for the families the catalogue carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.catalog.model import Attention, GqaAttention, LayerGroup, MlaAttention, Model, Moe
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
)
SLIDING_EVERYWHERE = ("mistral", "mixtral")
"""Families all of whose layers have the window that the config states."""


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
        intermediate=fields.count("ffn_dim" if opt else "intermediate_size"),
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

    def windows(self, kind: str) -> list[int | None]:
        """By layer, the tokens it attends to, None for all.

        `InputError` for layers that are neither full nor sliding-window attention.
        """
        config, layers = self._config, self.count("num_hidden_layers")
        window = config.get("sliding_window")
        if not window or not config.get("use_sliding_window", True):
            return [None] * layers
        self.count("sliding_window")
        if kind in SLIDING_EVERYWHERE:
            return [window] * layers
        if kind != "gemma3_text":
            raise InputError(
                f"sliding_window {window!r} is not supported for model_type {kind!r}",
                where=self._source,
                fix="Use a model whose layers all attend to the whole sequence",
            )
        types = config.get("layer_types")
        if types is None:
            every = self.count("sliding_window_pattern")
            return [None if (layer + 1) % every == 0 else window for layer in range(layers)]
        return [self._window_of(kind, window) for kind in types]

    def _window_of(self, layer_type: Any, window: int) -> int | None:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise InputError(
                f"layer type {layer_type!r} is not covered",
                where=self._source,
                fix="Use a model of full_attention and sliding_attention layers",
            )
        return window if layer_type == "sliding_attention" else None

    def weight_dtype(self) -> str:
        """Element type of the large matrices."""
        quantization = self._config.get("quantization_config")
        if isinstance(quantization, Mapping):
            method = quantization.get("quant_method")
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
    counts: dict[int | None, int] = {}
    for window in fields.windows(kind):
        counts[window] = counts.get(window, 0) + 1
    return tuple(LayerGroup(layers, attention, window) for window, layers in counts.items())


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
        qkv_bias=kind in ("qwen2", "opt"),
        out_bias=kind == "opt",
        qk_norm=kind in ("qwen3", "gemma3_text"),
    )


def _moe(fields: _Fields, kind: str) -> Moe | None:
    if kind == "mixtral":
        return Moe(
            experts=fields.count("num_local_experts"),
            experts_per_token=fields.count("num_experts_per_tok"),
            intermediate=fields.count("intermediate_size"),
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
