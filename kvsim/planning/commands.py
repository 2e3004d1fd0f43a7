"""Flags to paste: a `vllm serve` line and the same as YAML for `--config`."""

from __future__ import annotations

import json
import shlex

from kvsim.planning.fit import Fit


def flags_of(found: Fit) -> dict[str, int | float | str]:
    """The flags of the set-up, by vLLM's names."""
    flags = found.settings
    named: dict[str, int | float | str] = {
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
    return named


def serve_command(found: Fit, served: str) -> str:
    """A line for a POSIX shell; whatever `served` holds, it stays one word."""
    words = ["vllm", "serve", served]
    for name, value in flags_of(found).items():
        words += [f"--{name}", str(value)]
    return shlex.join(words)


def serve_yaml(found: Fit, served: str) -> str:
    """The content of a file for `vllm serve --config`; texts are quoted as JSON, which is YAML."""
    lines = [f"model: {json.dumps(served)}"]
    lines += [
        f"{name}: {json.dumps(value) if isinstance(value, str) else value}"
        for name, value in flags_of(found).items()
    ]
    return "\n".join(lines) + "\n"
