"""What `kvsim fit` says of the settings in a start-up log, beside what the server printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from kvsim.catalog import GIB, Gpu, Model, get_gpu, list_gpus
from kvsim.errors import InputError
from kvsim.planning.audit import Audit
from kvsim.planning.checks import number
from kvsim.planning.document import request_bytes
from kvsim.planning.fit import Fit, FitSettings, Verdict
from kvsim.planning.others import OtherFit, SharingServer, other_fit
from kvsim.planning.pipeline import fit_whole
from kvsim.startup_logs import Reading, StartupLog

MEMORY_SLACK = 0.02
"""Relative difference between two GPUs' memories that are taken for the same."""
_WHOLE = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
)
_TERMS = {
    "weights": "weights_gib",
    "activation_peak": "activation_peak_gib",
    "non_torch": "non_torch_gib",
    "kv_pool": "available_kv_gib",
}
"""Term of the budget -> the figure that vLLM prints of it."""
_OTHER_TERMS = {"weights": "weights_gib", "kv_pool": "kv_size_gib"}
_FRACTIONS: Mapping[SharingServer, str] = {
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
}
_NOT_FOLLOWED = {
    "kv_cache_memory_bytes": "the pool was given in bytes, not sized from the memory",
    "num_gpu_blocks_override": "the number of blocks was given, not sized from the memory",
    "speculative_config": "a draft model takes memory beside the model",
    "cpu_offload_gb": "some of the weights are in host memory",
}
"""Settings that the prediction leaves out, and what they change."""


class Beside(NamedTuple):
    """One figure: printed, and predicted before the start."""

    name: str
    unit: str
    printed: float
    rounding: float
    """How far the true value may lie from `printed`."""
    line: int
    """Of the log, from 1."""
    predicted: float
    low: float
    high: float
    """Ends of the 80 % interval; equal where nothing is estimated."""

    @property
    def difference(self) -> float:
        """Predicted less printed."""
        return self.predicted - self.printed

    @property
    def inside(self) -> bool:
        """Whether the interval holds the printed value, within its rounding."""
        slack = self.rounding + 1e-9
        return self.low - slack <= self.printed <= self.high + slack


class BesideLog(NamedTuple):
    """A prediction laid beside a log."""

    figures: tuple[Beside, ...]
    verdict: Verdict
    refused: bool
    """Whether the log says that the server did not start."""
    settings: Mapping[str, Any]
    """What was asked of `fit`: the settings that the log prints; defaults fill in the rest."""
    notes: tuple[str, ...]


def beside_log(found: Audit, model: Model, gpu: Gpu) -> BesideLog:
    """The prediction for a log's settings, per GPU.

    Raises `InputError` as `fit` does, and for llama.cpp, whose log does not say which memory it
    was given.
    """
    log = found.log
    model, notes = _long_enough(log, model)
    notes += [
        f"{name} (line {log.settings[name].line:,}): {why}; the prediction leaves it out"
        for name, why in _NOT_FOLLOWED.items()
        if name in log.settings and log.settings[name].value not in (None, 0, "None", "")
    ]
    if log.server == "vllm" and found.release is not None:
        given = settings_of_log(log)
        fit = fit_whole(model, gpu, given, release=found.release)
        asked = {name: getattr(given, name) for name in (*_WHOLE, *_MORE) if name in log.settings}
        figures, verdict = tuple(_of_vllm(log, fit)), fit.verdict
    elif log.server in _FRACTIONS:
        other, asked = _other(log, model, gpu)
        figures, verdict = tuple(_of_other(log, other)), other.verdict
    else:
        raise InputError(
            f"what {log.server} would take is not predicted from its log",
            where="log",
            fix=f"Ask `kvsim fit MODEL --gpu GPU --server {log.server}`",
        )
    return BesideLog(figures, verdict, log.refusal is not None, asked, tuple(notes))


_MORE = ("gpu_memory_utilization", "kv_cache_dtype", "enable_prefix_caching")


def settings_of_log(log: StartupLog) -> FitSettings:
    """The settings that vLLM printed; what it did not print has the release's default.

    The GPU's memory is the one in the log, where it is there.
    """
    flags: dict[str, Any] = {}
    for name in _WHOLE:
        found = number(log.settings.get(name))
        if found is not None and found[0] >= 1:
            flags[name] = int(found[0])
    share = number(log.settings.get("gpu_memory_utilization"))
    if share is not None:
        flags["gpu_memory_utilization"] = share[0]
    caching = log.settings.get("enable_prefix_caching")
    if caching is not None and isinstance(caching.value, bool):
        flags["enable_prefix_caching"] = caching.value
    total = number(log.figures.get("gpu_mem_gib_reported"))
    if total is not None and total[0] > 0:
        flags["measured_bytes"] = {"total": round(total[0] * GIB)}
    return FitSettings(**flags, kv_cache_dtype="fp8" if _is_fp8(log) else "auto")


def _is_fp8(log: StartupLog) -> bool:
    cache = log.settings.get("kv_cache_dtype")
    return cache is not None and str(cache.value).startswith("fp8")


def _long_enough(log: StartupLog, model: Model) -> tuple[Model, list[str]]:
    """A server may be told to take longer requests than the model's config says."""
    length = number(log.settings.get("max_model_len"))
    if length is None or length[0] <= model.max_position:
        return model, []
    note = (
        f"max_model_len is above the {model.max_position:,} tokens of {model.name}: the prediction"
        " takes it as the log has it"
    )
    return replace(model, max_position=int(length[0])), [note]


def _of_vllm(log: StartupLog, fit: Fit) -> Iterator[Beside]:
    terms = {term.name: term for term in fit.budget.terms()}
    graphs = "cudagraph_estimate_gib" if fit.release.graphs_in_budget else "cudagraph_gib"
    for name, key in {**_TERMS, "cuda_graphs": graphs}.items():
        if name in terms:
            term = terms[name]
            ends = term.bytes / GIB, term.low / GIB, term.high / GIB
            yield from _beside(log, name, key, ends)
    starts = (fit.start, fit.start_low, fit.start_high)
    for name, key in (
        ("num_blocks", "num_gpu_blocks"),
        ("kv_tokens", "kv_tokens"),
        ("max_concurrency", "max_concurrency"),
    ):
        middle, low, high = (float(getattr(one, name)) for one in starts)
        yield from _beside(log, name, key, (middle, low, high))
    needed = log.refusal.numbers.get("needed_gib_one_request") if log.refusal else None
    if needed is not None:
        size = request_bytes(fit) / GIB
        yield from _row("kv_request", needed, (size, size, size))


def _other(log: StartupLog, model: Model, gpu: Gpu) -> tuple[OtherFit, dict[str, Any]]:
    server = cast(SharingServer, log.server)
    share, length, tp = (
        number(log.settings.get(name))
        for name in (_FRACTIONS[server], "max_model_len", "tensor_parallel_size")
    )
    asked = {
        "tp": 1 if tp is None else int(tp[0]),
        "fraction": None if share is None else share[0],
        "max_model_len": None if length is None else int(length[0]),
    }
    width = 1 if _is_fp8(log) else None
    fit = other_fit(server, model, gpu, kv_dtype_bytes=width, **cast(Any, asked))
    return fit, {name: value for name, value in asked.items() if value is not None}


def _of_other(log: StartupLog, fit: OtherFit) -> Iterator[Beside]:
    for term in fit.terms:
        if term.name in _OTHER_TERMS:
            ends = term.bytes / GIB, term.low / GIB, term.high / GIB
            yield from _beside(log, term.name, _OTHER_TERMS[term.name], ends)
    tokens = (float(fit.tokens), float(fit.tokens_low), float(fit.tokens_high))
    yield from _beside(log, "kv_tokens", "kv_tokens", tokens)


def _beside(
    log: StartupLog, name: str, key: str, ends: tuple[float, float, float]
) -> Iterator[Beside]:
    found = log.figures.get(key)
    if found is not None:
        yield from _row(name, found.chosen, ends)


def _row(name: str, printed: Reading, ends: tuple[float, float, float]) -> Iterator[Beside]:
    value = number(printed)
    if value is not None:
        unit = printed.unit or ("requests" if name == "max_concurrency" else "")
        yield Beside(name, unit, *value, printed.line, *ends)


def beside_document(found: BesideLog) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "settings": dict(found.settings),
        "verdict": found.verdict,
        "refused": found.refused,
        "figures": [
            {**one._asdict(), "difference": one.difference, "inside": one.inside}
            for one in found.figures
        ],
        "notes": list(found.notes),
    }


def gpus_of_log(log: StartupLog) -> tuple[str, ...]:
    """Names of the catalogue's GPUs with about the memory that the log prints; may be empty."""
    total = number(log.figures.get("gpu_mem_gib_reported"))
    if total is None:
        return ()
    sizes = {name: get_gpu(name).reported_bytes / GIB for name in list_gpus()}
    near = [name for name, size in sizes.items() if abs(size - total[0]) <= MEMORY_SLACK * size]
    return tuple(sorted(near, key=lambda name: abs(sizes[name] - total[0])))
