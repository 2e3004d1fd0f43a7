"""What a trace format is: it turns a row by column names into a `Row`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from kvsim.core.request import Branching, Fork
from kvsim.workload.fields import Record


class Extras(NamedTuple):
    """What a row says beside its arrival and lengths."""

    request_id: str | None = None
    max_tokens: int | None = None
    priority: int = 0
    branches: Branching | None = None
    fork: Fork | None = None


NO_EXTRAS = Extras()


class Row(NamedTuple):
    """A usable row; `arrival_ns` is on the file's own clock."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    extras: Extras | None = None
    segments: tuple[list[int], list[int]] | None = None
    """Streams and lengths in tokens, in prompt order, the lengths summing to the prompt."""


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What a format needs to know besides the columns."""

    max_tokens: int
    """Most tokens in one field."""
    max_chunks: int
    """Most chunk ids in one row."""
    chunk_tokens: int | None = None
    """Tokens of one chunk, where the caller says so."""
    chunk_lengths: Mapping[int, int] | None = None
    """Tokens of each chunk by its id, for formats whose chunks differ."""


class Format(Protocol):
    """Reads rows by column name; the position of a column means nothing."""

    has_arrivals: ClassVar[bool]
    starts_at_first: ClassVar[bool]
    """Whether the file's clock has no zero of its own, so the first arrival becomes zero."""
    optional: ClassVar[tuple[str, ...]]
    """Columns it reads from the rows that have them."""
    wanted: tuple[str, ...]
    """Columns it reads, spelled as in the file."""
    chunk_tokens: int | None
    """Tokens of one chunk, once a row had chunks of one size."""

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        """Raises `LookupError` with the missing column's name."""

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """Whether lower-cased column names are this format's."""

    def row(self, record: Record) -> Row:
        """Raises `BadRowError`."""


def spelled_all(columns: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    """The names as the file spells them. Raises `LookupError` with the first missing one."""
    found = []
    for name in names:
        spelled = spelled_one(columns, name)
        if spelled is None:
            raise LookupError(name)
        found.append(spelled)
    return tuple(found)


def spelled_one(columns: Iterable[str], name: str) -> str | None:
    """The name as the file spells it, or None where it has no such column."""
    return next((column for column in columns if column.lower() == name.lower()), None)
