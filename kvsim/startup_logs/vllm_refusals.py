"""vLLM's messages when it does not start, and PyTorch's when memory runs out on the way."""

from __future__ import annotations

import re

from kvsim.startup_logs.collector import NUMBER, STATED, Action, Collector, Hit
from kvsim.startup_logs.found import Reading

_LONGEST = 700
_MAX_LEN = re.compile(rf"max seq len \({NUMBER}\)")
_NEEDED = re.compile(rf"{NUMBER} Gi?B KV cache is needed")
_AVAILABLE = re.compile(rf"available KV cache memory \({NUMBER} Gi?B\)")
_ESTIMATED = re.compile(rf"estimated maximum model length is {NUMBER}")
_STORED = re.compile(rf" KV cache \({NUMBER}\)")
_BUDGET = re.compile(rf"{NUMBER}, {NUMBER} Gi?B\)")
_SIZE = rf"{NUMBER} ?([GMK])i?B"
_TRIED = re.compile(_SIZE)
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}")  # PyTorch 2.1 prints "capacty"
_FREE = re.compile(rf"of which {_SIZE} is free")
_PER_GIB = {"G": 1, "M": 1024, "K": 1024**2}


def _needs_more(collector: Collector, hit: Hit) -> None:
    text = hit.after(_LONGEST)
    numbers: dict[str, Reading] = {}
    for name, pattern in (
        ("needed_gib_one_request", _NEEDED),
        ("available_kv_gib", _AVAILABLE),
        ("estimated_max_len", _ESTIMATED),
    ):
        if match := pattern.search(text):
            numbers[name] = collector.figure(name, match[1], hit)
    if match := _MAX_LEN.search(text):
        collector.setting("max_model_len", match[1], hit, weight=STATED)
    collector.refuse("need_gt_available", hit, numbers)


def _too_long(collector: Collector, hit: Hit) -> None:
    numbers = {}
    if match := _STORED.match(hit.text, hit.end):
        numbers["kv_tokens"] = collector.figure("kv_tokens", match[1], hit)
    if match := _MAX_LEN.search(hit.before(60)):
        collector.setting("max_model_len", match[1], hit, weight=STATED)
    collector.refuse("max_len_gt_kv_tokens", hit, numbers)


def _none_left(collector: Collector, hit: Hit) -> None:
    collector.refuse("no_available_memory", hit, {})


def _less_free(collector: Collector, hit: Hit) -> None:
    numbers = {}
    if match := _BUDGET.match(hit.text, hit.end):
        collector.setting("gpu_memory_utilization", match[1], hit, weight=STATED)
        numbers["budget_gib"] = collector.figure("budget_gib", match[2], hit)
    for name in ("free_at_start_gib", "gpu_mem_gib_reported"):
        own = collector.now.figures.get(name, {})
        for one in own.values():
            if one.line == hit.line:
                numbers[name] = one
    collector.refuse("free_memory_lt_budget", hit, numbers)


def _out_of_memory(collector: Collector, hit: Hit) -> None:
    if collector.now.ready or collector.now.refusal is not None:
        return
    text = hit.after(_LONGEST)
    numbers = {}
    for name, match in (
        ("tried_gib", _TRIED.match(text)),
        ("gpu_mem_gib_reported", _TOTAL.search(text)),
        ("free_gib", _FREE.search(text)),
    ):
        if match:
            numbers[name] = collector.figure(name, match[1], hit, per_gib=_PER_GIB[match[2]])
    figures = {"available_kv_gib", "kv_tokens", "num_gpu_blocks", "kv_size_gib"}
    after = collector.now.pools or figures & set(collector.now.figures)
    collector.refuse("oom_after_kv_alloc" if after else "oom_before_kv_alloc", hit, numbers)


OUT_OF_MEMORY: tuple[str, Action] = ("out of memory. Tried to allocate ", _out_of_memory)

REFUSALS: tuple[tuple[str, Action], ...] = (
    ("To serve at least one request", _needs_more),
    ("is larger than the maximum number of tokens that can be stored in", _too_long),
    ("No available memory for the cache blocks", _none_left),
    (" is less than desired GPU memory utilization (", _less_free),
    OUT_OF_MEMORY,
)
