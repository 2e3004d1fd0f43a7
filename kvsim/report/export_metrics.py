"""What vLLM's metrics are at the end of a run, computed from its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.report.export_source import (
    NS_PER_S,
    Ints,
    Source,
    column,
    every_step,
    nanoseconds,
    request_times,
)
from kvsim.report.text import figure
from kvsim.scenario import Scenario

# Bounds of the v1 engine's histograms, vllm/v1/metrics/buckets.py at commit 139b1c3f; loggers.py of
# the releases since 0.11 has the same.
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram(NamedTuple):
    """Values <= each bound, cumulative; the last bound is infinity."""

    buckets: list[tuple[float, int]]
    total: float
    """Sum of all values."""


def token_buckets(max_model_len: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to `max_model_len` (vLLM's `build_1_2_5_buckets`)."""
    bounds = (mantissa * 10**power for power in range(16) for mantissa in (1, 2, 5))
    return [bound for bound in bounds if bound <= max_model_len]


def histogram(
    values: Ints, bounds: Sequence[float], *, scale: int = 1, weights: Ints | None = None
) -> Histogram:
    """Histogram of `values / scale`: exact, as bounds are compared in the values' own unit."""
    edges = np.array([round(bound * scale) for bound in bounds], dtype=np.int64)
    places = np.searchsorted(edges, values, side="left")
    counts = np.bincount(places, weights=weights, minlength=len(bounds) + 1)
    cumulative = [int(count) for count in np.cumsum(counts)]
    if weights is None:
        total = sum(values.tolist())
    else:
        total = sum(map(math.prod, zip(values.tolist(), weights.tolist(), strict=True)))
    return Histogram(list(zip((*bounds, math.inf), cumulative, strict=True)), total / scale)


class RequestFigures(NamedTuple):
    """Latencies in nanoseconds and tokens of the requests for which each is defined."""

    ttft: Ints
    tpot: Ints
    e2e: Ints
    queue: Ints
    prefill: Ints
    decode: Ints
    prompt_tokens: Ints
    output_tokens: Ints


def request_figures(
    source: Source, frontend_ns: int, among: npt.NDArray[np.bool_] | None = None
) -> RequestFigures:
    """Figures of the finished requests, of those `among` them when given.

    As in the summary: TTFT and end-to-end include the frontend, TPOT is rounded to a nanosecond and
    undefined for one token.
    """
    times = request_times(source.requests)
    done = np.array(source.requests.column("outcome").to_pylist(), dtype=object) == "finished"
    done = done.astype(bool) if among is None else done.astype(bool) & among
    arrived, scheduled, first, finished = (values[done] for values in times)
    prompt = column(source.requests, "prompt_tokens").astype(np.int64)[done]
    output = column(source.requests, "output_tokens").astype(np.int64)[done]
    decode = finished - first
    several = output > 1
    gaps = output[several] - 1
    return RequestFigures(
        ttft=first - arrived + frontend_ns,
        tpot=(2 * decode[several] + gaps) // (2 * gaps),
        e2e=finished - arrived + frontend_ns,
        queue=scheduled - arrived,
        prefill=first - scheduled,
        decode=decode,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def histograms(source: Source, settings: Scenario) -> Iterator[tuple[str, Histogram]]:
    """vLLM's histograms by name, of those that the rows hold."""
    if source.requests is not None:
        yield from _of_requests(source, settings)
    if every_step(source.steps):
        gaps, decodes = decode_gaps(source)
        yield (
            "inter_token_latency_seconds",
            histogram(gaps, ITL_BUCKETS, scale=NS_PER_S, weights=decodes),
        )
        tokens = column(source.steps, "prefill_tokens") + column(source.steps, "decode_tokens")
        yield "iteration_tokens_total", histogram(tokens, ITERATION_BUCKETS)


def _of_requests(source: Source, settings: Scenario) -> Iterator[tuple[str, Histogram]]:
    figures = request_figures(source, round(settings.frontend_s * NS_PER_S))
    max_model_len = figure(source.entry, "setup.max_model_len") or 0
    bounds = token_buckets(int(max_model_len))
    for name, values, buckets in (
        ("time_to_first_token_seconds", figures.ttft, TTFT_BUCKETS),
        ("request_time_per_output_token_seconds", figures.tpot, ITL_BUCKETS),
        ("e2e_request_latency_seconds", figures.e2e, LATENCY_BUCKETS),
        ("request_queue_time_seconds", figures.queue, LATENCY_BUCKETS),
        ("request_prefill_time_seconds", figures.prefill, LATENCY_BUCKETS),
        ("request_decode_time_seconds", figures.decode, LATENCY_BUCKETS),
        ("request_inference_time_seconds", figures.prefill + figures.decode, LATENCY_BUCKETS),
    ):
        yield name, histogram(values, buckets, scale=NS_PER_S)
    yield "request_prompt_tokens", histogram(figures.prompt_tokens, bounds)
    yield "request_generation_tokens", histogram(figures.output_tokens, bounds)


def decode_gaps(source: Source) -> tuple[Ints, Ints]:
    """Nanoseconds from each step's end back to the one before, and the tokens it decoded.

    Each is the gap of a decoded token. The gap of a request resumed after a preemption, since its
    last token before, is recorded nowhere.
    """
    starts = nanoseconds(column(source.steps, "time_s"))
    ends = starts + nanoseconds(column(source.steps, "duration_s"))
    return np.diff(ends, prepend=0), column(source.steps, "decode_tokens").astype(np.int64)


def unrecorded_gaps(source: Source) -> int | None:
    """Generated tokens that are neither a request's first nor decoded in a recorded step.

    None with several outputs per request: rows hold the tokens of one of them.
    """
    if figure(source.entry, "sharing.copies") is not None:
        return None
    first_tokens = int((request_times(source.requests).first_token >= 0).sum())
    generated = int(column(source.requests, "output_tokens").sum())
    return generated - first_tokens - int(column(source.steps, "decode_tokens").sum())


def counters(source: Source) -> Iterator[tuple[str, Mapping[str, str], int]]:
    """Counters of the whole run: name, own labels, value."""
    for reason, outcome in (("stop", None), ("length", "finished"), ("abort", "aborted")):
        # A replayed output has its length given, which is how it ends.
        count = figure(source.entry, f"requests.{outcome}") or 0
        yield "request_success", {"finished_reason": reason}, int(count)
    yield "num_preemptions", {}, int(figure(source.entry, "preemptions") or 0)
    if source.requests is not None:
        prompts = column(source.requests, "prompt_tokens")
        started = request_times(source.requests).first_token >= 0
        yield "prompt_tokens", {}, int(prompts[started].sum())
        yield "generation_tokens", {}, _generated_tokens(source)


def _generated_tokens(source: Source) -> int:
    """All outputs of the finished requests, as the summary counts them, and one of the others."""
    tokens, finished = (
        column(source.requests, "output_tokens"),
        figure(source.entry, "tokens.output"),
    )
    if finished is None:
        return int(tokens.sum())
    left = [outcome != "finished" for outcome in source.requests.column("outcome").to_pylist()]
    return int(finished) + int(tokens[np.array(left, dtype=bool)].sum())


def gauges(source: Source) -> Iterator[tuple[str, float]]:
    """Gauges as averages over the measured time; the last value would be that of an idle server."""
    terms = [
        figure(source.entry, f"memory.by_time.{name}")
        for name in ("live", "reservation", "internal")
    ]
    used = [term for term in terms if term is not None]
    if len(used) == len(terms):
        yield "kv_cache_usage_perc", math.fsum(used)
    running = figure(source.entry, "batch.mean_by_time")
    if running is not None:
        yield "num_requests_running", running
    waiting = _mean_waiting(source)
    if waiting is not None:
        yield "num_requests_waiting", waiting


def _mean_waiting(source: Source) -> float | None:
    window = figure(source.entry, "measured.from_s"), figure(source.entry, "measured.to_s")
    if source.steps is None or window[0] is None or window[1] is None or window[0] >= window[1]:
        return None
    starts = column(source.steps, "time_s")
    ends = np.minimum(starts + column(source.steps, "duration_s"), window[1])
    seconds = np.maximum(0.0, ends - np.maximum(starts, window[0]))
    waiting = np.nan_to_num(column(source.steps, "waiting"))
    return math.fsum((waiting * seconds).tolist()) / (window[1] - window[0])


def cache_config(source: Source, settings: Scenario) -> dict[str, str]:
    """Labels of `vllm:cache_config_info`; what a simulation does not know is "None", as in vLLM."""
    blocks, size, longest = (
        figure(source.entry, f"setup.{name}") or None
        for name in ("num_blocks", "block_size", "max_model_len")
    )
    concurrency = tokens = None
    if settings.memory.kind in ("paged", "vmm") and blocks and size and longest:
        concurrency = blocks / math.ceil(longest / size)
        tokens = int(concurrency * longest)
    labels = {
        "block_size": size,
        "cache_dtype": settings.engine.kv_cache_dtype,
        "enable_prefix_caching": settings.engine.enable_prefix_caching,
        "gpu_memory_utilization": settings.engine.gpu_memory_utilization,
        "kv_cache_max_concurrency": concurrency,
        "kv_cache_memory_bytes": None,
        "kv_cache_size_tokens": tokens,
        "num_cpu_blocks": None,
        "num_gpu_blocks": blocks,
        "num_gpu_blocks_override": settings.memory.num_blocks,
        "prefix_caching_hash_algo": None,
        "sliding_window": None,
    }
    return {name: str(value) for name, value in labels.items()}
