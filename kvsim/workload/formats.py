"""Trace formats: which columns hold what. One class and one line of `FORMATS` per format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple, Protocol

from kvsim.workload.base import NS_PER_S
from kvsim.workload.fields import (
    BadRowError,
    DateTimes,
    Record,
    bad_value,
    decimal_ns,
    identifier,
    optional_integer,
    tokens,
)

Extras = tuple[str | None, int | None, int]
"""request_id, max_tokens, priority."""
_NO_EXTRAS: Extras = (None, None, 0)


class Row(NamedTuple):
    """A usable row; `arrival_ns` is on the file's own clock."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    extras: Extras | None = None


class Format(Protocol):
    """Reads rows by column name; the position of a column means nothing."""

    has_arrivals: ClassVar[bool]
    starts_at_first: ClassVar[bool]
    """Whether the file's clock has no zero of its own, so the first arrival becomes zero."""
    optional: ClassVar[tuple[str, ...]]
    """Columns it reads from the rows that have them."""
    wanted: tuple[str, ...]
    """Columns it reads, spelled as in the file."""

    def __init__(self, columns: tuple[str, ...], max_tokens: int) -> None:
        """Raises `LookupError` with the missing column's name."""

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """Whether lower-cased column names are this format's."""

    def row(self, record: Record) -> Row:
        """Raises `BadRowError`."""


class AzureFormat:
    """Azure LLM inference traces of 2023, 2024 and, with images, 2025.

    Source: github.com/Azure/AzurePublicDataset, data/. Times have 7, 6 or 3 fraction digits and no
    zone, an offset or `Z`; all three are told apart value by value.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = True
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, columns: tuple[str, ...], max_tokens: int) -> None:
        names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
        self.wanted = _spelled(columns, names)
        self._time, self._prompt, self._output = self.wanted
        self._times = DateTimes()
        self._max = max_tokens

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return columns >= {"timestamp", "contexttokens", "generatedtokens"}

    def row(self, record: Record) -> Row:
        """See `Format`."""
        return Row(
            self._times.ns(record, self._time),
            tokens(record, self._prompt, self._max),
            tokens(record, self._output, self._max),
        )


class MooncakeFormat:
    """Mooncake traces and their dialect in aiperf: `timestamp` in milliseconds, int or float.

    `hash_ids` must be a list where present. A row paced by `delay` (after the answer to the row
    before it in its session) has no arrival and cannot be used.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = True
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, columns: tuple[str, ...], max_tokens: int) -> None:
        self.wanted = tuple(
            name for name in columns if name not in ("text_input", "messages", "payload", "tools")
        )
        _spelled(columns, ("input_length",))
        self._max = max_tokens

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return "input_length" in columns and bool(columns & {"timestamp", "delay"})

    def row(self, record: Record) -> Row:
        """See `Format`."""
        hash_ids = record.get("hash_ids")
        if hash_ids is not None and not isinstance(hash_ids, list):
            raise bad_value("hash_ids", hash_ids, "a list of block ids")
        if record.get("delay") is not None:
            decimal_ns(record, "delay", 1_000_000)
            if record.get("timestamp") is None:
                raise BadRowError(
                    "no_timestamp", "column timestamp: a row with only a delay has no arrival"
                )
        return Row(
            decimal_ns(record, "timestamp", 1_000_000),
            tokens(record, "input_length", self._max),
            tokens(record, "output_length", self._max),
        )


class TableFormat:
    """A plain table: `arrival_s, prompt_tokens, output_tokens`, seconds from the start.

    Optional, in JSON lines row by row: `request_id`, `max_tokens` (at least the output),
    `priority`.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ("request_id", "max_tokens", "priority")

    def __init__(self, columns: tuple[str, ...], max_tokens: int) -> None:
        names = ("arrival_s", "prompt_tokens", "output_tokens")
        self._time, self._prompt, self._output = _spelled(columns, names)
        extras = [_optional(columns, name) for name in self.optional]
        self._id, self._limit, self._priority = extras
        self.wanted = (self._time, self._prompt, self._output, *(name for name in extras if name))
        self._has_extras = any(extras)
        self._max = max_tokens

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return columns >= {"arrival_s", "prompt_tokens", "output_tokens"}

    def row(self, record: Record) -> Row:
        """See `Format`."""
        output = tokens(record, self._output, self._max)
        return Row(
            decimal_ns(record, self._time, NS_PER_S),
            tokens(record, self._prompt, self._max),
            output,
            self._extras(record, output) if self._has_extras else None,
        )

    def _extras(self, record: Record, output: int) -> Extras:
        own = limit = priority = None
        if self._id and self._id in record:
            own = identifier(record, self._id)
        if self._limit:
            limit = optional_integer(record, self._limit, 1, self._max)
            if limit is not None and limit < output:
                raise BadRowError(
                    "bad_value", f"column {self._limit}: {limit} is less than the output, {output}"
                )
        if self._priority:
            priority = optional_integer(record, self._priority, -(2**31), 2**31 - 1)
        if own is None and limit is None and not priority:
            return _NO_EXTRAS
        return own, limit, priority or 0


class VidurFormat:
    """Vidur, Sarathi and Etalon traces: `arrived_at` in seconds from the start."""

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, columns: tuple[str, ...], max_tokens: int) -> None:
        names = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
        self.wanted = _spelled(columns, names)
        self._time, self._prompt, self._output = self.wanted
        self._max = max_tokens

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return columns >= {"arrived_at", "num_prefill_tokens", "num_decode_tokens"}

    def row(self, record: Record) -> Row:
        """See `Format`."""
        return Row(
            decimal_ns(record, self._time, NS_PER_S),
            tokens(record, self._prompt, self._max),
            tokens(record, self._output, self._max),
        )


_PAIRS = (
    ("num_prefill_tokens", "num_decode_tokens"),
    ("prompt_tokens", "output_tokens"),
    ("prompt_len", "output_len"),
    ("input_length", "output_length"),
)


class LengthsFormat:
    """Prompt and output lengths without arrivals, under one of four pairs of names."""

    has_arrivals: ClassVar[bool] = False
    starts_at_first: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, columns: tuple[str, ...], max_tokens: int) -> None:
        lower = {name.lower() for name in columns}
        names = next((pair for pair in _PAIRS if lower.issuperset(pair)), _PAIRS[1])
        self.wanted = _spelled(columns, names)
        self._prompt, self._output = self.wanted
        self._max = max_tokens

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return any(columns.issuperset(pair) for pair in _PAIRS)

    def row(self, record: Record) -> Row:
        """See `Format`."""
        return Row(
            0, tokens(record, self._prompt, self._max), tokens(record, self._output, self._max)
        )


FORMATS: dict[str, type[Format]] = {
    "azure": AzureFormat,
    "mooncake": MooncakeFormat,
    "table": TableFormat,
    "vidur": VidurFormat,
    "lengths": LengthsFormat,
}
"""In sniffing order: a format with more columns comes before one with fewer."""


def _spelled(columns: Iterable[str], names: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for name in names:
        spelled = _optional(columns, name)
        if spelled is None:
            raise LookupError(name)
        found.append(spelled)
    return tuple(found)


def _optional(columns: Iterable[str], name: str) -> str | None:
    return next((column for column in columns if column.lower() == name.lower()), None)
