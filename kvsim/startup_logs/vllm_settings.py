"""vLLM's settings: the engine's banner, the arguments, and what other lines state in passing."""

from __future__ import annotations

import re

from kvsim.startup_logs.collector import (
    ARGUMENTS,
    CONFIG,
    NUMBER,
    Action,
    Collector,
    Hit,
    Rule,
)
from kvsim.startup_logs.config_text import named_values

_NAMES = {
    name: name
    for name in (
        "model",
        "dtype",
        "quantization",
        "kv_cache_dtype",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "enforce_eager",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "swap_space",
        "cpu_offload_gb",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "speculative_config",
    )
} | {
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "speculative_model": "speculative_config",  # to 0.7
}

_VERSION = re.compile(r"([0-9A-Za-z][0-9A-Za-z.+_-]{0,60})")
_ENGINE = re.compile(r" \(v([0-9A-Za-z.+_-]{1,60})\)")
_PROCESS = re.compile(r" pid=.*", re.DOTALL)


def _values(collector: Collector, hit: Hit, start: int, weight: int) -> None:
    if collector.configs_left:  # splitting a text is the one slow step; a log has a handful
        collector.configs_left -= 1
        collector.pairs(named_values(hit.text, start), _NAMES, hit, weight=weight)


def _engine_banner(engine: str | None) -> Action:
    def book(collector: Collector, hit: Hit) -> None:
        collector.banner(_PROCESS.sub("", hit.worker or "engine"))
        if match := _ENGINE.match(hit.text, hit.end):
            collector.now.version = match[1]
        collector.now.engine = engine or collector.now.engine
        marker = "with config: "
        begin = hit.text.find(marker, hit.end, hit.end + 160)
        if begin >= 0:
            _values(collector, hit, begin + len(marker), CONFIG)

    return book


def _api_banner(collector: Collector, hit: Hit) -> None:
    collector.banner("the API server")
    if match := _VERSION.match(hit.text, hit.end):
        collector.now.version = match[1].removeprefix("v")


def _arguments(collector: Collector, hit: Hit) -> None:
    _values(collector, hit, hit.end, ARGUMENTS)


_STATED = (
    Rule("Using max model len ", NUMBER, ("=max_model_len",)),
    Rule(
        "Chunked prefill is enabled with max_num_batched_tokens=",
        NUMBER,
        ("=max_num_batched_tokens",),
    ),
    Rule("Setting attention block size to ", rf"{NUMBER} tokens", ("=block_size",)),
    Rule(
        "Overriding num_gpu_blocks=",
        rf"{NUMBER} with num_gpu_blocks_override={NUMBER}",
        ("", "=num_gpu_blocks_override"),
    ),
)

SETTINGS_LINES: tuple[tuple[str, Action], ...] = (
    # In 0.6 and 0.7 the experimental V1 prints the first wording too: it names no engine.
    ("Initializing an LLM engine", _engine_banner(None)),
    ("Initializing a V0 LLM engine", _engine_banner("v0")),
    ("Initializing a V1 LLM engine", _engine_banner("v1")),
    ("vLLM API server version ", _api_banner),
    ("non-default args: {", _arguments),
    ("args: Namespace(", _arguments),
    *((rule.key, rule.action()) for rule in _STATED),
)
