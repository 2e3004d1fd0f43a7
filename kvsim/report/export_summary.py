"""The summary as a tidy table: one row per variant and metric."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.report.definitions import DEFINITIONS
from kvsim.report.export_source import storable

_NOT_METRICS = ("intervals", "per_seed", "seed", "stuck")
_STATISTICS = {
    "mean": "Mean.",
    "p50": "Median: nearest rank, within 0.1 %.",
    "p90": "90th percentile: nearest rank, within 0.1 %.",
    "p99": "99th percentile: nearest rank, within 0.1 %.",
    "max": "Largest value.",
}
_MORE = {
    "measured.from_s": "Start of the measured time (s).",
    "measured.to_s": "End of the measured time (s).",
    "setup.block_size": "Tokens per KV block, or per page of a layer's K or V (tokens).",
    "setup.num_blocks": "KV blocks or page sets of the pool, a null block included (blocks).",
    "setup.num_blocks_80_percent.0": (
        "The real server has at least so many blocks; the range holds with 80 % (blocks)."
    ),
    "setup.num_blocks_80_percent.1": (
        "The real server has at most so many blocks; the range holds with 80 % (blocks)."
    ),
    "setup.gpu_count": "GPUs that share the model (GPUs).",
    "setup.max_num_seqs": "Sequences that run at once, at most (sequences).",
    "setup.max_num_batched_tokens": "Token budget of one step (tokens).",
    "setup.max_model_len": "Prompt and output of one request together, at most (tokens).",
    "setup.clock_relative_error": "Error of the simulated step times (share).",
}


class SummaryRow(NamedTuple):
    """One metric of one variant."""

    variant: str
    metric: str
    """Dotted path in the variant's entry of `summary.json`."""
    value: float | int | None
    """None where it is undefined."""
    unit: str
    low: float | None
    """95 % interval over the seeds; None with one seed, or where the seeds agree."""
    high: float | None
    definition: str


def summary_rows(summary: Mapping[str, Any], variants: Sequence[str]) -> Iterator[SummaryRow]:
    """All figures of these variants, in the order of the summary."""
    for variant in variants:
        entry = summary["variants"][variant]
        intervals = entry.get("intervals")
        for path, value in _figures(entry, ""):
            text = definition(path)
            low, high = _interval(intervals, path)
            yield SummaryRow(storable(variant), storable(path), value, unit(text), low, high, text)


def definition(path: str) -> str:
    """One sentence for a figure, its unit in the last parenthesis; "" for an unknown one."""
    if path in DEFINITIONS:
        return DEFINITIONS[path]
    if path in _MORE:
        return _MORE[path]
    if path.startswith("memory.by_iteration."):
        by_time = DEFINITIONS.get(path.replace("by_iteration", "by_time", 1), "")
        return re.sub(r"averaged over time(, idle time included)?", "averaged over steps", by_time)
    head, _, last = path.rpartition(".")
    if head in DEFINITIONS and last in _STATISTICS:
        return f"{DEFINITIONS[head]} {_STATISTICS[last]}"
    if head in DEFINITIONS and last == "count":
        return f"Values in the figures of {head} (count)."
    for outcome in ("rejected", "unfinished"):
        if path.startswith(f"requests.{outcome}_by_reason."):
            return f"{DEFINITIONS[f'requests.{outcome}']} For this reason."
    return ""


def unit(text: str) -> str:
    """The unit in a definition."""
    found = re.findall(r"\(([^(),]+)[^()]*\)", text)
    return found[-1] if found else ""


def _figures(value: object, path: str) -> Iterator[tuple[str, float | int | None]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if path or key not in _NOT_METRICS:
                yield from _figures(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _figures(inner, f"{path}.{index}")
    elif value is None and definition(path):
        yield path, None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _interval(intervals: object, path: str) -> tuple[float | None, float | None]:
    bounds = intervals.get(path) if isinstance(intervals, Mapping) else None
    if not isinstance(bounds, list) or len(bounds) != 2:
        return None, None
    low, high = (
        float(bound) if isinstance(bound, int | float) and not isinstance(bound, bool) else None
        for bound in bounds
    )
    return low, high
