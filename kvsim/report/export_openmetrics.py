"""OpenMetrics text with the names a vLLM server exposes, so that its dashboards read a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import ALLOWUTF8, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kvsim.report.export_metrics import (
    Histogram,
    cache_config,
    counters,
    gauges,
    histograms,
    unrecorded_gaps,
)
from kvsim.report.export_settings import settings_of
from kvsim.report.export_source import (
    Export,
    Source,
    every_step,
    sources,
    storable,
    unrecorded,
)
from kvsim.report.text import figure
from kvsim.results.read_run import Run
from kvsim.scenario import Scenario

_OVER_TIME = "Simulated; average over the measured time, idle time included."
HELP: Mapping[str, str] = MappingProxyType(
    {
        "kv_cache_usage_perc": f"KV-cache usage. 1 means 100 percent usage. {_OVER_TIME}",
        "num_requests_running": f"Number of requests in model execution batches. {_OVER_TIME}",
        "num_requests_waiting": f"Number of requests waiting to be processed. {_OVER_TIME}",
        "num_preemptions": "Cumulative number of preemption from the engine.",
        "prompt_tokens": "Number of prefill tokens processed: prompts that got their first token.",
        "generation_tokens": "Number of generation tokens processed.",
        "request_success": (
            "Count of successfully processed requests. A replayed request ends by its length."
        ),
        "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
        "inter_token_latency_seconds": (
            "Histogram of inter-token latency in seconds, without the gaps over a preemption."
        ),
        "request_time_per_output_token_seconds": (
            "Histogram of time_per_output_token_seconds per request of two tokens or more."
        ),
        "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
        "request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
        "request_prefill_time_seconds": (
            "Histogram of time from the first scheduling to the first token of a request."
        ),
        "request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
        "request_inference_time_seconds": (
            "Histogram of time from the first scheduling to the last token of a request."
        ),
        "request_prompt_tokens": "Number of prefill tokens processed.",
        "request_generation_tokens": "Number of generation tokens processed.",
        "iteration_tokens_total": (
            "Histogram of number of tokens per engine_step: those it computes."
        ),
        "cache_config_info": "Information of the LLMEngine CacheConfig",
    }
)


class Reading(NamedTuple):
    """The metrics of one source, by name without `vllm:`."""

    labels: dict[str, str]
    gauges: dict[str, float]
    counters: list[tuple[str, Mapping[str, str], int]]
    histograms: dict[str, Histogram]
    cache_config: dict[str, str]


def openmetrics_export(run: Run, variants: Sequence[str]) -> Export:
    """One exposition of all variants; labels `model_name`, `engine`, `variant` (and `seed`)."""
    settings = settings_of(run, variants)
    notes = unrecorded(run, variants, "histograms and token counters")
    readings = []
    for source in sources(run, variants):
        readings.append(reading(source, settings[source.variant]))
        if source.requests is None:
            continue
        if not every_step(source.steps):
            notes.append(
                f"{source.label}: no inter_token_latency_seconds and iteration_tokens_total, as "
                "the run kept no row per step (record.mode: steps)"
            )
        else:
            notes += _notes_on_gaps(source)
    return Export([("", [openmetrics_text(readings)])], notes)


def _notes_on_gaps(source: Source) -> Iterator[str]:
    what, missing = f"{source.label}: inter_token_latency_seconds", unrecorded_gaps(source)
    swapped = int(figure(source.entry, "swap.swapped_in_groups") or 0)
    recomputed = int(figure(source.entry, "preemptions") or 0) > swapped
    if missing or (missing is None and recomputed):
        count = "" if missing is None else f"{missing} "
        yield f"{what} lacks the {count}gaps over a preemption, which no row holds"
    if swapped:
        yield f"{what} has gaps over a swap as long as the step in which the request came back"


def reading(source: Source, settings: Scenario) -> Reading:
    """The metrics of one source."""
    labels = {
        "model_name": settings.model or "unknown",
        "engine": "0",
        "variant": source.variant,
    }
    if source.seed is not None:
        labels["seed"] = str(source.seed)
    return Reading(
        {name: storable(value) for name, value in labels.items()},
        dict(gauges(source)),
        list(counters(source)),
        dict(histograms(source, settings)),
        cache_config(source, settings),
    )


def openmetrics_text(readings: Sequence[Reading]) -> bytes:
    """The exposition, from a registry of its own; ends in `# EOF`."""
    registry = CollectorRegistry()
    registry.register(_Readings(readings))
    # The default escaping turns the colon in the names of samples, not of families, into "_".
    text: bytes = generate_latest(registry, escaping=ALLOWUTF8)  # type: ignore[no-untyped-call]
    return text


class _Readings(Collector):
    """Hands the readings to `prometheus_client`, one family after the other."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        for name, text in HELP.items():
            families = (self._gauge(name, text), self._counter(name, text))
            for family in (*families, self._histogram(name, text), self._info(name, text)):
                if family.samples:
                    yield family

    def _gauge(self, name: str, text: str) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=self._names())
        for reading in self._readings:
            if name in reading.gauges:
                family.add_metric(list(reading.labels.values()), reading.gauges[name])
        return family

    def _counter(self, name: str, text: str) -> Metric:
        own = ["finished_reason"] if name == "request_success" else []
        family = CounterMetricFamily(f"vllm:{name}", text, labels=[*self._names(), *own])
        for reading, labels, value in self._counts(name):
            family.add_metric([*reading.labels.values(), *labels.values()], value)
        return family

    def _counts(self, name: str) -> Iterator[tuple[Reading, Mapping[str, str], int]]:
        for reading in self._readings:
            for counter, labels, value in reading.counters:
                if counter == name:
                    yield reading, labels, value

    def _histogram(self, name: str, text: str) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=self._names())
        for reading in self._readings:
            if name in reading.histograms:
                buckets, total = reading.histograms[name]
                family.add_metric(
                    list(reading.labels.values()),
                    [(_bound(bound), count) for bound, count in buckets],
                    total,
                )
        return family

    def _info(self, name: str, text: str) -> Metric:
        # A gauge, as in vLLM; an OpenMetrics info would give the same line.
        family = GaugeMetricFamily(f"vllm:{name}", text)
        if name == "cache_config_info":
            for reading in self._readings:
                family.add_sample(f"vllm:{name}", reading.labels | reading.cache_config, 1)
        return family

    def _names(self) -> list[str]:
        return list(self._readings[0].labels) if self._readings else []


def _bound(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
