"""Whether data read from a file is a summary: what readers of one may rely on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MAX_DEPTH = 32
_MAX_VARIANTS = 10_000
_MAX_SEEDS = 1_000


def summary_problem(summary: object) -> str | None:
    """What keeps parsed JSON from being a summary; None when it is one.

    Then `scenario` is text or None, `kvsim_version`, `workload.source` and `workload.digest` are
    text, and `variants` maps names to mappings; their `setup.model`, if there, is text, and each of
    their `intervals` two numbers, low first. With `seeds`, distinct whole numbers, variants and
    workload have a mapping in `per_seed` for each of them, with its `seed`; the workload's have a
    `digest`.
    """
    if not isinstance(summary, dict):
        return f"a summary must be a JSON object, got {type(summary).__name__}"
    names = ("scenario", "kvsim_version", "workload", "variants")
    missing = [name for name in names if name not in summary]
    if missing:
        return f"the summary lacks {', '.join(missing)}"
    variants = summary["variants"]
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        return "`variants` must be an object of objects"
    if len(variants) > _MAX_VARIANTS:
        return f"a summary may have at most {_MAX_VARIANTS} variants, got {len(variants)}"
    if _deeper_than(summary, _MAX_DEPTH):
        return f"a summary may be nested at most {_MAX_DEPTH} deep"
    return next(_problems(summary), None)


def _problems(summary: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(summary["scenario"], str | None):
        yield "`scenario` must be text"
    if not isinstance(summary["kvsim_version"], str):
        yield "`kvsim_version` must be text"
    workload = summary["workload"]
    if not isinstance(workload, dict) or not all(
        isinstance(workload.get(name), str) for name in ("source", "digest")
    ):
        yield "`workload` must be an object with the texts `source` and `digest`"
        return
    for name, entry in summary["variants"].items():
        setup = entry.get("setup", {})
        if not isinstance(setup, dict) or not isinstance(setup.get("model"), str | None):
            yield f"`setup` of variant {name[:80]!r} must be an object whose `model` is text"
        if not _are_intervals(entry.get("intervals", {})):
            yield f"`intervals` of {name[:80]!r} must be pairs of numbers, low first"
    yield from _seed_problems(summary)


def _seed_problems(summary: Mapping[str, Any]) -> Iterator[str]:
    owners = [("workload", summary["workload"]), *summary["variants"].items()]
    if "seeds" not in summary:
        if any("per_seed" in owner for _, owner in owners):
            yield "`per_seed` needs `seeds`"
        return
    seeds = summary["seeds"]
    whole = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    if not whole or not 2 <= len(seeds) == len(set(seeds)) <= _MAX_SEEDS:
        yield f"`seeds` must be 2 to {_MAX_SEEDS} distinct whole numbers"
        return
    for name, owner in owners:
        per_seed = owner.get("per_seed")
        rows = per_seed if isinstance(per_seed, list) else []
        if [row.get("seed") if isinstance(row, dict) else None for row in rows] != seeds:
            yield f"`per_seed` of {name[:80]!r} must have one object for each of `seeds`, in order"
        if owner is summary["workload"] and not all(
            isinstance(row, dict) and isinstance(row.get("digest"), str) for row in rows
        ):
            yield "`per_seed` of the workload must have a text `digest` each"


def _are_intervals(intervals: object) -> bool:
    return isinstance(intervals, dict) and all(
        isinstance(ends, list)
        and len(ends) == 2
        and all(type(end) in (int, float) for end in ends)
        and ends[0] <= ends[1]
        for ends in intervals.values()
    )


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [
            child
            for item in containers
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return any(isinstance(item, dict | list) for item in level)
