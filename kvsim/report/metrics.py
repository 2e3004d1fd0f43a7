"""Which way a figure should move, its unit, and the order in which a comparison shows figures."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from kvsim.report.tier_figures import TIER_FIGURES, TIERS

Better = Literal["higher", "lower"]


class Metric(NamedTuple):
    """A figure of a comparison."""

    path: str
    """Dotted path in a variant's entry of `summary.json`."""
    unit: str
    better: Better | None
    """None where a change is neither good nor bad by itself."""


def _memory(path: str, better: Better | None) -> Metric:
    return Metric(f"memory.by_time.{path}", "share", better)


def _latency(name: str, unit: str) -> tuple[Metric, ...]:
    figures = ("mean", "p50", "p90", "p99", "max")
    return tuple(Metric(f"{name}.{figure}", unit, "lower") for figure in figures)


MEMORY_METRICS = (
    Metric("memory.capacity_slots", "slots", None),
    _memory("live", None),
    _memory("reservation", "lower"),
    _memory("detail.reservation.tail", "lower"),
    _memory("detail.reservation.ahead", "lower"),
    _memory("internal", "lower"),
    _memory("detail.internal.tail", "lower"),
    _memory("detail.internal.over_reservation", "lower"),
    _memory("detail.internal.roundup", "lower"),
    _memory("external", "lower"),
    Metric("memory.free_fragmentation", "share of free", None),
    _memory("usable_free", None),
    _memory("detail.usable_free.cached", None),
    Metric("memory.kv_utilization", "share", None),
    Metric("memory.peak_allocated", "share", None),
    Metric("memory.empty_tail_slots_per_sequence", "slots", "lower"),
    Metric("memory.largest_free_extent_tokens.mean", "tokens", None),
    Metric("memory.largest_free_extent_tokens.min", "tokens", None),
    Metric("memory.paper.tokens", "share", None),
    Metric("memory.paper.reservation", "share", "lower"),
    Metric("memory.paper.internal", "share", "lower"),
    Metric("memory.paper.external_and_others", "share", None),
)
"""Live memory, free memory and batch follow the load: more of them is no merit by itself."""

SERVICE_METRICS = (
    Metric("batch.mean", "requests", None),
    Metric("batch.max", "requests", None),
    Metric("batch.mean_by_time", "requests", None),
    Metric("throughput.requests_per_s", "requests/s", "higher"),
    Metric("throughput.output_tokens_per_s", "tokens/s", "higher"),
    Metric("throughput.total_tokens_per_s", "tokens/s", "higher"),
    Metric("throughput.goodput_rps", "requests/s", "higher"),
    *_latency("ttft_s", "s"),
    *_latency("tpot_s", "s"),
    *_latency("itl_s", "s"),
    *_latency("e2e_s", "s"),
    *_latency("queue_s", "s"),
    *_latency("normalized_latency_s_per_token", "s/token"),
    Metric("requests.submitted", "requests", None),
    Metric("requests.finished", "requests", "higher"),
    Metric("requests.rejected", "requests", "lower"),
    Metric("requests.aborted", "requests", "lower"),
    Metric("requests.unfinished", "requests", "lower"),
    Metric("requests.held_up_by_fragmentation", "requests", "lower"),
    Metric("preemptions", "count", "lower"),
    Metric("prefix_cache.hit_rate", "share", "higher"),
    Metric("prefix_cache.query_tokens", "tokens", None),
    Metric("prefix_cache.hit_tokens", "tokens", "higher"),
    Metric("prefix_cache.never_seen_tokens", "tokens", None),
    Metric("prefix_cache.evicted_tokens", "tokens", "lower"),
    Metric("prefix_cache.block_rounding_tokens", "tokens", "lower"),
    Metric("prefix_cache.last_token_tokens", "tokens", None),
    Metric("prefix_cache.resumed_hit_tokens", "tokens", None),
    Metric("prefix_cache.evicted_blocks", "blocks", None),
    Metric("speculation.acceptance_rate", "share", "higher"),
    Metric("speculation.tokens_per_decode", "tokens", "higher"),
    Metric("speculation.draft_tokens", "tokens", None),
    Metric("speculation.accepted_tokens", "tokens", None),
    Metric("mapping.mapped_page_sets", "page sets", "lower"),
    Metric("mapping.reused_page_sets", "page sets", None),
    Metric("layer_groups.padding", "share", "lower"),
    Metric("layer_groups.out_of_window", "share", "lower"),
    *(
        Metric(f"offload.{tier}.{figure.name}", figure.unit, figure.better)
        for tier in TIERS
        for figure in TIER_FIGURES
    ),
    Metric("pages.page_sets", "page sets", None),
    Metric("pages.page_set_bytes", "bytes", None),
    Metric("pages.held_page_sets", "page sets", "lower"),
    Metric("pages.cached_page_sets", "page sets", None),
    Metric("pages.peak_page_sets", "page sets", "lower"),
    Metric("pages.unfilled", "share", "lower"),
    Metric("pages.freed_by_half_page_sets", "page sets", "higher"),
    Metric("sharing.logical_blocks", "blocks", None),
    Metric("sharing.physical_blocks", "blocks", None),
    Metric("sharing.saving", "share", "higher"),
    Metric("sharing.saving_by_step", "share", "higher"),
    Metric("sharing.prompt_share", "share", None),
    Metric("sharing.generated_share", "share", None),
    Metric("sharing.copies", "count", "lower"),
    Metric("sharing.copied_tokens", "tokens", "lower"),
    Metric("sharing.copied_bytes", "bytes", "lower"),
    Metric("swap.swapped_out_groups", "count", None),
    Metric("swap.swapped_in_groups", "count", None),
    Metric("swap.swapped_out_blocks", "blocks", "lower"),
    Metric("swap.swapped_in_blocks", "blocks", "lower"),
    Metric("swap.swapped_out_tokens", "tokens", "lower"),
    Metric("swap.swapped_in_tokens", "tokens", "lower"),
    Metric("swap.swapped_bytes", "bytes", "lower"),
    Metric("swap.swap_s", "s", "lower"),
    Metric("swap.peak_host_blocks", "blocks", None),
    Metric("swap.recomputed_for_lack_of_host_blocks", "count", "lower"),
    Metric("held_up_steps", "steps", "lower"),
    Metric("short_of_memory_steps", "steps", "lower"),
    Metric("queued_steps", "steps", "lower"),
    Metric("queued_steps_at_max_num_seqs", "steps", "lower"),
    Metric("queued_steps_at_token_budget", "steps", "lower"),
    Metric("tokens.scheduled", "tokens", None),
    Metric("tokens.recomputed", "tokens", "lower"),
    Metric("steps", "steps", None),
    Metric("duration_s", "s", None),
)

METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.path: metric for metric in (*MEMORY_METRICS, *SERVICE_METRICS)}
)


def better(path: str) -> Better | None:
    """Which way the figure at a path should move; None where nothing says so.

    Averages over steps go by those over time.
    """
    metric = METRICS.get(path.replace("memory.by_iteration.", "memory.by_time."))
    return metric.better if metric else None
