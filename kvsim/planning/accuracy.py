"""How far `fit` is from what real servers printed, each judged without its own source.

The constants of `kvsim.catalog.start_rules` are fitted to the same start-ups. A start-up is
therefore predicted with constants fitted to those of other sources: `compared` does, with the
rule of `fitted`. Everything is in GiB per GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from kvsim.catalog import GIB, Gpu, Model
from kvsim.catalog.start_rules import (
    BY_FREE_MEMORY,
    SORTED,
    UNSORTED,
    Interval,
    StartRules,
    activation_peak,
)
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.printed import printed_terms
from kvsim.planning.releases import Release

TERMS = ("weights", "activation_peak", "non_torch", "cuda_graphs", "kv_pool")
FEWEST = 3
"""Values below which a constant stays as it is."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """A server's settings and what it printed."""

    name: str
    source: str
    model: Model
    gpu: Gpu
    release: Release
    settings: FitSettings
    reported: Mapping[str, float]
    """GiB by term (`TERMS`), where printed."""
    assumed: tuple[str, ...] = ()
    """Settings that are vLLM's defaults or a guess, because nobody says them."""
    refused: bool = False
    """Whether the server did not start."""
    note: str = ""
    """What is known of a miss."""


class Compared(NamedTuple):
    """A printed term against its estimate, in GiB."""

    reported: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Estimate less printed."""
        return self.predicted - self.reported

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval holds the value, printed with two decimals."""
        return self.low - ROUNDING <= self.reported <= self.high + ROUNDING


ROUNDING = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """A start-up with the estimate from the others."""

    start_up: StartUp
    fit: Fit
    terms: Mapping[str, Compared]

    @property
    def false_fit(self) -> bool:
        """Whether the estimate promises a start that was refused."""
        return self.start_up.refused and self.fit.verdict == "fits"

    @property
    def reason(self) -> str:
        """Why the KV pool is outside its interval; empty where it is inside."""
        pool = self.terms.get("kv_pool")
        if pool is None or pool.inside:
            return ""
        missed = [
            name for name, term in self.terms.items() if name != "kv_pool" and not term.inside
        ]
        parts = [self.start_up.note] if self.start_up.note else []
        parts += [f"outside too: {', '.join(missed)}"] if missed else []
        parts += [f"assumed: {', '.join(self.start_up.assumed)}"] if not parts else []
        return "; ".join(parts)


def compared(start_ups: Sequence[StartUp]) -> tuple[Row, ...]:
    """Each start-up with constants fitted to those of every other source."""
    return tuple(
        _row(one, fitted([other for other in start_ups if other.source != one.source]))
        for one in start_ups
    )


def _row(one: StartUp, rules: Callable[[StartRules], StartRules]) -> Row:
    release = replace(one.release, rules=rules(one.release.rules))
    found = fit(one.model, one.gpu, one.settings, release=release)
    estimates = printed_terms(found.budget)
    terms = {
        name: Compared(
            value,
            estimates[name].bytes / GIB,
            estimates[name].low / GIB,
            estimates[name].high / GIB,
        )
        for name, value in one.reported.items()
    }
    return Row(one, found, terms)


def fitted(start_ups: Sequence[StartUp]) -> Callable[[StartRules], StartRules]:
    """The constants that these start-ups give, as a change of a release's rules.

    Medians, and the 10th and 90th percentiles as the ends of the intervals. What is seen less
    than three times stays as shipped: larger tensor parallel groups, large mixtures of experts.
    """
    plain = [one for one in start_ups if one.settings.tensor_parallel_size == 1]
    sorting = _interval(SORTED.sampler, _printed_factors(start_ups))
    unsorted = _interval(UNSORTED.sampler, _left_factors(start_ups))
    # An unnamed model printed more; nothing that is left of a budget shows as much.
    unsorted = unsorted._replace(high=UNSORTED.sampler.high)
    alone = [one for one in plain if not _amd(one)]
    context = _interval(SORTED.non_torch_gib[1], _values(alone, "non_torch"))
    extra = [value - context.middle for value in _values(filter(_amd, plain), "non_torch")]
    dense = [one for one in start_ups if one.model.moe is None]
    graphs = _interval(SORTED.dense_graphs_gib, _values(dense, "cuda_graphs"))
    weights = _fractions(SORTED.weights_error, _ratios(start_ups, "weights"))
    peaks = _fractions(SORTED.peak_error, _ratios(plain, "activation_peak"))

    def changed(rules: StartRules) -> StartRules:
        return replace(
            rules,
            sampler=unsorted if rules.sampler == UNSORTED.sampler else sorting,
            peak_error=rules.peak_error if rules.peak_error == BY_FREE_MEMORY.peak_error else peaks,
            weights_error=weights,
            non_torch_gib={**rules.non_torch_gib, 1: context},
            amd_non_torch_gib=median(extra) if extra else rules.amd_non_torch_gib,
            dense_graphs_gib=graphs,
        )

    return changed


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest of the ordered values, in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _interval(shipped: Interval, values: Sequence[float]) -> Interval:
    if len(values) < FEWEST:
        return shipped
    return Interval(quantile(values, 0.1), median(values), quantile(values, 0.9))


def _fractions(shipped: tuple[float, float], ratios: Sequence[float]) -> tuple[float, float]:
    """How far ratios of printed to estimated lie below and above one."""
    if len(ratios) < FEWEST:
        return shipped
    return max(0.0, 1 - quantile(ratios, 0.1)), max(0.0, quantile(ratios, 0.9) - 1)


def _amd(one: StartUp) -> bool:
    return one.gpu.full_name.startswith("AMD")


def _values(start_ups: Iterable[StartUp], term: str) -> list[float]:
    return [one.reported[term] for one in start_ups if term in one.reported]


def _ratios(start_ups: Iterable[StartUp], term: str) -> list[float]:
    """Printed over estimated with the shipped constants."""
    ratios = []
    for one in start_ups:
        if term in one.reported:
            found = fit(one.model, one.gpu, one.settings, release=one.release)
            estimate = printed_terms(found.budget)[term].bytes / GIB
            ratios.append(one.reported[term] / estimate)
    return ratios


def _printed_factors(start_ups: Iterable[StartUp]) -> list[float]:
    """Copies of the logits in the printed peaks of sampling, up to 0.15."""
    found = []
    for one in start_ups:
        peak = one.reported.get("activation_peak")
        if peak is not None and one.release.rules.sampler == SORTED.sampler:
            factor = _factor(one, peak)
            if factor is not None:
                found.append(factor)
    return found


def _left_factors(start_ups: Iterable[StartUp]) -> list[float]:
    """The same from 0.16 on, of what the other terms leave of the budget: no peak is printed."""
    found = []
    for one in start_ups:
        few = one.settings.tensor_parallel_size <= 2  # more GPUs: what they exchange is unknown
        if one.release.rules.sampler != UNSORTED.sampler or not few:
            continue
        if "kv_pool" not in one.reported:
            continue
        budget = fit(one.model, one.gpu, one.settings, release=one.release).budget
        left = budget.budget.bytes / GIB - one.reported["kv_pool"]
        left -= one.reported.get("weights", printed_terms(budget)["weights"].bytes / GIB)
        left -= budget.non_torch.bytes / GIB
        left -= budget.cuda_graphs.bytes / GIB if one.release.graphs_in_budget else 0.0
        factor = _factor(one, left)
        if factor is not None:
            found.append(factor)
    return found


def _factor(one: StartUp, peak_gib: float) -> float | None:
    """Copies of the logits in a peak; None where the feed-forward may have made it.

    In v0 only the first of several GPUs samples, and another one may have printed.
    """
    found = fit(one.model, one.gpu, one.settings, release=one.release)
    flags, rules = found.settings, found.rules
    if not rules.samples or (one.release.engine == "v0" and flags.tensor_parallel_size > 1):
        return None
    hidden = 2 * flags.max_num_batched_tokens * one.model.hidden
    logits = 4 * flags.max_num_seqs * one.model.vocab
    work = activation_peak(
        one.model,
        replace(rules, samples=False),
        tp=flags.tensor_parallel_size,
        batched_tokens=flags.max_num_batched_tokens,
        seqs=flags.max_num_seqs,
    ).middle
    if rules.sampler.middle * logits + hidden < SAMPLING_SHARE * work:
        return None
    return (peak_gib * GIB - hidden) / logits


SAMPLING_SHARE = 1.2
"""Of the feed-forward's peak: only a peak this much larger is surely the sampler's."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Figures over rows, in GiB."""

    rows: int
    """Rows with a printed pool."""
    median_gib: float
    p90_gib: float
    weights_median: float
    """Of the printed weights, a fraction."""
    inside: Mapping[str, tuple[int, int]]
    """Values in their interval and all values, by term."""
    false_fits: tuple[str, ...]
    """Refused, and promised to fit."""
    false_refusals: tuple[str, ...]
    """Started, and said not to fit."""

    @property
    def coverage(self) -> float:
        """Share of all printed values in their intervals."""
        return sum(hit for hit, _ in self.inside.values()) / sum(n for _, n in self.inside.values())


def accuracy(rows: Sequence[Row]) -> Accuracy:
    """Median and 90th percentile (the nearest rank) of the pool's error, and coverage."""
    errors = sorted(abs(row.terms["kv_pool"].error) for row in rows if "kv_pool" in row.terms)
    weights = [row.terms["weights"] for row in rows if "weights" in row.terms]
    inside: dict[str, tuple[int, int]] = {}
    for name in TERMS:
        found = [row.terms[name].inside for row in rows if name in row.terms]
        inside[name] = (sum(found), len(found))
    return Accuracy(
        rows=len(errors),
        median_gib=median(errors),
        p90_gib=errors[-(-9 * len(errors) // 10) - 1],
        weights_median=median(abs(one.error) / one.reported for one in weights),
        inside=inside,
        false_fits=tuple(row.start_up.name for row in rows if row.false_fit),
        false_refusals=tuple(
            row.start_up.name
            for row in rows
            if not row.start_up.refused and row.fit.verdict == "does not fit"
        ),
    )
