"""What servers' memory fractions are fractions of, in words."""

from __future__ import annotations

FRACTIONS = {
    "vllm": (
        "vLLM's gpu_memory_utilization is the share of the whole GPU for weights, the measured peak"
        " of a step and KV cache together"
    ),
    "sglang": (
        "SGLang's mem_fraction_static is the share of the memory free at start for weights and KV"
        " cache; steps and CUDA graphs must fit into the rest"
    ),
    "tensorrt-llm": (
        "TensorRT-LLM's free_gpu_memory_fraction is the share of what loading leaves free for the"
        " KV cache alone"
    ),
    "lmdeploy": (
        "LMDeploy's cache_max_entry_count is the share of what the weights leave free for the KV"
        " cache alone"
    ),
    "llama.cpp": "llama.cpp has no fraction: the context alone says how large the cache is",
}
"""One sentence per server, without its full stop (FIELD.md section 2)."""


def why_tokens_differ(server: str, other: str = "vllm") -> str:
    """Why two servers print different tokens for the same model, GPU and fraction.

    Names are those of `FRACTIONS`. A token costs the same bytes in each of them.
    """
    return (
        f"{FRACTIONS[server]}; {FRACTIONS[other]}. Fractions of the same number leave different"
        " headroom, so the tokens differ although a token takes the same bytes."
    )
