"""Two variants compared, of one run or of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvsim.report.compare import Comparison, Source, compare
from kvsim.report.export_csv import csv_lines
from kvsim.report.metrics import METRICS


class Chosen(NamedTuple):
    """A variant of a run."""

    source: Source
    variant: str


def compare_two(base: Chosen, candidate: Chosen) -> Comparison:
    """The candidate against the base, whatever their requests and models: see its `mismatches`.

    Raises `InputError` where both are the same variant of the same run.
    """
    if base.source.label == candidate.source.label:
        names = list(dict.fromkeys((base.variant, candidate.variant)))
        return compare([_only(base.source, *names)], force=True)
    sides = (_only(one.source, one.variant) for one in (base, candidate))
    return compare(list(sides), force=True)


def _only(source: Source, *variants: str) -> Source:
    entries = {name: source.summary["variants"][name] for name in variants}
    return Source(source.label, {**source.summary, "variants": entries}, source.scenario)


def differences_csv(comparison: Comparison) -> Iterator[bytes]:
    """CSV with a row per pair and figure that a comparison shows, with all digits."""
    header = (
        "base",
        "candidate",
        "figure",
        "base_value",
        "candidate_value",
        "difference",
        "relative",
        "interval_low",
        "interval_high",
        "verdict",
        "unit",
    )
    return csv_lines(header, _rows(comparison))


def _rows(comparison: Comparison) -> Iterator[tuple[object, ...]]:
    for pair in comparison.pairs:
        for figure in pair.figures:
            if figure.path in METRICS:
                low, high = figure.interval or (None, None)
                yield (
                    f"{pair.base.source}: {pair.base.variant}",
                    f"{pair.candidate.source}: {pair.candidate.variant}",
                    figure.path,
                    figure.base,
                    figure.candidate,
                    figure.difference,
                    figure.relative,
                    low,
                    high,
                    figure.verdict,
                    METRICS[figure.path].unit,
                )
