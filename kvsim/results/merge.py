"""Replicas of one variant, one per seed, merged into one entry of a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

from kvsim.results.histogram import LogHistogram
from kvsim.results.intervals import Interval, t_interval, t_quantile

POOLED = ("mean", "p50", "p90", "p99")
"""Figures of a latency that are those of all seeds' requests together and have an interval; the
maximum and the count are pooled too, but say nothing that an interval would be about."""


class SeedOutcome(NamedTuple):
    """What one seed's run of a variant left behind."""

    seed: int
    entry: Mapping[str, Any]
    """The variant's entry in the summary of that run alone."""
    histograms: Mapping[str, LogHistogram]
    """By latency (`SummaryRecorder.histograms`)."""


def merge_seeds(outcomes: Sequence[SeedOutcome]) -> dict[str, Any]:
    """The variant's entry for all seeds, in the order given.

    * Numbers are means over the seeds: unchanged where all agree, None where one is None. A reason
      that a seed never met counts as 0 there.
    * Latencies are those of the pooled requests, `count` and `max` included.
    * `stuck` is the report of the first stuck seed, which it names.
    * `intervals` maps dotted paths to [low, high], 95 % by Student's t on the seeds' values, for
      every figure that varies. It is centered on the figure (`t_interval`).
    * `per_seed` holds each seed's own entry.
    """
    entries = [outcome.entry for outcome in outcomes]
    merged: dict[str, Any] = {}
    for name in entries[0]:
        if name in outcomes[0].histograms:
            merged[name] = _pool([outcome.histograms[name] for outcome in outcomes]).seconds()
        elif name == "stuck":
            merged[name] = _first_stuck(outcomes)
        else:
            merged[name] = merge_values([entry[name] for entry in entries])
    merged["intervals"] = {
        path: list(interval) for path, interval in _intervals(merged, outcomes).items()
    }
    merged["per_seed"] = [{"seed": outcome.seed, **outcome.entry} for outcome in outcomes]
    return merged


def merge_values(values: Sequence[Any]) -> Any:
    """Means of numbers, key by key through mappings; a value that all share stays as it is."""
    first = values[0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: merge_values([value.get(key, 0) for value in values]) for key in keys}
    if all(value == first for value in values):
        return first
    if not all(is_number(value) for value in values):
        return None
    return fsum(values) / len(values)


def leaves(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Dotted path and value of every number of an entry and every None, in order.

    What several seeds add and how the variant was set up is left out.
    """
    for name, value in entry.items():
        if isinstance(value, Mapping):
            if prefix or name not in ("setup", "intervals", "stuck"):
                yield from leaves(value, f"{prefix}{name}.")
        elif is_number(value) or (value is None and (prefix or name != "stuck")):
            yield prefix + name, value


def is_number(value: object) -> bool:
    """Whether a value is a figure; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_interval(path: str, latencies: Mapping[str, Any] | Sequence[str]) -> bool:
    """Whether the spread over seeds says how certain the figure at a dotted path is."""
    name, _, figure = path.partition(".")
    return name not in latencies or figure in POOLED


def _pool(histograms: Sequence[LogHistogram]) -> LogHistogram:
    pooled = LogHistogram()
    for histogram in histograms:
        pooled.merge(histogram)
    return pooled


def _first_stuck(outcomes: Sequence[SeedOutcome]) -> dict[str, Any] | None:
    for outcome in outcomes:
        if outcome.entry["stuck"]:
            return {"seed": outcome.seed, **outcome.entry["stuck"]}
    return None


def _intervals(merged: Mapping[str, Any], outcomes: Sequence[SeedOutcome]) -> dict[str, Interval]:
    t = t_quantile(len(outcomes) - 1) if len(outcomes) > 1 else 0.0
    per_seed = [dict(leaves(outcome.entry)) for outcome in outcomes]
    intervals = {}
    for path, center in leaves(merged):
        if center is None or not has_interval(path, outcomes[0].histograms):
            continue
        values = [figures.get(path, 0) for figures in per_seed]
        defined = [value for value in values if value is not None]
        if len(defined) == len(values) and any(value != values[0] for value in values):
            interval = t_interval(defined, center, t)
            if interval is not None:
                intervals[path] = interval
    return intervals
