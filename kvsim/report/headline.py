"""The one sentence of a report, with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.report.bounds import ARRIVALS, BUDGET, MEMORY, OTHER, SEQUENCES, STATIC
from kvsim.report.html_data import VariantData
from kvsim.report.text import figure, shown

_EMPTY_TERMS = {
    "detail.internal.over_reservation": "over-reservation",
    "detail.internal.roundup": "rounding of extents",
    "detail.internal.tail": "tails that are never filled",
    "detail.reservation.ahead": "reservation ahead of its requests",
    "detail.reservation.tail": "tails that fill up later",
    "external": "external fragmentation",
    "usable_free": "free",
}
_BINDS = {
    MEMORY: "memory binds {}",
    SEQUENCES: "max_num_seqs binds {}",
    BUDGET: "the token budget binds {}",
    STATIC: "static batching, which takes no one in until a batch ends, binds {}",
    OTHER: "neither memory nor a limit of the scheduler binds {}",
    ARRIVALS: "in most steps nothing but the arrivals limits {}",
}
_SAME = 1.02
"""Batches within 2 % are about the same."""


def extremes(entries: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Places of the variants' entries with the smallest and the largest mean batch, the first of
    equals."""
    batches = [figure(entry, "batch.mean") or 0.0 for entry in entries]
    return batches.index(min(batches)), batches.index(max(batches))


def headline(variants: Sequence[VariantData]) -> str:
    """Prefix hits, then batch, waste, compute limit and what binds, of the extreme batches."""
    low, high = extremes([one.entry for one in variants])
    worst, best = variants[low], variants[high]
    compared = [best] if low == high else [worst, best]
    clauses = [_hits(variants), _batches(variants, worst, best), _waste(worst), _compute(best)]
    words = {name: [one.label for one in compared if one.bound.binds == name] for name in _BINDS}
    clauses += [_BINDS[name].format(" and ".join(who)) for name, who in words.items() if who]
    return "; ".join(clause for clause in clauses if clause) + "."


def _hits(variants: Sequence[VariantData]) -> str:
    """The smallest and the largest share of prompt tokens found, and who has no cache."""
    rates = {
        one.label: rate
        for one in variants
        if (rate := figure(one.entry, "prefix_cache.hit_rate")) is not None
    }
    if not rates:
        return ""
    low, high = min(rates, key=lambda label: rates[label]), max(rates, key=lambda name: rates[name])
    text = f"the prefix cache finds {100 * rates[high]:.1f} % of {high}'s prompt tokens"
    if rates[low] < rates[high]:
        text += f" and {100 * rates[low]:.1f} % of {low}'s"
    without = [one.label for one in variants if one.label not in rates]
    return text + (f", {' and '.join(without)} has none" if len(without) == 1 else "")


def _batches(variants: Sequence[VariantData], worst: VariantData, best: VariantData) -> str:
    most, least = (figure(one.entry, "batch.mean") for one in (best, worst))
    if most is None or least is None:
        return f"{best.label}: no step was measured"
    text = f"{shown(best.entry, 'batch.mean', 1, 1)} requests at once"
    if len(variants) == 1:
        return f"{best.label} runs {text}"
    if most < _SAME * least:
        return f"all {len(variants)} variants run about {text}"
    fewer = shown(worst.entry, "batch.mean", 1, 1)
    return f"{best.label} runs {text} where {worst.label} runs {fewer}"


def _waste(one: VariantData) -> str:
    shares: Mapping[str, Any] = {
        path: figure(one.entry, f"memory.by_time.{path}") or 0.0 for path in _EMPTY_TERMS
    }
    most = max(shares, key=lambda path: shares[path])
    if not shares[most]:
        return ""
    share = shown(one.entry, f"memory.by_time.{most}", 100, 1)
    return f"{share} % of {one.label}'s memory is {_EMPTY_TERMS[most]}"


def _compute(one: VariantData) -> str:
    if one.limit.batch is not None:
        text = f"compute would allow {one.limit_text} decodes at once"
        if one.limit.with_prefills is not None:
            text += f", {one.limit.with_prefills:,} with this traffic's prefills between them"
        return text
    return "compute sets no limit" if one.limit.why.startswith("none") else ""
