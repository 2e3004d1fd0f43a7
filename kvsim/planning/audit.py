"""Whether the figures of a start-up log agree with each other and with the model's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvsim.catalog import GIB, Model, weight_bytes
from kvsim.catalog.kv import kv_bytes_per_group_token
from kvsim.errors import InputError
from kvsim.planning import checks_llama_cpp, checks_sglang, checks_tensorrt_llm
from kvsim.planning.checks import Check as Check
from kvsim.planning.checks import number as _number
from kvsim.planning.pool_groups import fit_groups
from kvsim.planning.releases import LATEST, Engine, Release, release_of
from kvsim.planning.start import KvLayout
from kvsim.planning.start import start as start_of
from kvsim.startup_logs import Reading, StartupLog

WEIGHTS_TOLERANCE = 0.01
USUAL_BATCHED_TOKENS = 8192
"""Of a large GPU, where the log does not say."""
"""Of the weights by shape: scales, buffers and padding are not counted."""
CONCURRENCY_DIGITS = 0.005
MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Audit:
    """What a log says, what of it could be checked, and what could not."""

    log: StartupLog
    model: Model | None
    release: Release | None
    """None for servers other than vLLM."""
    checks: tuple[Check, ...]
    notes: tuple[str, ...]


def audit(log: StartupLog, model: Model | None) -> Audit:
    """Check the last start-up of a log. `model` is None where nobody knows its shapes.

    Notes say what cannot be checked, and how other servers' fractions differ from vLLM's.
    """
    if log.server in _OTHERS:
        return _audit_other(log, model)
    release, notes = _release(log)
    checks = [*_budget(log, release), *_tokens(log, release), *_concurrency(log, release)]
    if model is None:
        notes.append(_UNKNOWN_SHAPES)
    else:
        try:
            checks += [*_weights(log, model), *_blocks(log, model, release)]
        except InputError as error:
            notes.append(f"{model.name} is not checked: {error.problem}")
    return Audit(log, model, release, tuple(checks), tuple(notes))


_OTHERS = {
    "sglang": checks_sglang.checks_of,
    "tensorrt-llm": checks_tensorrt_llm.checks_of,
    "llama.cpp": checks_llama_cpp.checks_of,
}


def _audit_other(log: StartupLog, model: Model | None) -> Audit:
    """A log of another server; without the model's bytes where these are not known."""
    checks_of, doubt = _OTHERS[log.server], _UNKNOWN_SHAPES if model is None else ""
    try:
        checks, notes = checks_of(log, model)
    except InputError as error:
        checks, notes = checks_of(log, None)
        doubt = f"the model's bytes are not checked: {error.problem}"
    return Audit(log, model, None, tuple(checks), (*notes, *([doubt] if doubt else [])))


_UNKNOWN_SHAPES = "the model's shapes are not known: name it to check its bytes"


def _release(log: StartupLog) -> tuple[Release, list[str]]:
    engine: Engine | None = "v0" if log.engine == "v0" else "v1" if log.engine == "v1" else None
    if log.version is None:
        latest = LATEST if engine != "v0" else release_of("0.6.4", "v0")
        return latest, [f"the log names no version: rules of {latest.name}"]
    try:
        return release_of(log.version, engine), []
    except InputError as error:
        return LATEST, [f"{error.problem}: rules of {LATEST.name}"]


def _budget(log: StartupLog, release: Release) -> Iterator[Check]:
    """budget - weights - non_torch - activation_peak is what is available (vLLM, FIELD.md).

    Where the estimate of the CUDA graphs is within the budget and printed, it is subtracted too.
    """
    names = ["weights_gib", "non_torch_gib", "activation_peak_gib"]
    if release.graphs_in_budget and "cudagraph_estimate_gib" in log.figures:
        names.append("cudagraph_estimate_gib")
    available = log.figures.get("available_kv_gib")
    if available is None:
        return
    own = log.of_worker(available.worker)
    budget = _printed_budget(log, own)
    if budget is None or not all(name in own for name in names):
        return
    left = budget[0] - sum(float(own[name].value or 0.0) for name in names)
    slack = budget[1] + sum(own[name].rounding for name in names) + available.rounding
    yield Check(
        "available_kv_gib",
        "GiB",
        float(own["available_kv_gib"].value or 0.0),
        left - slack,
        left + slack,
        available.line,
        " - ".join(["budget", *(name.removesuffix("_gib") for name in names)]),
    )


def _printed_budget(log: StartupLog, own: Mapping[str, Reading]) -> tuple[float, float] | None:
    """Budget and its rounding in GiB: as printed, or the GPU's memory times the share."""
    if "budget_gib" in own:
        return float(own["budget_gib"].value or 0.0), own["budget_gib"].rounding
    total, share = own.get("gpu_mem_gib_reported"), log.settings.get("gpu_memory_utilization")
    part = _number(share)
    if total is None or part is None:
        return None
    size = float(total.value or 0.0)
    return size * part[0], total.rounding * part[0] + size * part[1]


def _tokens(log: StartupLog, release: Release) -> Iterator[Check]:
    """The blocks of one group of layers times their tokens are the tokens of the cache."""
    blocks, tokens = _number(log.figures.get("num_gpu_blocks")), log.figures.get("kv_tokens")
    printed = _number(tokens)
    if blocks is None or printed is None or tokens is None:
        return
    if release.prints_tokens_of_one_request:
        return  # they follow from the concurrency, not from the blocks
    size, groups = _block_size(log), _num_groups(log)
    expected = blocks[0] // groups * size
    shared = "" if groups == 1 else f", shared by {groups} groups of layers"
    yield Check(
        "kv_tokens",
        "tokens",
        printed[0],
        expected,
        expected,
        tokens.line,
        f"num_gpu_blocks * {size}{shared}",
    )


def _num_groups(log: StartupLog) -> int:
    """Groups of layers that would explain the printed tokens; 1 where no number does."""
    blocks, tokens = (_number(log.figures.get(name)) for name in ("num_gpu_blocks", "kv_tokens"))
    if blocks is None or tokens is None:
        return 1
    size = _block_size(log)
    known = range(1, MOST_GROUPS + 1)
    return next((n for n in known if blocks[0] // n * size == tokens[0]), 1)


def _block_size(log: StartupLog) -> int:
    found = _number(log.settings.get("block_size"))
    return 16 if found is None or found[0] < 1 else int(found[0])


def _concurrency(log: StartupLog, release: Release) -> Iterator[Check]:
    """Tokens over max_model_len, printed with two decimals, where all layers keep every token."""
    if _num_groups(log) > 1:
        return  # what a request takes of the other groups depends on their windows
    found = log.figures.get("max_concurrency")
    printed, tokens = _number(found), _stored_tokens(log)
    length = _number(log.settings.get("max_model_len"))
    if found is None or printed is None or not tokens or length is None or not length[0]:
        return
    size = _block_size(log)
    exact = tokens / length[0]
    whole = tokens // size / -(-length[0] // size)
    low, high = sorted((exact, whole if release.engine == "v1" else exact))
    yield Check(
        "max_concurrency",
        "requests",
        printed[0],
        low - CONCURRENCY_DIGITS - 1e-9,
        high + CONCURRENCY_DIGITS + 1e-9,
        found.line,
        "kv_tokens / max_model_len, by whole blocks in v1",
    )


def _stored_tokens(log: StartupLog) -> float:
    """Tokens of the cache, as printed or from its blocks; 0 where the log says neither."""
    tokens, blocks = (_number(log.figures.get(name)) for name in ("kv_tokens", "num_gpu_blocks"))
    if tokens is not None:
        return tokens[0]
    return blocks[0] * _block_size(log) if blocks else 0.0


def _tp(log: StartupLog) -> int:
    found = _number(log.settings.get("tensor_parallel_size"))
    return 1 if found is None or found[0] < 1 else int(found[0])


def _weights(log: StartupLog, model: Model) -> Iterator[Check]:
    found = log.figures.get("weights_gib")
    printed = _number(found)
    if found is None or printed is None:
        return
    size = weight_bytes(model, tp=_tp(log)) / GIB
    if model.encoder is not None and model.checkpoint_bytes is None:
        size += model.encoder.weight_bytes(_tp(log)) / GIB
    slack = WEIGHTS_TOLERANCE * size + printed[1]
    yield Check(
        "weights_gib",
        "GiB",
        printed[0],
        size - slack,
        size + slack,
        found.line,
        f"parameters of {model.name} by shape, tp {_tp(log)}",
    )


def _blocks(log: StartupLog, model: Model, release: Release) -> Iterator[Check]:
    """The available memory in whole blocks, and what one request needs of it."""
    layout = _layout(log, model, release)
    available = log.figures.get("available_kv_gib")
    pool, length = _number(available), _number(log.settings.get("max_model_len"))
    blocks = log.figures.get("num_gpu_blocks")
    printed = _number(blocks)
    if pool is not None and blocks is not None and printed is not None:
        low, high = (int((pool[0] + way * pool[1]) * GIB) for way in (-1, 1))
        yield Check(
            "num_gpu_blocks",
            "blocks",
            printed[0],
            low // layout.block_bytes,
            high // layout.block_bytes,
            blocks.line,
            f"available_kv_gib / {layout.block_bytes:,} bytes of a block",
        )
    refusal = log.refusal
    needed = refusal.numbers.get("needed_gib_one_request") if refusal else None
    if refusal is None or needed is None or length is None:
        return
    found = start_of(
        layout,
        release,
        max_model_len=int(length[0]),
        max_in_flight=_in_flight(log, release),
        available_bytes=0,
    )
    if found.refusal is None:
        return
    size = found.refusal.needed_bytes / GIB
    yield Check(
        "needed_gib_one_request",
        "GiB",
        float(needed.value or 0.0),
        size - needed.rounding - 1e-9,
        size + needed.rounding + 1e-9,
        needed.line,
        f"blocks of one request of {int(length[0]):,} tokens",
    )


def _layout(log: StartupLog, model: Model, release: Release) -> KvLayout:
    cache = log.settings.get("kv_cache_dtype")
    kv_dtype_bytes = 1 if cache is not None and str(cache.value).startswith("fp8") else None
    groups = fit_groups(model, release, tp=_tp(log), kv_dtype_bytes=kv_dtype_bytes)
    tokens = groups.block_tokens(_block_size(log))
    if groups.pages is not None:
        return KvLayout(groups, tokens, groups.pages.block_bytes)
    token_bytes = groups.token_bytes or kv_bytes_per_group_token(
        model, groups.layers, tp=_tp(log), kv_dtype_bytes=kv_dtype_bytes
    )
    return KvLayout(groups, tokens, tokens * token_bytes)


def _in_flight(log: StartupLog, release: Release) -> int:
    """Tokens computed before a window moves on: as set, with the other step's where it counts."""
    given = _number(log.settings.get("max_num_batched_tokens"))
    tokens = USUAL_BATCHED_TOKENS if given is None else int(given[0])
    return tokens * (2 if release.counts_steps_in_flight else 1)
