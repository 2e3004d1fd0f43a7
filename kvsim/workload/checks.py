"""Checks of constructor arguments; each raises `InputError` with name, value and limit."""

from __future__ import annotations

import math
from itertools import pairwise

from kvsim.errors import InputError


def check_number(value: float, where: str, low: float, high: float, unit: str = "") -> None:
    """Raise unless `low <= value <= high` (a NaN never is)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        unit = f" {unit}" if unit else ""
        problem = f"must be from {low:g} to {high:g}{unit}, got {value!r}"
        raise InputError(problem, where=where, fix=f"Set {where} within these limits")


def check_integer(value: int, where: str, low: int, high: int) -> None:
    """Raise unless `value` is an integer with `low <= value <= high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        problem = f"must be an integer from {low:,} to {high:,}, got {value!r}"
        raise InputError(problem, where=where, fix=f"Set {where} within these limits")


def check_seed(value: int) -> None:
    """Raise unless `value` is an integer from 0 to 2^63 - 1."""
    check_integer(value, "seed", 0, 2**63 - 1)


def check_rate_scale(value: float) -> None:
    """Raise unless `value` is from a millionth to a million."""
    check_number(value, "rate_scale", 1e-6, 1e6)


def check_blocks_fit_chunks(
    block_size: int, chunk_tokens: int | None, where: str = "block_size"
) -> None:
    """Raise unless blocks divide the chunks in which a workload says what is shared, or hold them.

    A chunk of 512 tokens stands for 32 blocks of 16, and a block of 1024 for two chunks; anything
    else would need to know what is equal inside a chunk. None: any block will do.
    """
    if chunk_tokens and block_size % chunk_tokens and chunk_tokens % block_size:
        raise InputError(
            f"must divide the trace's chunks of {chunk_tokens} tokens or be a multiple of them,"
            f" got {block_size}",
            where=where,
            fix=f"Use for example {math.gcd(block_size, chunk_tokens)} or {chunk_tokens}",
        )


def check_ascending(values: list[float], where: str) -> None:
    """Raise unless the finite numbers never fall."""
    for before, after in pairwise(values):
        if not before <= after:
            problem = f"must never fall, got {before!r} then {after!r}"
            raise InputError(problem, where=where, fix="List the quantiles from low to high")
    if not values or not all(map(math.isfinite, values)):
        raise InputError(
            "must be a list of finite numbers", where=where, fix="Give one number per quantile"
        )
