"""How fast attention kernels are, by block size: read from what was measured on a device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kvsim.catalog.json_size import check_json_size
from kvsim.cost.profile import FORMAT, LayoutConstants, profile_from
from kvsim.errors import InputError
from kvsim.report.export_csv import csv_lines

MAX_SIZE = 1 << 20
MAX_ROWS = 20_000
MAX_BYTES = 4_000_000
MAX_LISTS = 100_000
MAX_VALUES = 1_000_000
MAX_CURVES = 6
"""Drawn at most; those with the most KV bytes, which tell kernels apart best."""
_FIX = (
    "Give profile.json of `kvsim calibrate`, or decode.jsonl or paging.jsonl of"
    " `python -m gpu_backend.bench`"
)

KERNEL_DEFINITIONS = {
    "profile": "From `kvsim calibrate`: the time that attention adds to a decode step of"
    " max_num_seqs sequences which fill the measured memory together (decode_s + decode_row_s *"
    " sequences + decode_context_s * tokens), as the share of the fastest layout's speed.",
    "decode": "From decode.jsonl of the bench: bytes read per second by the decode kernel, as a"
    " share of the read ceiling measured beside it.",
    "paging": "From paging.jsonl of the bench: time of the same kernel without a block table over"
    " that with a randomly ordered one; 100 % is no cost of paging at all.",
    "fitted": "Of the scenario papers/sosp23-fig18b: read efficiencies fitted to a published"
    " figure. No measurement.",
}


class SizeCurve(NamedTuple):
    """Relative speed by block size."""

    label: str
    sizes: tuple[int, ...]
    """Tokens, ascending."""
    speed: tuple[float, ...]
    """1 is what `basis` says."""
    kv_bytes: float


class KernelSizes(NamedTuple):
    """What a file says about block sizes."""

    source: str
    """A key of `KERNEL_DEFINITIONS`."""
    device: str
    """What was measured and how well; empty where the file does not say it."""
    curves: tuple[SizeCurve, ...]
    """The most telling ones first."""


def kernels_csv(curves: Iterable[SizeCurve]) -> bytes:
    """A line for each curve and block size; speeds are fractions of the best, KV in bytes."""
    names = ("curve", "block_size_tokens", "relative_speed", "kv_bytes")
    rows = (
        (curve.label, size, speed, curve.kv_bytes or None)
        for curve in curves
        for size, speed in zip(curve.sizes, curve.speed, strict=True)
    )
    return b"".join(csv_lines(names, rows))


def kernel_sizes(content: bytes, where: str) -> KernelSizes:
    """Read a profile, or rows of the bench. Raises `InputError` for anything else."""
    if len(content) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES:,} bytes", where=where, fix=_FIX)
    check_json_size(content, where, max_lists=MAX_LISTS, max_values=MAX_VALUES, fix=_FIX)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", where=where, fix=_FIX) from None
    try:
        whole: Any = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and whole.get("format") == FORMAT:
        return _of_profile(whole, where)
    return _of_rows(list(_rows(text, where)), where)


def _of_profile(document: dict[str, Any], where: str) -> KernelSizes:
    profile = profile_from(document, where=where)
    limits = profile.document["limits"]
    seqs, slots = limits["max_num_seqs"], limits["slots"]
    times = {
        int(name.removeprefix("paged-")): _decode_s(layout, seqs, slots)
        for name, layout in profile.constants.layouts.items()
        if name.removeprefix("paged-").isdecimal() and len(name) < 16
    }
    contiguous = profile.constants.layouts.get("contiguous")
    every = [*times.values(), *([_decode_s(contiguous, seqs, slots)] if contiguous else [])]
    known = sorted((size, time) for size, time in times.items() if time > 0)
    if not known:
        raise InputError("holds no paged layout with a time", where=where, fix=_FIX)
    fastest = min(time for time in every if time > 0)
    label = f"{seqs:,} sequences, {slots:,} tokens of context"
    sizes, speed = zip(*((size, fastest / time) for size, time in known), strict=True)
    curve = SizeCurve(label, sizes, speed, 0.0)
    noise = profile.document["noise"]["median"]
    about = (
        f"{profile.model} on {profile.device}; two runs of a batch differ by {noise:.1%} (median),"
        f" the fit is {profile.error_median:.1%} off on batches it has not seen"
    )
    return KernelSizes("profile", about, (curve,))


def _decode_s(layout: LayoutConstants, seqs: int, tokens: int) -> float:
    return layout.decode_s + layout.decode_row_s * seqs + layout.decode_context_s * tokens


def _rows(text: str, where: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if number > MAX_ROWS:
            raise InputError(f"more than {MAX_ROWS:,} rows", where=where, fix=_FIX)
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError("is no row of a bench", where=f"{where}:{number}", fix=_FIX)
        yield row


def _of_rows(rows: list[Mapping[str, Any]], where: str) -> KernelSizes:
    groups: dict[tuple[int, int], dict[int, float]] = {}
    bytes_of: dict[tuple[int, int], float] = {}
    source = ""
    for row in rows:
        found = _speed(row)
        if found is None:
            continue
        kind, speed = found
        if source not in ("", kind):
            raise InputError("mixes rows of two sections", where=where, fix=_FIX)
        source = kind
        batch, context, size = (
            _count(row, name, where) for name in ("batch", "context", "block_size")
        )
        groups.setdefault((batch, context), {})[size] = speed
        moved = _number(row.get("kv_bytes"))
        bytes_of[batch, context] = float(batch * context) if moved is None else moved
    if not groups:
        raise InputError("holds no measured block size", where=where, fix=_FIX)
    curves = [
        SizeCurve(
            f"{batch:,} x {context:,} tokens",
            tuple(sorted(points)),
            tuple(points[size] for size in sorted(points)),
            bytes_of[batch, context],
        )
        for (batch, context), points in groups.items()
    ]
    curves.sort(key=lambda curve: (-curve.kv_bytes, curve.label))
    return KernelSizes(source, "", tuple(curves))


def _speed(row: Mapping[str, Any]) -> tuple[str, float] | None:
    share, cost = _number(row.get("share")), _number(row.get("paging_cost"))
    if row.get("kind") == "decode" and share is not None and 0 <= share <= 10:
        return "decode", share
    if cost is not None and cost > -0.9:
        return "paging", 1 / (1 + cost)
    return None


def _count(row: Mapping[str, Any], name: str, where: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        raise InputError(
            f"a row's {name} must be a whole number in 1..{MAX_SIZE:,}", where=where, fix=_FIX
        )
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -1e300 < value < 1e300 else None


def fitted_sizes() -> SizeCurve:
    """Read efficiencies by block size, fitted to a published figure (SOSP'23, Fig. 18b)."""
    from kvsim.scenario.clock import LinearClockSettings
    from kvsim.scenario.loader import load_scenario

    clock = load_scenario("papers/sosp23-fig18b").clock
    assert isinstance(clock, LinearClockSettings)
    table = sorted((int(size), share) for size, share in (clock.read_efficiency or {}).items())
    return SizeCurve(
        "fitted to SOSP'23, Fig. 18b",
        tuple(size for size, _ in table),
        tuple(share for _, share in table),
        0.0,
    )
