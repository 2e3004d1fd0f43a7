"""llama.cpp's start-up lines, from the `kv self size` of 2023 to the `llama_kv_cache` of today.

What it calls MB or MiB is 2^20 bytes. Every context prints `n_ctx` before its pools, so that line
begins a context; the last context of the first model counts, since fitting parameters to memory
builds several. A second model is the draft of speculative decoding.
"""

from __future__ import annotations

import re

from kvsim.startup_logs.collector import (
    CONFIG,
    MAX_READINGS,
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
from kvsim.startup_logs.found import Reading

_MIB = rf"{NUMBER} Mi?B"
_MIB_PER_GIB = 1024
_VALUE = re.compile(r" {0,24}= {0,4}([A-Za-z0-9_.-]{1,24})")
_NAME = re.compile(r" {0,24}= {0,4}(.{1,300})")
_SIZE = re.compile(
    rf"(?:_unified)?: size = {{0,8}}{_MIB} \( {{0,8}}([0-9]{{1,12}}) cells, {{0,8}}[0-9]{{1,6}} "
    r"layers, {0,8}(?:[0-9]{1,6}/ {0,4})?([0-9]{1,6}) seqs\)"
    r"(?:, K \(([a-z0-9_]{1,12})\)[^,]{1,30}, V \(([a-z0-9_]{1,12})\))?"
)
_ONE_STREAM = re.compile(r"layers, {0,8}[0-9]{1,6} seqs\)")
_SELF = re.compile(
    rf" {{0,4}}= {{0,8}}{_MIB}"
    r"(?:, K \(([a-z0-9_]{1,12})\)[^,]{1,30}, V \(([a-z0-9_]{1,12})\))?"
)
_AFTER_EQUALS = re.compile(rf" {{0,8}}{_MIB}")
_DEVICE = re.compile(r"([A-Za-z0-9_.:\[\]-]{1,60}) {1,8}$")
_OLD_WEIGHTS = re.compile(rf" {{0,12}}([A-Za-z0-9_.:\[\]-]{{1,60}}) buffer size = {{0,8}}{_MIB}")
_FROM = re.compile(r"from (.{1,400}) \(version")
_BUILD = re.compile(r"([0-9]{1,6}) \([0-9a-f]{5,12}\)")
_ALLOCATING = re.compile(rf"allocating {_MIB} on device [0-9]{{1,3}}: $")
_OF_LLAMA = re.compile(r"llama[a-z_0-9]{0,40}$")


def _context_value(name: str) -> Action:
    def book(collector: Collector, hit: Hit) -> None:
        match = _VALUE.match(hit.text, hit.end)
        if not match or collector.now.draft or not _OF_LLAMA.search(hit.before(48)):
            return
        if name == "n_ctx":
            collector.now.pools.clear()
        collector.setting(name, match[1], hit, weight=CONFIG)

    return book


def _model(collector: Collector, hit: Hit) -> None:
    match = _FROM.search(hit.after(600))
    path = match[1] if match else ""
    start = collector.now
    start.model_path = start.model_path or path
    start.draft = path != start.model_path
    if not start.draft:
        start.buffers.clear()
        collector.setting("model", path, hit, weight=CONFIG)


def _text_setting(name: str) -> Action:
    def book(collector: Collector, hit: Hit) -> None:
        if (match := _NAME.match(hit.text, hit.end)) and not collector.now.draft:
            collector.setting(name, match[1].strip(), hit, weight=CONFIG)

    return book


def _announced(collector: Collector, hit: Hit) -> None:
    collector.now.pending = "full" if hit.before(4) == "non-" else "swa"


def _types(collector: Collector, hit: Hit, k: str | None, v: str | None) -> None:
    if k and v and not collector.now.draft:
        collector.setting("kv_cache_dtype", k if k == v else f"{k}/{v}", hit, weight=CONFIG)


def _pool(collector: Collector, hit: Hit) -> None:
    match = _SIZE.match(hit.text, hit.end)
    if not match:
        return
    # Cells are per stream; before there were streams only the sequences were printed.
    streams = 1 if _ONE_STREAM.search(match[0]) else int(match[3])
    tokens = str(int(match[2]) * streams)
    _add(collector, hit, match[1], tokens)
    _types(collector, hit, match[4], match[5])


def _self_size(collector: Collector, hit: Hit) -> None:
    if match := _SELF.match(hit.text, hit.end):
        _add(collector, hit, match[1], None)
        _types(collector, hit, match[2], match[3])


def _add(collector: Collector, hit: Hit, size: str, tokens: str | None) -> None:
    start = collector.now
    if start.draft:
        collector.figure("draft_kv_size_gib", size, hit, per_gib=_MIB_PER_GIB)
        return
    reading = collector.reading("kv_size_gib", size, hit, per_gib=_MIB_PER_GIB)
    cells = collector.reading("kv_tokens", tokens, hit) if tokens else None
    collector.pool(Pool(None, reading, cells, start.pending))
    start.pending = ""


def _kv_buffer(collector: Collector, hit: Hit) -> None:
    match, device = _AFTER_EQUALS.match(hit.text, hit.end), _DEVICE.search(hit.before(64))
    if match and device and not collector.now.draft:
        size = collector.reading(
            "kv_buffer_gib", match[1], hit, per_gib=_MIB_PER_GIB, worker=device[1]
        )
        collector.pool(Pool(device[1], size, None, "buffer"))


def _weights(collector: Collector, hit: Hit) -> None:
    match, device = _AFTER_EQUALS.match(hit.text, hit.end), _DEVICE.search(hit.before(64))
    if match and device:
        _add_weights(collector, hit, device[1], match[1])


def _old_weights(collector: Collector, hit: Hit) -> None:
    if (match := _OLD_WEIGHTS.match(hit.text, hit.end)) and match[1] != "model":
        _add_weights(collector, hit, match[1], match[2])


def _add_weights(collector: Collector, hit: Hit, device: str, printed: str) -> None:
    if not collector.now.draft and len(collector.now.buffers) < MAX_READINGS:
        collector.booked += 1
        collector.now.buffers.append(
            collector.reading("weights_gib", printed, hit, per_gib=_MIB_PER_GIB, worker=device)
        )


def _compute(collector: Collector, hit: Hit) -> None:
    match, device = _AFTER_EQUALS.match(hit.text, hit.end), _DEVICE.search(hit.before(64))
    if match and device and not collector.now.draft:
        collector.figure(
            "compute_buffer_gib", match[1], hit, per_gib=_MIB_PER_GIB, worker=device[1]
        )


def _version(collector: Collector, hit: Hit) -> None:
    if match := _BUILD.match(hit.text, hit.end):
        collector.now.version = "b" + match[1]


def _no_memory(collector: Collector, hit: Hit) -> None:
    numbers: dict[str, Reading] = {}
    if match := _ALLOCATING.search(hit.before(80)):
        numbers["tried_gib"] = collector.reading("tried_gib", match[1], hit, per_gib=_MIB_PER_GIB)
    allocated = any(pool.kind != "buffer" for pool in collector.now.pools)
    collector.refuse("oom_after_kv_alloc" if allocated else "oom_before_kv_alloc", hit, numbers)


def _ready(collector: Collector, hit: Hit) -> None:
    collector.is_ready()


_RULES = (
    Rule("offloaded ", r"([0-9]{1,6})/[0-9]{1,6} layers to GPU", ("=n_gpu_layers",)),
    Rule("llama_memory_recurrent: size = ", rf" {{0,8}}{_MIB}", ("state_gib",), per_gib=1024),
    Rule("llama_kv_cache_recurrent: size = ", rf" {{0,8}}{_MIB}", ("state_gib",), per_gib=1024),
)

_CONTEXT = ("n_ctx", "n_ctx_seq", "n_batch", "n_ubatch", "n_seq_max", "flash_attn", "kv_unified")
_SPECIAL: tuple[tuple[str, Action], ...] = (
    *((f": {name} ", _context_value(name)) for name in _CONTEXT),
    (": n_ctx_per_seq ", _context_value("n_ctx_seq")),
    ("loaded meta data with ", _model),
    ("llm_load_print_meta: model ftype", _text_setting("quantization")),
    ("print_info: file type", _text_setting("quantization")),
    ("SWA KV cache, size = ", _announced),
    ("llama_kv_cache", _pool),
    ("KV self size", _self_size),
    ("kv self size", _self_size),
    ("KV buffer size =", _kv_buffer),
    ("model buffer size =", _weights),
    ("llm_load_tensors: ", _old_weights),
    ("compute buffer size =", _compute),
    ("build: ", _version),
    ("build = ", _version),
    ("cudaMalloc failed: out of memory", _no_memory),
    ("failed to allocate buffer for kv cache", _no_memory),
    ("server is listening on", _ready),
)


def _finish(start: Start) -> None:
    """Adds up pools by kind, and buffers by device."""
    pools = [pool for pool in start.pools if pool.kind != "buffer"]
    buffers = [pool for pool in start.pools if pool.kind == "buffer"]
    if sized := pools or buffers:
        _book(start, "kv_size_gib", [pool.size for pool in sized])
    for kind in ("full", "swa"):
        if sizes := [pool.size for pool in pools if pool.kind == kind]:
            _book(start, f"kv_{kind}_gib", sizes)
    for name, of_kind in (("kv_tokens", ("", "full")), ("kv_swa_tokens", ("swa",))):
        cells = [pool.tokens for pool in pools if pool.kind in of_kind and pool.tokens]
        if cells:
            most = max(cells, key=lambda one: one.value if isinstance(one.value, int) else 0)
            start.figures.setdefault(name, {})[None, most.source] = most
    for name, readings in (
        ("kv_buffer_gib", [pool.size for pool in buffers]),
        ("weights_gib", start.buffers),
    ):
        of_device: dict[str | None, list[Reading]] = {}
        for reading in readings:
            of_device.setdefault(reading.worker, []).append(reading)
        for own in of_device.values():
            _book(start, name, own)


def _book(start: Start, name: str, parts: list[Reading]) -> None:
    total = add_up(name, parts, parts[-1].source)
    start.figures.setdefault(name, {})[total.worker, total.source] = total


WORDINGS = wordings(_RULES, _SPECIAL, _finish)
