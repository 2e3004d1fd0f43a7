"""What every workload offers, how its rows are counted, and what its digest covers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvsim.core.request import Request
from kvsim.errors import InputError

NS_PER_S = 1_000_000_000
MAX_NS = 2**63 - 1
"""Times are kept as 64-bit integers: 292 years in nanoseconds."""
CHUNK_ROWS = 65_536
"""Rows handled at a time, so that a million requests need little memory."""


@dataclass(frozen=True)
class RowCounts:
    """Where the rows of a workload went: `read == kept + sum(dropped.values())`.

    `dropped` counts by reason; `reordered` counts kept rows that arrive before a row above them.
    """

    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    reordered: int = 0

    def __post_init__(self) -> None:
        lost = self.read - self.kept - sum(self.dropped.values())
        if lost:
            raise AssertionError(f"{lost} rows unaccounted for: {self}")

    def as_dict(self) -> dict[str, Any]:
        """As plain data, by the names of the fields."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "reordered": self.reordered,
        }


class Workload(Protocol):
    """Requests in arrival order, made lazily; every iteration gives the same rows."""

    @property
    def source(self) -> str:
        """Where the requests come from, for people: a file's name, a preset, a generator."""

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of everything that decides the rows.

        Of a trace: the uncompressed content and what is done to it, so a file and its `.gz` agree.
        Of a generator: the rows themselves, so that a new numpy stream cannot go unnoticed.
        """

    @property
    def max_concurrency(self) -> int | None:
        """Most requests in flight at once (closed loop), or None (open loop)."""

    @property
    def counts(self) -> RowCounts:
        """What was read, kept and dropped."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether any request says by `segments` what its prompt shares with others."""

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens of the chunks in which sharing was recorded; None: token by token, or not at all.

        Blocks of a cache must divide such a chunk or be multiples of it.
        """

    def __iter__(self) -> Iterator[Request]:
        """Start over from the first request."""


def scaled(arrivals_ns: list[int], rate_scale: float) -> list[int]:
    """Arrivals `rate_scale` times as dense, rounded down to a nanosecond, in exact integers.

    The scale itself is taken to nine decimals; `arrivals_ns` are in order.
    """
    divisor = round(rate_scale * NS_PER_S)
    if divisor == NS_PER_S:
        return arrivals_ns
    times = [arrival * NS_PER_S // divisor for arrival in arrivals_ns]
    if times and times[-1] > MAX_NS:
        raise InputError(
            f"the last request would arrive after {times[-1] / NS_PER_S:.3g} s, over 292 years",
            where="rate_scale",
            fix="Raise rate_scale",
        )
    return times


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of plain data, independent of the order of its keys."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
