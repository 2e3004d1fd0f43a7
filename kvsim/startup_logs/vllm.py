"""vLLM's start-up lines, V0 and V1, releases 0.2 to 0.2x, and its Ascend plugin's.

Sizes that it calls GB are GiB too: every release divides by 2^30.
"""

from __future__ import annotations

import re
from dataclasses import replace

from kvsim.startup_logs.collector import (
    NUMBER,
    Action,
    Collector,
    Hit,
    Rule,
    Start,
    wordings,
)
from kvsim.startup_logs.vllm_refusals import REFUSALS
from kvsim.startup_logs.vllm_settings import SETTINGS_LINES

_GIB = rf"{NUMBER} ?Gi?B\b"

_V0_RULES = (
    # 0.6.5 to 0.9; the line of the budget is in two halves from 0.7.
    Rule(
        "total_gpu_memory (",
        rf"{_GIB}\) ?x ?gpu_memory_utilization \({NUMBER}\) ?= ?{_GIB}",
        ("gpu_mem_gib_reported", "~gpu_memory_utilization", "budget_gib"),
    ),
    Rule("model weights take ", _GIB, ("weights_gib",)),
    Rule("non_torch_memory takes ", _GIB, ("non_torch_gib",)),
    Rule("PyTorch activation peak memory takes ", _GIB, ("activation_peak_gib",)),
    Rule("memory reserved for KV Cache is ", _GIB, ("available_kv_gib",)),
    # to 0.7.2, and with its decimals the finest figure of the weights
    Rule("Loading model weights took ", _GIB, ("weights_gib",)),
    Rule("# GPU blocks: ", NUMBER, ("num_gpu_blocks",)),
)

_V1_RULES = (
    Rule("Model loading took ", _GIB, ("weights_gib",)),
    Rule("Available KV cache memory: ", _GIB, ("available_kv_gib",)),
    Rule("GPU KV cache size: ", rf"{NUMBER} tokens", ("kv_tokens",)),
    Rule("Estimated CUDA graph memory: ", _GIB, ("cudagraph_estimate_gib",)),
    Rule(
        "CUDA graph pool memory: ",
        rf"{_GIB} \(actual\), {_GIB} \(estimated\)",
        ("cudagraph_pool_gib", "cudagraph_estimate_gib"),
    ),
    Rule(
        "--gpu-memory-utilization=",
        rf"{NUMBER} is equivalent to --gpu-memory-utilization={NUMBER}",
        ("~gpu_memory_utilization", "effective_utilization"),
    ),
    Rule(
        "Free memory on device",
        rf"(?: cuda:[0-9]{{1,4}})? ?\({NUMBER}/{_GIB}\) on startup",
        ("free_at_start_gib", "gpu_mem_gib_reported"),
    ),
    Rule(
        "Desired GPU memory utilization is (",
        rf"{NUMBER}, {_GIB}\)",
        ("=gpu_memory_utilization", "budget_gib"),
    ),
    # 0.10.1 on, at the debug level
    Rule(
        "Requested memory: ",
        rf"{NUMBER} \(util\), {_GIB}",
        ("~gpu_memory_utilization", "budget_gib"),
    ),
    Rule("requested GPU memory: ", _GIB, ("budget_gib",)),
    Rule("torch peak memory increase: ", _GIB, ("activation_peak_gib",)),
    Rule("non-torch forward increase memory: ", _GIB, ("non_torch_gib",)),
    Rule("; weights memory: ", _GIB, ("weights_gib",)),
    Rule("num_gpu_blocks is: ", NUMBER, ("num_gpu_blocks",)),
)

_COMMON_RULES = (
    Rule(
        "Maximum concurrency for ",
        rf"{NUMBER} tokens per request: {NUMBER}x",
        ("=max_model_len", "max_concurrency"),
    ),
    Rule(
        "Graph capturing finished in ",
        rf"[0-9.]{{1,12}} secs?(?:, took {_GIB})?",
        ("cudagraph_gib",),
    ),
)

_PAIR = re.compile(rf"\b([a-z_]{{4,32}})={NUMBER}GiB")
_PAIRS = {
    "total_gpu_memory": "gpu_mem_gib_reported",
    "peak_torch_memory": "peak_torch_gib",
    "non_torch_memory": "non_torch_gib",
    "kv_cache_size": "available_kv_gib",
}
_UTILIZATION = re.compile(r"gpu_memory_utilization=([0-9]\.[0-9]{1,6})")
_DEVICE_BLOCKS = re.compile(r"# [A-Za-z]{2,8} blocks: ([0-9][0-9,]{0,17})$")
_CPU_BLOCKS = re.compile(r"[0-9][0-9,]{0,17}")
_USAGE = re.compile(rf"{NUMBER} GiB for ([A-Za-z-]{{3,12}})")
_USAGES = {
    "weight": "weights_gib",
    "weights": "weights_gib",
    "consumed": "consumed_gib",  # weights and non-torch in one, from 0.27
    "peak": "activation_peak_gib",
    "non-torch": "non_torch_gib",
    "CUDAGraph": "cudagraph_gib",
    "NPU": "cudagraph_gib",
}
_RESERVED = re.compile(rf"reserved {_GIB} $")


def _profiling_results(collector: Collector, hit: Hit) -> None:
    """The V0 profile of 0.6.3 to 0.6.5, with and without commas between its pairs."""
    text = hit.after(600)
    for name, printed in _PAIR.findall(text):
        if name in _PAIRS:
            collector.figure(_PAIRS[name], printed, hit)
    if match := _UTILIZATION.search(text):
        printed = match[1].rstrip(".")
        collector.setting("gpu_memory_utilization", printed, hit, weight=1, rounded=True)


def _blocks(collector: Collector, hit: Hit) -> None:
    if match := _DEVICE_BLOCKS.search(hit.before(40)):
        collector.figure("num_gpu_blocks", match[1], hit)
    if match := _CPU_BLOCKS.match(hit.text, hit.end):
        collector.figure("num_cpu_blocks", match[0], hit)


def _actual_usage(collector: Collector, hit: Hit) -> None:
    for printed, what in _USAGE.findall(hit.after(400)):
        if what in _USAGES:
            # Here the server drops trailing zeros, so 1.4 stands for 1.40.
            reading = collector.figure(_USAGES[what], printed, hit)
            collector.book(_USAGES[what], replace(reading, rounding=min(0.005, reading.rounding)))


def _reserved(collector: Collector, hit: Hit) -> None:
    """The pool's size was given in bytes; memory was not profiled."""
    if match := _RESERVED.search(hit.before(40)):
        collector.figure("available_kv_gib", match[1], hit)


def _ready(collector: Collector, hit: Hit) -> None:
    collector.is_ready()


_SPECIAL: tuple[tuple[str, Action], ...] = (
    ("Memory profiling results: ", _profiling_results),
    (", # CPU blocks: ", _blocks),
    ("Actual usage", _actual_usage),
    ("memory for KV Cache as specified by", _reserved),
    ("Application startup complete", _ready),
    ("Avg prompt throughput: ", _ready),
    *SETTINGS_LINES,
    *REFUSALS,
)


_V1_WORDS = frozenset({"GPU KV cache size", "Available KV cache memory"})
_V0_WORDS = frozenset({"model weights take", "Memory profiling results", "# CPU blocks"})
_BEFORE_V1 = re.compile(r"0\.[0-5]\.")  # the first releases with an experimental V1 are 0.6's


def _engine(start: Start) -> str | None:
    """Which engine prints such lines, where the banner did not name it."""
    words = {source for readings in start.figures.values() for _, source in readings}
    if words & _V0_WORDS or _BEFORE_V1.match(start.version or ""):
        return "v0"
    return "v1" if words & _V1_WORDS else None


def _finish(start: Start) -> None:
    """The engine, and the activation peak where only the peak of all of torch is printed."""
    start.engine = start.engine or _engine(start)
    for (worker, _), peak in start.figures.get("peak_torch_gib", {}).items():
        weights = [r for r in start.figures.get("weights_gib", {}).values() if r.worker == worker]
        if weights and isinstance(peak.value, float) and isinstance(weights[-1].value, float):
            value = round(peak.value - weights[-1].value, 9)
            source = "peak_torch_memory less the weights"
            start.figures.setdefault("activation_peak_gib", {})[worker, source] = replace(
                peak,
                value=value,
                rounding=peak.rounding + weights[-1].rounding,
                source=source,
            )


WORDINGS = wordings((*_V0_RULES, *_V1_RULES, *_COMMON_RULES), _SPECIAL, _finish)
