"""Trace formats: which columns hold what. One class and one line of `FORMATS` per format."""

from __future__ import annotations

from typing import ClassVar

from kvsim.workload.base import NS_PER_S
from kvsim.workload.branch_columns import BRANCH_COLUMNS, BranchColumns
from kvsim.workload.chunked_formats import (
    BailianFormat,
    MooncakeFormat,
    RagPulseFormat,
    TimedTraceFormat,
    WekaFormat,
)
from kvsim.workload.fields import (
    BadRowError,
    DateTimes,
    Record,
    decimal_ns,
    identifier,
    optional_integer,
    tokens,
)
from kvsim.workload.row_format import (
    NO_EXTRAS,
    Extras,
    Format,
    FormatOptions,
    Row,
    spelled_all,
    spelled_one,
)


class AzureFormat:
    """Azure LLM inference traces of 2023, 2024 and, with images, 2025.

    Source: github.com/Azure/AzurePublicDataset, data/. Times have 7, 6 or 3 fraction digits and no
    zone, an offset or `Z`; all three are told apart value by value.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = True
    optional: ClassVar[tuple[str, ...]] = ()
    chunk_tokens: int | None = None

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        names = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
        self.wanted = spelled_all(columns, names)
        self._time, self._prompt, self._output = self.wanted
        self._times = DateTimes()
        self._max = options.max_tokens

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


class TableFormat:
    """A plain table: `arrival_s, prompt_tokens, output_tokens`, seconds from the start.

    Optional, in JSON lines row by row: `request_id`, `max_tokens` (at least the output),
    `priority`, and what branches:

    n               parallel samples, 1 to 64; 1 is an ordinary request
    beam_width      beams, 1 to 64; not together with `n`
    beam_parents    list of lists, not in CSV: for each survivor of a selection the beam, from 0,
                    that it continues. Selections follow the second output token, the third, ...;
                    rows behind the last but one token are not used. Without it each beam continues
                    itself
    parent_id, fork_at_token
                    the first `fork_at_token` tokens of this prompt are the first ones of the
                    request `parent_id`, its prompt and output. The parent is a usable row above
                    that arrives no later and has a `request_id`
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = (
        "request_id",
        "max_tokens",
        "priority",
        *BRANCH_COLUMNS,
    )
    chunk_tokens: int | None = None

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        names = ("arrival_s", "prompt_tokens", "output_tokens")
        self._time, self._prompt, self._output = spelled_all(columns, names)
        extras = [spelled_one(columns, name) for name in self.optional]
        self._id, self._limit, self._priority, *branching = extras
        self._branching = BranchColumns(tuple(branching), options.max_tokens)
        self.wanted = (self._time, self._prompt, self._output, *(name for name in extras if name))
        self._has_extras = any(extras)
        self._max = options.max_tokens

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return columns >= {"arrival_s", "prompt_tokens", "output_tokens"}

    def row(self, record: Record) -> Row:
        """See `Format`."""
        prompt = tokens(record, self._prompt, self._max)
        output = tokens(record, self._output, self._max)
        return Row(
            decimal_ns(record, self._time, NS_PER_S),
            prompt,
            output,
            self._extras(record, prompt, output) if self._has_extras else None,
        )

    def _extras(self, record: Record, prompt: int, output: int) -> Extras:
        own = limit = priority = branches = fork = None
        if self._id and record.get(self._id) not in (None, ""):
            own = identifier(record, self._id)
        if self._limit:
            limit = optional_integer(record, self._limit, 1, self._max)
            if limit is not None and limit < output:
                raise BadRowError(
                    "bad_value", f"column {self._limit}: {limit} is less than the output, {output}"
                )
        if self._priority:
            priority = optional_integer(record, self._priority, -(2**31), 2**31 - 1)
        if self._branching.any_in(record):
            branches = self._branching.branches(record, output)
            fork = self._branching.fork(record, prompt)
        if own is None and limit is None and not priority and branches is None and fork is None:
            return NO_EXTRAS
        return Extras(own, limit, priority or 0, branches, fork)


class VidurFormat:
    """Vidur, Sarathi and Etalon traces: `arrived_at` in seconds from the start."""

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()
    chunk_tokens: int | None = None

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        names = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
        self.wanted = spelled_all(columns, names)
        self._time, self._prompt, self._output = self.wanted
        self._max = options.max_tokens

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
    chunk_tokens: int | None = None

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        lower = {name.lower() for name in columns}
        names = next((pair for pair in _PAIRS if lower.issuperset(pair)), _PAIRS[1])
        self.wanted = spelled_all(columns, names)
        self._prompt, self._output = self.wanted
        self._max = options.max_tokens

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
    "bailian": BailianFormat,
    "mooncake": MooncakeFormat,
    "timed_trace": TimedTraceFormat,
    "ragpulse": RagPulseFormat,
    "weka": WekaFormat,
    "table": TableFormat,
    "vidur": VidurFormat,
    "lengths": LengthsFormat,
}
"""In sniffing order: a format with more columns comes before one with fewer."""
