"""Models that the catalogue does not list, by the fields of their public config.json."""

from __future__ import annotations

from typing import Any

from kvsim.catalog import Model, model_from_config


def dense(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None = None,
    intermediate: int = 11_008,
    vocab: int = 32_000,
    positions: int = 40_960,
    family: str = "llama",
) -> Model:
    """A dense decoder; `head_dim` None where the config leaves it out."""
    architecture = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": family == "qwen3",
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    return model_from_config(config, name=name, source="public config.json")


TINYLLAMA = dense("tinyllama-1.1b", layers=22, hidden=2048, heads=32, kv_heads=4)
QWEN25_05B = dense("qwen2.5-0.5b", layers=24, hidden=896, heads=14, kv_heads=2)
PHI3_MINI = dense("phi-3-mini", layers=32, hidden=3072, heads=32, kv_heads=32)
OPENLLAMA_3B = dense("open-llama-3b", layers=26, hidden=3200, heads=32, kv_heads=32)
LLAMA_30B = dense("llama-30b", layers=60, hidden=6656, heads=52, kv_heads=52)
QWEN3_06B = dense(
    "qwen3-0.6b",
    layers=28,
    hidden=1024,
    heads=16,
    kv_heads=8,
    head_dim=128,
    intermediate=3072,
    vocab=151_936,
    family="qwen3",
)
QWEN3_4B = dense(
    "qwen3-4b",
    layers=36,
    hidden=2560,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=9728,
    vocab=151_936,
    family="qwen3",
)
MISTRAL_SMALL = dense(
    "mistral-small-3.2-24b",
    layers=40,
    hidden=5120,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=32_768,
    vocab=131_072,
    positions=131_072,
)
