"""Runs compared, variant by variant: what differs in the figures, and in the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args

from kvsim.errors import InputError
from kvsim.report.metrics import Better, better
from kvsim.report.setting_differences import Setting, setting_differences
from kvsim.report.spread import Spread, common_seeds, per_seed_figures, seed_digests
from kvsim.report.text import plain
from kvsim.results.intervals import Interval
from kvsim.results.merge import leaves
from kvsim.scenario import Scenario
from kvsim.scenario import variants as scenario_variants

MAX_SOURCES = 26
_NEGLIGIBLE = 1e-6
"""Relative changes up to here are neither better nor worse: they show in no printed digit."""

Verdict = Literal["same", "better", "worse", "changed", "within noise", "undefined"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Source:
    """One run to compare."""

    label: str
    """How the user called it."""
    summary: Mapping[str, Any]
    """`summary.json`."""
    scenario: Scenario | None
    """Its resolved settings; None where only the summary is there."""


@dataclass(frozen=True)
class Side:
    """One variant of a run."""

    source: str
    """Label of the run."""
    letter: str
    """Of its run, A for the first; empty where the variants of a single run are compared."""
    variant: str
    entry: Mapping[str, Any]
    workload: Mapping[str, Any]
    settings: Scenario | None

    @property
    def title(self) -> str:
        """Short name that no other side has."""
        return f"{self.letter}: {self.variant}" if self.letter else self.variant


class Mismatch(NamedTuple):
    """Why two sides are not comparable; they were compared only because the user insisted."""

    what: Literal["requests", "model"]
    base: str
    candidate: str

    def __str__(self) -> str:
        return f"different {self.what}: {self.base} and {self.candidate}"


@dataclass(frozen=True)
class Figure:
    """One number on both sides; None where it is undefined."""

    path: str
    base: float | None
    candidate: float | None
    difference: float | None
    """candidate - base"""
    relative: float | None
    """difference / base; None where base is 0 or next to it"""
    interval: Interval | None
    """95 % interval of the difference; None without seeds, or where they all agree."""
    better: Better | None
    verdict: Verdict


@dataclass(frozen=True)
class Pair:
    """One side against the base of its comparison."""

    base: Side
    candidate: Side
    mismatches: tuple[Mismatch, ...]
    settings: tuple[Setting, ...]
    settings_known: bool
    """False where a run gave its summary only: then `settings` are of its `setup`."""
    method: Literal["paired", "welch"] | None
    """How intervals came about: replicas paired by seed, or taken as unrelated."""
    common_seeds: tuple[int, ...] | None
    """The seeds that figures with an interval are about; None where that is all of both sides."""
    figures: tuple[Figure, ...]

    @property
    def differences(self) -> tuple[Figure, ...]:
        """The figures that are not the same."""
        return tuple(figure for figure in self.figures if figure.verdict != "same")


@dataclass(frozen=True)
class Comparison:
    """Everything there is to say about two or more runs, or the variants of one."""

    sources: tuple[Source, ...]
    pairs: tuple[Pair, ...]
    unmatched: tuple[Side, ...]
    """Variants that only one of the runs has."""

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Of all pairs, each once."""
        return tuple(dict.fromkeys(m for pair in self.pairs for m in pair.mismatches))


def compare(sources: Sequence[Source], *, force: bool = False) -> Comparison:
    """Compare every run with the first, variant by variant; or the variants of a single run.

    Variants of the same name belong together, and the first of each run, the base of its scenario,
    if their names are on one side only. Raises `InputError` where there is nothing to compare, and,
    without `force`, where requests or models differ.
    """
    if len(sources) > MAX_SOURCES:
        raise InputError(
            f"at most {MAX_SOURCES} runs can be compared, got {len(sources)}",
            fix="Compare fewer at once.",
        )
    groups = [_sides(source, rank, len(sources)) for rank, source in enumerate(sources)]
    if len(groups) == 1:
        matched = [(groups[0][0], side) for side in groups[0][1:]]
        unmatched: list[Side] = []
    else:
        matched, unmatched = _matched(groups)
    if not matched:
        raise InputError(
            "nothing to compare: no two sides with the same variant"
            if len(groups) > 1
            else f"nothing to compare: {sources[0].label} has a single variant",
            fix="Give two runs or scenarios, or one with several variants.",
        )
    pairs = tuple(_pair(base, candidate) for base, candidate in matched)
    comparison = Comparison(tuple(sources), pairs, tuple(unmatched))
    if comparison.mismatches and not force:
        raise InputError(
            "cannot be compared: " + "; ".join(map(str, comparison.mismatches)),
            fix="Run both on the same requests and model, or insist with --force.",
        )
    return comparison


def _sides(source: Source, rank: int, sources: int) -> list[Side]:
    settings = scenario_variants(source.scenario) if source.scenario else {}
    letter = chr(ord("A") + rank) if sources > 1 else ""
    return [
        Side(
            source=source.label,
            letter=letter,
            variant=name,
            entry=entry,
            workload=source.summary["workload"],
            settings=settings.get(name),
        )
        for name, entry in source.summary["variants"].items()
    ]


def _matched(groups: Sequence[list[Side]]) -> tuple[list[tuple[Side, Side]], list[Side]]:
    """Pairs in the order of the first run's variants, and the sides left over."""
    bases = {side.variant: side for side in groups[0]}
    matches: list[tuple[Side, Side]] = []
    for group in groups[1:]:
        names = {side.variant for side in group}
        for rank, side in enumerate(group):
            base = bases.get(side.variant)
            if base is None and rank == 0 and groups[0] and groups[0][0].variant not in names:
                base = groups[0][0]
            if base is not None:
                matches.append((base, side))
    order = list(bases)
    matches.sort(key=lambda match: order.index(match[0].variant))
    used = {side.title for match in matches for side in match}
    return matches, [side for group in groups for side in group if side.title not in used]


def _pair(base: Side, candidate: Side) -> Pair:
    mismatches = tuple(_mismatches(base, candidate))
    known = base.settings is not None and candidate.settings is not None
    common = common_seeds(base.workload, candidate.workload)
    seeds = [per_seed_figures(side.entry) for side in (base, candidate)]
    spread = Spread(*seeds, common=common)
    return Pair(
        base=base,
        candidate=candidate,
        mismatches=mismatches,
        settings=_settings(base, candidate),
        settings_known=known,
        method=None if not all(seeds) else "paired" if spread.paired else "welch",
        common_seeds=common if spread.narrowed else None,
        figures=tuple(_figures(base.entry, candidate.entry, spread)),
    )


def _mismatches(base: Side, candidate: Side) -> Iterator[Mismatch]:
    ours, theirs = base.workload, candidate.workload
    if not _same_traffic(ours, theirs):
        names = [
            f"{side.source} ({plain(side.workload['source'])},"
            f" digest {side.workload['digest'][:12]})"
            for side in (base, candidate)
        ]
        yield Mismatch("requests", *names)
    same_run = base.source == candidate.source
    models = [side.entry.get("setup", {}).get("model") for side in (base, candidate)]
    if models[0] != models[1]:
        names = [
            f"{side.variant if same_run else side.source} ({plain(model or 'no model')})"
            for side, model in zip((base, candidate), models, strict=True)
        ]
        yield Mismatch("model", *names)


def _same_traffic(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> bool:
    """The same requests, or other seeds of the same law."""
    if base["digest"] == candidate["digest"]:
        return True
    if "law" not in base or base["law"] != candidate.get("law"):
        return False
    ours, theirs = seed_digests(base), seed_digests(candidate)
    return all(ours[seed] == theirs[seed] for seed in ours.keys() & theirs.keys())


def _settings(base: Side, candidate: Side) -> tuple[Setting, ...]:
    if base.settings is not None and candidate.settings is not None:
        same = base.workload["digest"] == candidate.workload["digest"]
        return setting_differences(base.settings, candidate.settings, same_requests=same)
    ours, theirs = base.entry.get("setup", {}), candidate.entry.get("setup", {})
    return tuple(
        Setting(f"setup.{key}", ours.get(key), theirs.get(key))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    )


def _figures(
    base: Mapping[str, Any], candidate: Mapping[str, Any], spread: Spread
) -> Iterator[Figure]:
    ours, theirs = dict(leaves(base)), dict(leaves(candidate))
    for path in dict.fromkeys([*ours, *theirs]):
        absent = 0 if "_by_reason." in path else None
        left, right = spread.figures(path, ours.get(path, absent), theirs.get(path, absent))
        difference = relative = interval = None
        if left is not None and right is not None:
            difference = right - left
            relative = difference / left if left else None
            if relative is not None and not isfinite(relative):
                relative = None
            interval = spread.interval(path, left, right)
        yield Figure(
            path=path,
            base=left,
            candidate=right,
            difference=difference,
            relative=relative,
            interval=interval,
            better=better(path),
            verdict=_verdict(left, right, interval, better(path) if spread.judges(path) else None),
        )


def _verdict(
    base: float | None,
    candidate: float | None,
    interval: Interval | None,
    direction: Better | None,
) -> Verdict:
    if base == candidate:
        return "same"
    if base is None or candidate is None:
        return "undefined"
    if interval is not None and interval[0] <= 0 <= interval[1]:
        return "within noise"
    if direction is None or abs(candidate - base) <= _NEGLIGIBLE * abs(base):
        return "changed"
    return "better" if (candidate > base) == (direction == "higher") else "worse"
