"""SGLang's start-up lines, releases 0.1 to 0.5. What it calls GB is 2^30 bytes."""

from __future__ import annotations

import re

from kvsim.startup_logs.collector import (
    ARGUMENTS,
    NUMBER,
    Action,
    Collector,
    Hit,
    Pool,
    Rule,
    Start,
    add_up,
    wordings,
)
from kvsim.startup_logs.config_text import named_values
from kvsim.startup_logs.vllm_refusals import OUT_OF_MEMORY

_GB = rf"{NUMBER} ?GB"
_RULES = (
    Rule("Memory pool end. avail mem=", _GB, ("free_after_kv_gib",)),
    Rule(
        "max_total_num_tokens=",
        rf"{NUMBER}, (?:chunked_prefill_size={NUMBER}, )?max_prefill_tokens=[0-9]{{1,12}}, "
        rf"max_running_requests={NUMBER}, context_len={NUMBER}"
        rf"(?:, available_gpu_mem={_GB})?",
        ("kv_tokens", "=chunked_prefill_size", "=max_num_seqs", "=max_model_len", "free_gib"),
    ),
    Rule(
        "Please try to increase --mem-fraction-static.",
        rf" Current value: mem_fraction_static={NUMBER}",
        ("=mem_fraction_static",),
    ),
)

_NAMES = {
    "model_path": "model",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "mem_fraction_static": "mem_fraction_static",
    "max_running_requests": "max_num_seqs",
    "max_total_tokens": "max_total_tokens",
    "chunked_prefill_size": "chunked_prefill_size",
    "page_size": "block_size",
    "context_length": "max_model_len",
    "disable_cuda_graph": "enforce_eager",
    "speculative_algorithm": "speculative_config",
    "cpu_offload_gb": "cpu_offload_gb",
}
_OPPOSITE = {"True": "False", "False": "True"}
_USED = re.compile(rf"\bmem usage={_GB}")
_LEFT = re.compile(rf"\bavail mem={_GB}")
_TOKENS = re.compile(r"#tokens: ([0-9][0-9,]{0,17})")
_SIZES = re.compile(rf"\b(?:K|V|KV) size: {_GB}")
_SWA = re.compile(rf"{_GB}, swa size: ([0-9]{{1,15}}), full size: ([0-9]{{1,15}})")
_STATES = re.compile(rf"_state size: {_GB}")


def _server_args(collector: Collector, hit: Hit) -> None:
    collector.banner("the server")
    if not collector.configs_left:
        return
    collector.configs_left -= 1
    values = named_values(hit.text, hit.end)
    collector.pairs(values, _NAMES, hit, weight=ARGUMENTS)
    if "disable_radix_cache" in values:
        printed = _OPPOSITE.get(values["disable_radix_cache"], "")
        collector.setting("enable_prefix_caching", printed, hit, weight=ARGUMENTS)


def _first(collector: Collector, name: str, printed: str, hit: Hit) -> None:
    """The target model's figure; what a draft model prints after it in the same words is not."""
    reading = collector.reading(name, printed, hit)
    if (reading.worker, reading.source) not in collector.now.figures.get(name, {}):
        collector.book(name, reading)


def _weights(collector: Collector, hit: Hit) -> None:
    text = hit.after(300)
    if match := _USED.search(text):
        _first(collector, "weights_gib", match[1], hit)
    if match := _LEFT.search(text):
        collector.figure("free_after_weights_gib", match[1], hit)


def _graphs(collector: Collector, hit: Hit) -> None:
    if match := _USED.search(hit.after(200)):
        _first(collector, "cudagraph_gib", match[1], hit)


def _pool(collector: Collector, hit: Hit) -> None:
    text = hit.after(240)
    sizes = [collector.reading("kv_size_gib", one, hit) for one in _SIZES.findall(text)[:2]]
    if sizes:
        tokens = _TOKENS.search(text)
        collector.pool(
            Pool(
                worker=hit.worker,
                size=add_up("kv_size_gib", sizes, "KV Cache is allocated"),
                tokens=collector.reading("kv_tokens", tokens[1], hit) if tokens else None,
            )
        )


def _two_pools(collector: Collector, hit: Hit) -> None:
    """The total of the two pools printed before it, of full and of sliding-window layers."""
    if match := _SWA.match(hit.text, hit.end):
        size = collector.reading("kv_size_gib", match[1], hit)
        tokens = collector.reading("kv_tokens", match[3], hit)
        collector.figure("kv_swa_tokens", match[2], hit)
        collector.pool(Pool(hit.worker, size, tokens, "total"))


def _states(collector: Collector, hit: Hit) -> None:
    sizes = [collector.reading("state_gib", one, hit) for one in _STATES.findall(hit.after(240))]
    if sizes:
        collector.book("state_gib", add_up("state_gib", sizes, "Mamba Cache is allocated"))


def _none_left(collector: Collector, hit: Hit) -> None:
    collector.refuse("no_available_memory", hit, {})


def _ready(collector: Collector, hit: Hit) -> None:
    collector.is_ready()


_SPECIAL: tuple[tuple[str, Action], ...] = (
    ("server_args=ServerArgs(", _server_args),
    ("Load weight end.", _weights),
    ("Capture cuda graph end.", _graphs),
    ("Capture target decode CUDA graph end.", _graphs),
    ("KV Cache is allocated.", _pool),
    ("SWAKVPool mem usage: ", _two_pools),
    ("Mamba Cache is allocated.", _states),
    ("Not enough memory. Please try to increase --mem-fraction-static", _none_left),
    ("The server is fired up and ready to roll", _ready),
    OUT_OF_MEMORY,
)


def _finish(start: Start) -> None:
    """A worker's first pool, or the total of its two, is the target's; the next the draft's."""
    of_worker: dict[str | None, list[Pool]] = {}
    for pool in start.pools:
        own = of_worker.setdefault(pool.worker, [])
        if pool.kind == "total":
            del own[-2:]
        own.append(pool)
    for worker, own in of_worker.items():
        for pool, prefix in zip(own, ("", "draft_"), strict=False):
            source = "KV Cache is allocated"
            sizes = start.figures.setdefault(f"{prefix}kv_size_gib", {})
            sizes[worker, source] = pool.size
            if pool.tokens:
                tokens = start.figures.setdefault(f"{prefix}kv_tokens", {})
                tokens[worker, source] = pool.tokens


WORDINGS = wordings(_RULES, _SPECIAL, _finish)
