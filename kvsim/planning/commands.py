"""Flags to paste: a `vllm serve` line and the same as YAML for `--config`."""

from __future__ import annotations

import json
import shlex

from kvsim.planning.fit import Fit, FitSettings
from kvsim.planning.parallel import DraftMethod

Flag = int | float | str | bool


def flags_of(found: Fit) -> dict[str, Flag]:
    """The flags of the set-up, by vLLM's names."""
    flags = found.settings
    named: dict[str, Flag] = {
        "tensor-parallel-size": flags.tensor_parallel_size,
        "max-model-len": flags.max_model_len,
        "gpu-memory-utilization": flags.gpu_memory_utilization,
        "max-num-seqs": flags.max_num_seqs,
        "max-num-batched-tokens": flags.max_num_batched_tokens,
    }
    if flags.pipeline_parallel_size > 1:
        named["pipeline-parallel-size"] = flags.pipeline_parallel_size
    if flags.kv_cache_dtype != "auto":
        named["kv-cache-dtype"] = flags.kv_cache_dtype
    if flags.block_size != 16:
        named["block-size"] = flags.block_size
    return {**named, **_further(flags.given)}


def _further(given: FitSettings) -> dict[str, Flag]:
    """Flags of replicas, adapters and drafts, where they are used."""
    named: dict[str, Flag] = {}
    if given.data_parallel_size > 1:
        named["data-parallel-size"] = given.data_parallel_size
    if given.enable_expert_parallel:
        named["enable-expert-parallel"] = True
    if given.decode_context_parallel_size > 1:
        named["decode-context-parallel-size"] = given.decode_context_parallel_size
    if given.max_loras:
        named |= {"enable-lora": True, "max-loras": given.max_loras}
        named["max-lora-rank"] = given.max_lora_rank
    if given.max_loras and given.fully_sharded_loras:
        named["fully-sharded-loras"] = True
    if given.limit_mm_per_prompt:
        named["limit-mm-per-prompt"] = json.dumps(dict(given.limit_mm_per_prompt))
    if given.language_model_only:
        named["language-model-only"] = True
    if given.speculative is not None:
        named["speculative-config"] = json.dumps(SPECULATION[given.speculative])
    return named


SPECULATION: dict[DraftMethod, dict[str, int | str]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4},
    "eagle": {"method": "eagle3", "model": "YOUR_DRAFT", "num_speculative_tokens": 3},
    "mtp": {"method": "mtp", "num_speculative_tokens": 1},
}
"""Usual settings of each method; they take no part in the memory at start."""


def serve_command(found: Fit, served: str) -> str:
    """A line for a POSIX shell; whatever `served` holds, it stays one word."""
    words = ["vllm", "serve", served]
    for name, value in flags_of(found).items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def serve_yaml(found: Fit, served: str) -> str:
    """The content of a file for `vllm serve --config`; texts are quoted as JSON, which is YAML."""
    lines = [f"model: {json.dumps(served)}"]
    lines += [
        f"{name}: {json.dumps(value) if isinstance(value, str | bool) else value}"
        for name, value in flags_of(found).items()
    ]
    return "\n".join(lines) + "\n"
