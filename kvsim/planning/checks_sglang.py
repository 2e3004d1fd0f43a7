"""The figures of an SGLang log against its rules and the model's bytes."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.catalog import GIB, Model, kv_bytes_per_token
from kvsim.catalog.kv_layers import LayerKv, layer_kvs
from kvsim.errors import InputError
from kvsim.planning.checks import Check, check, number, whole
from kvsim.planning.fractions import why_tokens_differ
from kvsim.planning.sglang import kv_memory_bytes
from kvsim.startup_logs import Reading, StartupLog

_UNCHECKED = "weights and CUDA graphs are differences of free memory: shown as printed"


def checks_of(log: StartupLog, model: Model | None) -> tuple[list[Check], list[str]]:
    """Checks, and notes on what cannot be checked. Raises `InputError` as the model's bytes do."""
    notes = [why_tokens_differ("sglang"), _UNCHECKED]
    found = [*_same_tokens(log), *_share(log, notes)]
    if model is not None:
        found += _sizes(log, model, notes)
    return found, notes


def _same_tokens(log: StartupLog) -> Iterator[Check]:
    """`max_total_num_tokens` is what the pool holds."""
    tokens = log.figures.get("kv_tokens")
    if tokens is None:
        return
    stated = [one for one in tokens.readings if one.source.startswith("max_total_num_tokens")]
    pools = [one for one in tokens.readings if not one.source.startswith("max_total_num_tokens")]
    for one in stated[-1:]:
        own = [number(pool) for pool in pools if pool.worker == one.worker]
        for pool in own[-1:]:
            if pool is not None:
                yield check("kv_tokens", one, pool[0], pool[0], "#tokens of the pool")


def _share(log: StartupLog, notes: list[str]) -> Iterator[Check]:
    """The pool is what the weights leave of the fraction of the memory that was free before."""
    size = log.figures.get("kv_size_gib")
    share = number(log.settings.get("mem_fraction_static"))
    if size is None:
        return
    own = log.of_worker(size.worker)
    after, weights = (number(own.get(name)) for name in ("free_after_weights_gib", "weights_gib"))
    if share is None or after is None or weights is None or not 0 < share[0] < 1:
        notes.append(
            "the log does not print both mem_fraction_static and the free memory around the load of"
            " the weights: how the pool's size follows from them is not checked"
        )
        return
    for name, why in (("max_total_tokens", "a cap"), ("speculative_config", "a draft model")):
        given = log.settings.get(name)
        if given is not None and given.value is not None:
            notes.append(f"the pool is smaller than the fraction allows: {name} is set ({why})")
            return
    states, state_rounding = number(own.get("state_gib")) or (0.0, 0.0)
    expected = kv_memory_bytes(
        free_before_weights_bytes=round((after[0] + weights[0]) * GIB),
        free_after_weights_bytes=round(after[0] * GIB),
        mem_fraction_static=share[0],
        state_pool_bytes=round(states * GIB),
    )
    slack = after[1] * share[0] + weights[1] * (1 - share[0]) + state_rounding
    how = "free_after_weights - (free_after_weights + weights) * (1 - mem_fraction_static)"
    yield check(
        "kv_size_gib",
        own["kv_size_gib"],
        expected / GIB - slack - _last_page_gib(log, own),
        expected / GIB + slack + _last_page_gib(log, own),
        how + (" - state" if states else ""),
    )


def _last_page_gib(log: StartupLog, own: dict[str, Reading]) -> float:
    """What rounding down to whole pages, and the slots beside them, come to."""
    tokens, size = number(own.get("kv_tokens")), number(own.get("kv_size_gib"))
    if tokens is None or size is None or not tokens[0]:
        return 0.0
    return whole(log, "block_size", 1) * size[0] / tokens[0]


def _sizes(log: StartupLog, model: Model, notes: list[str]) -> Iterator[Check]:
    """Tokens times the model's bytes per token; one page more is allocated as padding."""
    size = log.figures.get("kv_size_gib")
    if size is None:
        return
    own = log.of_worker(size.worker)
    tokens, swa = number(own.get("kv_tokens")), number(own.get("kv_swa_tokens"))
    doubt = _not_covered(log, model)
    if doubt or tokens is None:
        notes.append(f"bytes per token are not checked: {doubt or 'the log prints no tokens'}")
        return
    layers = layer_kvs(
        model, tp=whole(log, "tensor_parallel_size", 1), kv_dtype_bytes=_kv_dtype_bytes(log)
    )

    def bytes_of(padding: int) -> float:
        windows = tokens[0] if swa is None else swa[0]
        return sum(_bytes(one, tokens[0] + padding, windows + padding) for one in layers) / GIB

    low, high = bytes_of(0), bytes_of(whole(log, "block_size", 1))
    per_token = kv_bytes_per_token(
        model, tp=whole(log, "tensor_parallel_size", 1), kv_dtype_bytes=_kv_dtype_bytes(log)
    )
    how = f"kv_tokens * {per_token:,} bytes of a token"
    if swa is not None:
        how = "tokens of each of the two pools times the bytes of its layers"
    yield check("kv_size_gib", own["kv_size_gib"], low, high, how)


def _bytes(one: LayerKv, tokens: float, window_tokens: float) -> float:
    held = tokens if one.limit_tokens is None else window_tokens
    return one.layers * one.bytes_per_token * held


def _not_covered(log: StartupLog, model: Model) -> str:
    """Why bytes per token of one GPU are not known; empty where they are."""
    if any(getattr(group.attention, "index_bytes", 0) for group in model.groups):
        return "the index beside the cache is in a pool that the log does not print"
    if whole(log, "pipeline_parallel_size", 1) > 1:
        return "the log does not say how many layers each stage has"
    if whole(log, "data_parallel_size", 1) > 1 and model.attention.kind != "mla":
        return "with data parallelism the log does not say over how many GPUs the heads are split"
    return ""


def _kv_dtype_bytes(log: StartupLog) -> int | None:
    cache = log.settings.get("kv_cache_dtype")
    if cache is None or cache.value is None:
        return None
    name = str(cache.value)
    if name in ("auto", "bf16", "bfloat16"):
        return 2 if name != "auto" else None
    if name.startswith("fp8"):
        return 1
    raise InputError(f"kv_cache_dtype {name[:20]!r} has no known bytes", where="kv_cache_dtype")
