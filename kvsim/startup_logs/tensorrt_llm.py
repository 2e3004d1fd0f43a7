"""TensorRT-LLM's start-up lines: the C++ runtime from 0.5, the PyTorch backend from 0.17.

The PyTorch backend allocates a small pool, measures, and allocates again: the last line counts.
"""

from __future__ import annotations

import re

from kvsim.startup_logs.collector import (
    MAX_READINGS,
    NUMBER,
    Action,
    Collector,
    Hit,
    Rule,
    wordings,
)
from kvsim.startup_logs.vllm_refusals import OUT_OF_MEMORY

_GIB = rf"{NUMBER} GiB"
_UNROUNDED = r"([0-9]{1,6}(?:\.[0-9]{1,9})?)[0-9]{0,12}GiB"
_PROFILE = " in memory usage profiling: "
_RULES = (
    Rule("for max tokens in paged KV cache (", rf"{NUMBER}\)", ("kv_tokens",)),
    Rule("Number of blocks in KV cache primary pool: ", NUMBER, ("num_gpu_blocks",)),
    Rule("Number of blocks in KV cache secondary pool: ", NUMBER, ("num_cpu_blocks",)),
    Rule("tokens per block=", NUMBER, ("=block_size",)),
    Rule("Number of tokens per block: ", r"([0-9]{1,9})", ("=block_size",)),
    Rule(
        "Memory usage when calculating max tokens in paged kv cache: total: ",
        rf"{_GIB}, available: {_GIB}",
        ("gpu_mem_gib_reported", "free_before_kv_gib"),
    ),
    Rule("Loaded engine size: ", rf"{NUMBER} MiB", ("engine_size_gib",), per_gib=1024),
    Rule("available KV cache memory when calculating max tokens: ", _GIB, ("available_kv_gib",)),
    Rule("Estimated max memory in KV cache : ", _GIB, ("available_kv_gib",)),
    Rule("Peak memory during memory usage profiling (torch + non-torch): ", _GIB, ("peak_gib",)),
    Rule("fraction is set ", r"([0-9.]{1,20}),", ("=free_gpu_memory_fraction",)),
    Rule("kv size is ", r"([0-9]{1,12})", ("=kv_bytes_per_token",)),
    Rule("kv size per token is ", r"([0-9]{1,12})", ("=kv_bytes_per_token",)),
    Rule("KV cache manager v2 device quota set to ", _UNROUNDED, ("available_kv_gib",)),
    Rule("device total memory ", _GIB, ("gpu_mem_gib_reported",)),
    Rule(
        "Memory used after loading model weights (inside torch)" + _PROFILE,
        _GIB,
        ("weights_gib",),
    ),
    Rule(
        "Memory dynamically allocated during inference (inside torch)" + _PROFILE,
        _GIB,
        ("activation_peak_gib",),
    ),
    Rule(
        "Memory used outside torch (e.g., NCCL and CUDA graphs)" + _PROFILE,
        _GIB,
        ("non_torch_gib",),
    ),
    Rule(
        "free_gpu_memory_fraction and max_tokens are set (to ",
        r"([0-9.]{1,20}) and ([0-9]{1,15}),",
        ("=free_gpu_memory_fraction", "=max_tokens"),
    ),
    Rule("free_gpu_memory_fraction=", r"([0-9.]{1,20})", ("=free_gpu_memory_fraction",)),
    Rule(
        "max_seq_len=",
        rf"{NUMBER}, max_num_requests={NUMBER}, max_num_tokens={NUMBER}",
        ("=max_model_len", "=max_num_seqs", "=max_num_batched_tokens"),
    ),
    Rule("TRTGptModel maxNumSequences: ", NUMBER, ("=max_num_seqs",)),
    Rule("TRTGptModel maxSequenceLen: ", NUMBER, ("=max_model_len",)),
    Rule("TRTGptModel maxNumTokens: ", NUMBER, ("=max_num_batched_tokens",)),
)

_ALLOCATED = re.compile(rf"Allocated {_GIB} $")
_USING = re.compile(r"Using (?:total )?([0-9][0-9,]{0,17}) (?:total )?$")
_WINDOW = re.compile(r"\[window size=([0-9]{1,9})\], tokens per block=[0-9]{1,6}$")
_OF_WINDOW = " window "
_BLOCKS = re.compile(r"([0-9]{1,15})(?:, secondary blocks=([0-9]{1,15}))?")
_BYTES = re.compile(r"Allocate ([0-9]{1,18}) $")
_PART = re.compile(
    rf"{NUMBER} ([KMG])i?B (?:GPU memory )?for (execution context memory|runtime buffers|decoder)"
)
_PARTS = {
    "execution context memory": "execution_context_gib",
    "runtime buffers": "runtime_buffers_gib",
    "decoder": "decoder_gib",
}
_PER_GIB = {"G": 1, "M": 1024, "K": 1024**2}
_VERSION = re.compile(r"([0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?(?:[a-z.]{1,5}[0-9]{1,12})?)")


def _allocated(collector: Collector, hit: Hit) -> None:
    if match := _ALLOCATED.search(hit.before(40)):
        collector.figure("kv_size_gib", match[1], hit)
        if len(collector.now.allocated) < MAX_READINGS:
            collector.now.allocated.add(hit.worker or "")


def _window_blocks(collector: Collector, hit: Hit) -> None:
    """Blocks of one window size; those of the pool that a rank gives back no longer count."""
    match = _BLOCKS.match(hit.text, hit.end)
    if not match:
        return
    start, rank = collector.now, hit.worker or ""
    names = ("num_gpu_blocks", "num_cpu_blocks")
    if rank in start.allocated:
        start.allocated.remove(rank)
        for name in names:
            of_name = start.figures.get(name, {})
            for key in [
                key for key in of_name if (key[0] or "").startswith((rank + _OF_WINDOW).strip())
            ]:
                del of_name[key]
    window = _WINDOW.search(hit.before(60))
    worker = f"{rank}{_OF_WINDOW}{window[1]}".strip() if window else None
    for name, printed in zip(names, match.groups(), strict=True):
        if printed is not None:
            collector.figure(name, printed, hit, worker=worker)


def _using_tokens(collector: Collector, hit: Hit) -> None:
    if match := _USING.search(hit.before(40)):
        collector.figure("kv_tokens", match[1], hit)


def _bytes(collector: Collector, hit: Hit) -> None:
    """The first runtime (to 0.8) prints the pool in bytes."""
    if match := _BYTES.search(hit.before(40)):
        collector.figure("kv_size_gib", match[1], hit, per_gib=1024**3)


def _part(collector: Collector, hit: Hit) -> None:
    if match := _PART.match(hit.text, hit.end):
        collector.figure(_PARTS[match[3]], match[1], hit, per_gib=_PER_GIB[match[2]])


def _version(collector: Collector, hit: Hit) -> None:
    if match := _VERSION.match(hit.text, hit.end):
        collector.now.version = match[1]


def _ready(collector: Collector, hit: Hit) -> None:
    collector.is_ready()


_SPECIAL: tuple[tuple[str, Action], ...] = (
    ("for max tokens in paged KV cache", _allocated),
    ("tokens in paged KV cache", _using_tokens),
    (", primary blocks=", _window_blocks),
    ("bytes for k/v cache", _bytes),
    ("[MemUsageChange] Allocated ", _part),
    ("TensorRT-LLM version: ", _version),
    ("TensorRT LLM version: ", _version),
    ("Application startup complete", _ready),
    ("Engine loaded and ready to serve", _ready),
    OUT_OF_MEMORY,
)

WORDINGS = wordings(_RULES, _SPECIAL)
