"""The part of a config.json that describes the language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.catalog.hf.fields import check_structure, shown
from kvsim.errors import InputError

INNER = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
    "text_model_config",
)
"""Where models with several parts keep the language model's configuration."""
INHERITED = ("quantization_config", "compression_config", "torch_dtype", "dtype")
LARGEST_INNER = 4
ARCHITECTURES: Mapping[str, str] = {
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "GPT2LMHeadModel": "gpt2",
    "OPTForCausalLM": "opt",
}
"""model_type where a file names only its architecture."""
OUTER_TYPES: Mapping[str, str] = {
    "llava": "llama",
    "llava_next": "llama",
    "paligemma": "gemma",
    "minimax_m3_vl": "minimax_m3",
    "kimi_k25": "kimi_k2",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
"""model_type of the language model that a file with several parts leaves out."""


def language_config(config: Mapping[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """The language model's object, completed by what the outer object says, and its model_type.

    Quantization and element types of the outer object hold unless the inner one has its own;
    `tie_word_embeddings` of the outer one comes first, as in the models' loaders.
    """
    check_structure(config, source)
    found = dict(config)
    outer_type = found.get("model_type")
    for _ in range(LARGEST_INNER):
        inner = next((found[key] for key in INNER if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        inherited = {key: found[key] for key in INHERITED if found.get(key) is not None}
        tied = found.get("tie_word_embeddings")
        dtype_inside = inner.get("torch_dtype") or inner.get("dtype")
        if dtype_inside is not None:
            inherited.pop("torch_dtype", None)
            inherited.pop("dtype", None)
        own = {key: value for key, value in inner.items() if value is not None}
        found = {**inner, **inherited, **own}
        if isinstance(tied, bool):
            found["tie_word_embeddings"] = tied
    return found, _model_type(found, outer_type, source)


def _model_type(found: Mapping[str, Any], outer_type: Any, source: str) -> str:
    kind = found.get("model_type")
    if kind is None or kind == "":
        listed = found.get("architectures")
        first = listed[0] if isinstance(listed, list) and listed else None
        kind = ARCHITECTURES.get(first) if isinstance(first, str) else None
        if kind is None and isinstance(outer_type, str):
            kind = OUTER_TYPES.get(outer_type)
    if not isinstance(kind, str):
        raise InputError(
            f"model_type {shown(kind)} is not known",
            where=source,
            fix="Take it from the model's own config.json",
        )
    return kind
