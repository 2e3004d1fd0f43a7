"""What the families of models have in common and where they differ, by model_type.

Biases, norms and defaults are those of the public model definitions of these families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Switch = bool | tuple[str, bool]
"""Yes, no, or the field that says so and its default."""
Windows = Literal[
    "none",
    "all",
    "from_layer",
    "alternate",
    "pattern",
    "gpt_oss",
    "chunks",
    "linear",
]
"""Which layers have a window: see `kvsim.catalog.hf.layers`."""
Experts = Literal["", "all", "steps", "first_dense", "listed", "period", "interval"]
"""Which layers have experts: see `kvsim.catalog.hf.feed_forward`."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family as far as shapes are concerned."""

    windows: Windows = "none"
    window_every: int = 0
    """One full layer in so many, where the config does not say."""
    latent: bool = False
    qkv_bias: Switch = False
    out_bias: Switch = False
    qk_norm: Switch = False
    qk_norm_heads: bool = False
    out_gate: bool = False
    multi_query: bool = False
    """One KV head where the config does not say."""
    head_dim: int | None = None
    """Where the config does not say and hidden / heads is not meant."""
    gated: bool = True
    mlp_bias: Switch = False
    mlp_ratio: int = 0
    """Intermediate over hidden elements where the config does not say; 0: it has to."""
    norm_bias: bool = False
    norms: int = 2
    final_norm: bool = True
    positions: int | None = None
    """Rows of a learned position table besides the positions; None: no table."""
    tied: bool = False
    """Where the config does not say."""
    head_bias: Switch = False
    embedding_norm: bool = False
    experts: Experts = ""
    routing_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    defaults: Mapping[str, object] | None = None
    """Values that published files leave out, from the family's configuration class."""


ATTENTION_BIAS: Switch = ("attention_bias", False)
LLAMA = Family(qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, mlp_bias=("mlp_bias", False))
QWEN2 = Family(windows="from_layer", qkv_bias=True)
QWEN3 = replace(LLAMA, windows="from_layer", qk_norm=True, mlp_bias=False)
QWEN3_LINEAR = Family(
    windows="linear", window_every=4, qk_norm=True, out_gate=True, qkv_bias=ATTENTION_BIAS
)
GPT2 = Family(
    qkv_bias=True,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    mlp_ratio=4,
    norm_bias=True,
    positions=0,
    tied=True,
)
GEMMA = Family(tied=True, head_dim=256, qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS)
GEMMA3 = replace(
    GEMMA,
    windows="pattern",
    window_every=6,
    qk_norm=True,
    norms=4,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)
GLM = Family(qkv_bias=("attention_bias", True))
DEEPSEEK = Family(latent=True, experts="first_dense")
DEEPSEEK_V3 = replace(DEEPSEEK, routing_bias=True)
COHERE = Family(
    tied=True,
    norms=1,
    qkv_bias=ATTENTION_BIAS,
    out_bias=ATTENTION_BIAS,
    qk_norm=("use_qk_norm", False),
    qk_norm_heads=True,
)
OLMO2 = replace(LLAMA, qk_norm=True, qk_norm_heads=True, mlp_bias=False)
GRANITE = replace(LLAMA, tied=False)
STEP3 = Family(
    windows="pattern",
    window_every=4,
    experts="first_dense",
    routing_bias=True,
    qk_norm=True,
)

FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "minicpm": replace(LLAMA, mlp_bias=False, tied=True),
    "mistral": Family(windows="all"),
    "ministral": Family(windows="all"),
    "ministral3": Family(windows="all"),
    "mixtral": Family(windows="all", experts="all"),
    "minimax_m2": Family(experts="all", routing_bias=True, qk_norm=True, qk_norm_heads=True),
    "minimax_m3": Family(experts="listed", routing_bias=True, qk_norm=True),
    "minimax_text_01": Family(experts="all"),
    "minimax_m1": Family(experts="all"),
    "minimax": Family(experts="all"),
    "qwen": Family(qkv_bias=True, tied=False),
    "qwen2": QWEN2,
    "qwen2_moe": replace(QWEN2, qkv_bias=("qkv_bias", True), experts="steps", shared_gate=True),
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3, experts="steps"),
    "qwen3_next": replace(QWEN3_LINEAR, experts="steps", shared_gate=True),
    "qwen3_5": QWEN3_LINEAR,
    "qwen3_5_moe": replace(QWEN3_LINEAR, experts="steps", shared_gate=True),
    "mimo": replace(QWEN2, qkv_bias=("attention_bias", True)),
    "mimo_v2_flash": Family(
        windows="pattern", qkv_bias=ATTENTION_BIAS, experts="listed", routing_bias=True
    ),
    "opt": Family(
        qkv_bias=("enable_bias", True),
        out_bias=("enable_bias", True),
        gated=False,
        mlp_bias=("enable_bias", True),
        norm_bias=True,
        positions=2,
        tied=True,
    ),
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, multi_query=True),
    "gptj": Family(
        gated=False, mlp_bias=True, mlp_ratio=4, norm_bias=True, norms=1, head_bias=True
    ),
    "gpt_neox": Family(
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        gated=False,
        mlp_bias=True,
        norm_bias=True,
    ),
    "bloom": replace(GPT2, positions=None, embedding_norm=True),
    "mpt": Family(gated=False, mlp_ratio=4, tied=True),
    "dbrx": Family(experts="all"),
    "falcon": Family(gated=False, mlp_ratio=4, norm_bias=True, tied=True),
    "refinedweb": Family(gated=False, mlp_ratio=4, norm_bias=True, tied=True),
    "refinedwebmodel": Family(gated=False, mlp_ratio=4, norm_bias=True, tied=True),
    "phi": Family(
        qkv_bias=True,
        out_bias=True,
        gated=False,
        mlp_bias=True,
        norm_bias=True,
        norms=1,
        head_bias=True,
    ),
    "phi3": Family(windows="all"),
    "phimoe": Family(
        windows="all",
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        norm_bias=True,
        head_bias=("lm_head_bias", True),
        experts="all",
    ),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, windows="alternate", norms=4),
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma3n": replace(GEMMA3, defaults=None),
    "gemma4": replace(GEMMA3, defaults=None),
    "cohere": COHERE,
    "cohere2": replace(COHERE, windows="pattern", window_every=4, qk_norm=False),
    "stablelm": Family(qkv_bias=("use_qkv_bias", False), norm_bias=True),
    "internlm": Family(qkv_bias=("bias", True), out_bias=("bias", True)),
    "internlm2": Family(qkv_bias=("bias", False), out_bias=("bias", False)),
    "internlm3": Family(qkv_bias=("qkv_bias", False), out_bias=("bias", False)),
    "baichuan": Family(),
    "chatglm": Family(),
    "glm": GLM,
    "glm4": replace(GLM, qkv_bias=ATTENTION_BIAS, norms=4),
    "glm4_moe": replace(
        GLM,
        qkv_bias=ATTENTION_BIAS,
        qk_norm=("use_qk_norm", False),
        experts="first_dense",
        routing_bias=True,
    ),
    "glm4v": replace(GLM, qkv_bias=("attention_bias", True), norms=4),
    "glm4v_moe": replace(GLM, experts="first_dense", routing_bias=True),
    "deepseek": Family(experts="first_dense"),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": DEEPSEEK_V3,
    "deepseek_v4": Family(experts="all", routing_bias=True),
    "kimi_k2": DEEPSEEK_V3,
    "glm_moe_dsa": DEEPSEEK_V3,
    "glm4_moe_lite": DEEPSEEK_V3,
    "kimi_linear": replace(DEEPSEEK_V3, windows="none"),
    "dots1": replace(LLAMA, qk_norm=True, experts="first_dense", routing_bias=True),
    "bailing_moe": Family(
        qkv_bias=("use_qkv_bias", False),
        out_bias=("use_bias", False),
        qk_norm=("use_qk_norm", False),
        experts="first_dense",
    ),
    "step3p5": STEP3,
    "step3p7": STEP3,
    "gpt_oss": Family(
        windows="gpt_oss",
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        experts="all",
        routing_bias=True,
        expert_bias=True,
    ),
    "llama4": Family(windows="chunks", window_every=4, experts="interval"),
    "olmo": Family(norms=0, final_norm=False, qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, windows="pattern", window_every=4),
    "olmoe": replace(OLMO2, experts="all"),
    "granite": GRANITE,
    "granitemoe": replace(GRANITE, mlp_bias=False, experts="all"),
    "granitemoeshared": replace(GRANITE, mlp_bias=False, experts="all"),
    "granitemoehybrid": replace(GRANITE, mlp_bias=False, experts="all"),
    "starcoder2": Family(
        windows="all",
        qkv_bias=("use_bias", True),
        out_bias=("use_bias", True),
        gated=False,
        mlp_bias=("use_bias", True),
        norm_bias=True,
        tied=True,
    ),
    "nemotron": Family(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        gated=False,
        mlp_bias=("mlp_bias", False),
        norm_bias=True,
    ),
    "nemotron_h": Family(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        gated=False,
        mlp_bias=("mlp_bias", False),
        norms=1,
        routing_bias=True,
    ),
    "nemotron-nas": LLAMA,
    "deci": LLAMA,
    "jamba": Family(experts="period"),
    "bamba": replace(LLAMA, windows="none"),
    "falcon_h1": Family(
        qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, mlp_bias=("mlp_bias", False)
    ),
    "lfm2": Family(qk_norm=True, tied=True),
    "lfm2_moe": Family(qk_norm=True, tied=True, experts="first_dense", routing_bias=True),
    "exaone": Family(),
    "exaone4": Family(windows="pattern", window_every=4, qk_norm=True),
    "smollm3": replace(LLAMA, tied=True, windows="from_layer"),
    "ernie4_5": Family(qkv_bias=("use_bias", False), out_bias=("use_bias", False), tied=True),
    "ernie4_5_moe": Family(
        qkv_bias=("use_bias", False),
        out_bias=("use_bias", False),
        tied=True,
        experts="interval",
        routing_bias=True,
    ),
    "hunyuan_v1_dense": replace(LLAMA, qk_norm=True),
    "seed_oss": Family(qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False)),
    "apertus": replace(LLAMA, gated=False, qk_norm=True, mlp_bias=False),
    "arcee": replace(LLAMA, gated=False),
    "mllama": Family(),
}

ALIASES: Mapping[str, str] = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "llama4_text": "llama4",
    "mllama_text_model": "mllama",
    "glm4v_text": "glm4v",
    "glm4v_moe_text": "glm4v_moe",
    "kimi_k25": "kimi_k2",
    "deepseek_ref": "deepseek_v4",
    "minimax_m3_vl": "minimax_m3",
    "minimax_m3_text": "minimax_m3",
    "bailing_moe_v2": "bailing_moe",
    "kimi_k3": "kimi_linear",
    "codegen": "gptj",
    "yi": "llama",
    "aquila": "llama",
    "nemotron_nas": "nemotron-nas",
    "ernie4_5_vl_moe_text": "ernie4_5_moe",
}
"""Other names, among them those of the language part of models with several parts."""


def family_name(model_type: str) -> str:
    """The family's name in `FAMILIES`, or the model_type itself."""
    lowered = model_type.lower()
    return ALIASES.get(lowered, lowered)
