"""Trace formats that say which prompts share a prefix, by ids of the prompt's chunks."""

from __future__ import annotations

from typing import Any, ClassVar

from kvsim.workload.base import NS_PER_S
from kvsim.workload.chunks import (
    UNIQUE,
    ChunkIds,
    cut_last,
    full_only,
    same_size,
    with_rest,
)
from kvsim.workload.fields import BadRowError, Record, bad_value, decimal_ns, identifier, tokens
from kvsim.workload.row_format import FormatOptions, Row, spelled_all

_HASHES = "hash_ids"
_SIZE = "block_size"
_READ = frozenset({"timestamp", "delay", "input_length", "output_length", _HASHES, _SIZE})
"""What the Mooncake formats read; other columns may hold whole conversations."""


class MooncakeFormat:
    """Mooncake traces and their dialects (aiperf, LLMServingSim): `timestamp` in milliseconds.

    `hash_ids` are the ids of the prompt's chunks, the last one cut; equal ids mean equal tokens up
    to the chunk's end. A chunk has 512 tokens, or what the column `block_size` says. A row without
    ids shares its prompt with nobody. A row paced by `delay` (after the answer to the row before it
    in its session) has no arrival and cannot be used.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = True
    optional: ClassVar[tuple[str, ...]] = ()
    unit_ns: ClassVar[int] = 1_000_000
    default_chunk: ClassVar[int] = 512

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        self.wanted = tuple(name for name in columns if name in _READ)
        spelled_all(columns, ("input_length",))
        self.chunk_tokens: int | None = None
        self._options = options
        self._ids = ChunkIds(options.max_chunks)

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return "input_length" in columns and bool(columns & {"timestamp", "delay"})

    def row(self, record: Record) -> Row:
        """See `Format`."""
        if record.get("delay") is not None:
            decimal_ns(record, "delay", self.unit_ns)
            if record.get("timestamp") is None:
                raise BadRowError(
                    "no_timestamp", "column timestamp: a row with only a delay has no arrival"
                )
        arrival = decimal_ns(record, "timestamp", self.unit_ns)
        prompt = tokens(record, "input_length", self._options.max_tokens)
        output = tokens(record, "output_length", self._options.max_tokens)
        return Row(arrival, prompt, output, None, self._segments(record, prompt))

    def _segments(self, record: Record, prompt: int) -> tuple[list[int], list[int]] | None:
        hashes = record.get(_HASHES)
        if hashes is None or not prompt:
            return None
        ids = self._ids.read(hashes, _HASHES)
        chosen = same_size(record, _SIZE, self._options.chunk_tokens, self.chunk_tokens)
        chunk = chosen or self.chunk_tokens or self.default_chunk
        segments = self.cut(ids, prompt, chunk)
        self.chunk_tokens = chunk
        return segments

    @staticmethod
    def cut(ids: list[int], prompt: int, chunk: int) -> tuple[list[int], list[int]]:
        """Segments of the prompt. Raises `BadRowError` for a wrong number of ids."""
        return cut_last(ids, prompt, chunk, _HASHES)


class TimedTraceFormat(MooncakeFormat):
    """vLLM's `timed_trace` data set with its default flags: seconds, chunks of 16 tokens.

    Where the ids run out before the prompt does, the rest of the prompt is nobody else's; vLLM
    itself would end the prompt there.
    """

    unit_ns: ClassVar[int] = NS_PER_S
    default_chunk: ClassVar[int] = 16

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """Never: the columns are Mooncake's, so this format has to be named."""
        return False

    @staticmethod
    def cut(ids: list[int], prompt: int, chunk: int) -> tuple[list[int], list[int]]:
        """See `MooncakeFormat`."""
        return with_rest(ids, prompt, chunk, _HASHES)


class BailianFormat(MooncakeFormat):
    """Alibaba's Bailian (Qwen) traces: `timestamp` in seconds, chunks of 16 tokens.

    Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon. Every turn is a request of its
    own; `parent_chat_id` is not read, because the chunks say what a turn repeats.
    """

    unit_ns: ClassVar[int] = NS_PER_S
    default_chunk: ClassVar[int] = 16

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns that only this format has."""
        return columns >= {"chat_id", "timestamp", "input_length"}


class RagPulseFormat:
    """RAGPulse traces: `timestamp` in seconds, `hash_ids` an object of lists of content chunks.

    Source: github.com/flashserve/RAGPulse. A chunk is a piece of text (a passage, a system prompt),
    equal wherever it stands, of a length that a second file holds: without `chunk_lengths` the rows
    are read as prompts that share nothing. Chunks stand in the object's order; what they lack to
    `input_length` (6 to 12 tokens of template) comes last, shared with nobody.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = True
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        names = ("timestamp", "input_length", "output_length", _HASHES)
        self.wanted = spelled_all(columns, names)
        self.chunk_tokens: int | None = None
        self._options = options
        self._ids = ChunkIds(options.max_chunks)

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """Never: the columns are Mooncake's; an object under `hash_ids` tells it."""
        return False

    def row(self, record: Record) -> Row:
        """See `Format`."""
        most = self._options.max_tokens
        prompt = tokens(record, "input_length", most)
        return Row(
            decimal_ns(record, "timestamp", NS_PER_S),
            prompt,
            tokens(record, "output_length", most),
            None,
            self._segments(record.get(_HASHES), prompt),
        )

    def _segments(self, hashes: Any, prompt: int) -> tuple[list[int], list[int]] | None:
        if not isinstance(hashes, dict):
            raise bad_value(_HASHES, hashes, "an object of lists of chunk ids")
        ids = [number for part in hashes.values() for number in self._ids.read(part, _HASHES)]
        known = self._options.chunk_lengths
        if known is None:
            return None
        lengths = [known.get(number, 0) for number in ids]
        if 0 in lengths:
            unknown = ids[lengths.index(0)]
            raise BadRowError("unknown_chunk", f"column {_HASHES}: no length for chunk {unknown}")
        rest = prompt - sum(lengths)
        if rest < 0:
            raise BadRowError(
                "wrong_chunks",
                f"column {_HASHES}: the chunks have {sum(lengths):,} tokens, the prompt {prompt:,}",
            )
        return ([*ids, UNIQUE], [*lengths, rest]) if rest else (ids, lengths)


class WekaFormat:
    """Rows of WEKA (kv-cache-tester) sessions: `id, t, in, out, hash_ids`, chunks of 64 tokens.

    `t` is in seconds from the start of the session `id`, so all sessions start together. There are
    ids for full chunks only, numbered anew in every session; the rest of the prompt is unique. A
    file of whole sessions must be flattened first, one request a line.
    """

    has_arrivals: ClassVar[bool] = True
    starts_at_first: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = (_SIZE,)
    default_chunk: ClassVar[int] = 64

    def __init__(self, columns: tuple[str, ...], options: FormatOptions) -> None:
        names = ("id", "t", "in", "out", _HASHES)
        self.wanted = (*spelled_all(columns, names), *(name for name in columns if name == _SIZE))
        self.chunk_tokens: int | None = None
        self._options = options
        self._ids = ChunkIds(options.max_chunks)

    @staticmethod
    def matches(columns: frozenset[str]) -> bool:
        """By the columns the format must have."""
        return columns >= {"id", "t", "in", "out", _HASHES}

    def row(self, record: Record) -> Row:
        """See `Format`."""
        options = self._options
        prompt = tokens(record, "in", options.max_tokens)
        scope = identifier(record, "id")
        ids = self._ids.read_scoped(record.get(_HASHES), _HASHES, scope)
        chosen = same_size(record, _SIZE, options.chunk_tokens, self.chunk_tokens)
        chunk = chosen or self.chunk_tokens or self.default_chunk
        segments = full_only(ids, prompt, chunk, _HASHES)
        self.chunk_tokens = chunk
        arrival = decimal_ns(record, "t", NS_PER_S)
        return Row(arrival, prompt, tokens(record, "out", options.max_tokens), None, segments)
