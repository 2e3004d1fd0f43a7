"""What to change so that a model fits, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from kvsim.errors import InputError
from kvsim.planning.fit import Fit, FitSettings
from kvsim.planning.pipeline import fit_whole

SAFE_UTILIZATION = 0.95
"""Higher shares leave too little for what else runs on the GPU."""
MOST_GPUS = 64
FEW_SEQS, FEW_TOKENS = 64, 2048
SHORTEST = 1024
"""Tokens: a shorter context is no way out."""


@dataclass(frozen=True, slots=True)
class Way:
    """Settings that make it fit, with what changes in words."""

    what: str
    settings: FitSettings
    fit: Fit


def ways_out(found: Fit, given: FitSettings, *, count: int = 3) -> list[Way]:
    """Up to `count` changes after which even the low end of the estimate fits.

    In this order: changes that cost nothing, half the KV's precision, a shorter context, more GPUs;
    then pairs of the first ones. Nothing for a set-up that fits.
    """
    if found.verdict == "fits":
        return []
    singles = list(_singles(found, given))
    ways: list[Way] = []
    for what, settings in [*singles, *_pairs(singles)]:
        if len(ways) == count:
            break
        way = _tried(found, what, settings)
        if way is not None:
            ways.append(way)
    return ways


def _tried(found: Fit, what: str, settings: FitSettings) -> Way | None:
    try:
        changed = fit_whole(found.whole, found.gpu, settings, release=found.release)
    except InputError:
        return None
    return Way(what, settings, changed) if changed.verdict == "fits" else None


Change = tuple[str, FitSettings]


def _singles(found: Fit, given: FitSettings) -> Iterator[Change]:
    flags = found.settings
    if found.on_top_bytes > found.spare_bytes:
        share = 1 - found.on_top_bytes / found.budget.total.bytes
        lower = max(int(100 * share), 1) / 100
        yield f"gpu_memory_utilization {lower:g}", replace(given, gpu_memory_utilization=lower)
    elif flags.gpu_memory_utilization < SAFE_UTILIZATION:
        yield (
            f"gpu_memory_utilization {SAFE_UTILIZATION:g}",
            replace(given, gpu_memory_utilization=SAFE_UTILIZATION),
        )
    if flags.max_num_batched_tokens > FEW_TOKENS:
        yield (
            f"max_num_batched_tokens {FEW_TOKENS}",
            replace(given, max_num_batched_tokens=FEW_TOKENS),
        )
    if flags.max_num_seqs > FEW_SEQS:
        yield f"max_num_seqs {FEW_SEQS}", replace(given, max_num_seqs=FEW_SEQS)
    if flags.kv_cache_dtype != "fp8" and found.model.kv_dtype_bytes > 1:
        yield "kv_cache_dtype fp8", replace(given, kv_cache_dtype="fp8")
    longest = found.start_low.longest_request_tokens
    if SHORTEST <= longest < flags.max_model_len:
        yield f"max_model_len {longest}", replace(given, max_model_len=longest)
    gpus = 2 * flags.tensor_parallel_size
    while gpus <= MOST_GPUS:
        settings = replace(given, tensor_parallel_size=gpus)
        if _tried(found, "", settings) is not None:
            yield f"tensor_parallel_size {gpus}", settings
            return
        gpus *= 2


def _pairs(singles: list[Change]) -> Iterator[Change]:
    """Two changes at once, of those that are not the other GPUs or the shorter context."""
    free = [one for one in singles if not one[0].startswith(("tensor", "max_model_len"))]
    for (first, one), (second, other) in combinations(free, 2):
        yield f"{first} and {second}", _both(one, other)


def _both(one: FitSettings, other: FitSettings) -> FitSettings:
    """`one` with what `other` changes: each of the two changes one field."""
    default = FitSettings()
    changed = {
        name: getattr(other, name)
        for name in (
            "gpu_memory_utilization",
            "max_num_batched_tokens",
            "max_num_seqs",
            "kv_cache_dtype",
        )
        if getattr(other, name) != getattr(default, name)
    }
    return replace(one, **changed)
