"""A workload that replays a trace file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload.base import MAX_NS, NS_PER_S, RowCounts, digest_of
from kvsim.workload.checks import check_integer, check_number, check_rate_scale, check_seed
from kvsim.workload.chunk_lengths import read_chunk_lengths
from kvsim.workload.columns import Columns, TraceReader
from kvsim.workload.formats import FORMATS
from kvsim.workload.lengths import MAX_TOKENS
from kvsim.workload.scan import Scan, scan, smeared
from kvsim.workload.source import ReadRules

KEEP_ROWS = 1_000_000
"""Files with more rows are read again at every iteration instead of being held in memory."""


class TraceWorkload:
    """The requests of a trace file, checked from end to end when constructed.

    path         CSV, JSON lines or Parquet, the text ones also as gzip; recognised by content
    format       a key of `FORMATS`, or "auto": the format is told from the column names
    rate_scale   3 makes arrivals three times as dense
    limit        only the first so many usable rows of the file
    start_at     what the file's clock shows at time 0, in ns (Azure: since 1970 UTC); by default
                 the first arrival where the clock is a wall clock, else 0. Rows before it are
                 dropped as `before_start`. Give two traces the same value to keep their clocks
    smear_s      spreads arrivals of the same instant over so many seconds, but never past the next
                 instant: order is kept, places are random from `seed`
    rules        bad rows and caps
    chunk_tokens    tokens of one chunk under `hash_ids`, where neither the format nor a column
                    `block_size` says it
    chunk_lengths   a CSV file `chunk_id,token_length` with the length of every chunk (RAGPulse);
                    without it the prompts of that format share nothing

    Rows out of order are sorted by arrival, ties in the file's order, and counted as reordered; so
    sorting, like smearing, holds the whole trace in memory. Requests without a name of their own
    are called r0, r1, ... by their place among the usable rows of the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: str = "auto",
        rate_scale: float = 1.0,
        limit: int | None = None,
        start_at: int | None = None,
        smear_s: float = 0.0,
        seed: int = 0,
        rules: ReadRules | None = None,
        keep_rows: int = KEEP_ROWS,
        chunk_tokens: int | None = None,
        chunk_lengths: str | Path | None = None,
    ) -> None:
        check_rate_scale(rate_scale)
        check_number(smear_s, "smear_s", 0, 1e6, "s")
        check_seed(seed)
        if limit is not None:
            check_integer(limit, "limit", 1, MAX_NS)
        if start_at is not None:
            check_integer(start_at, "start_at", 0, MAX_NS)
        if chunk_tokens is not None:
            check_integer(chunk_tokens, "chunk_tokens", 1, MAX_TOKENS)
        self.path = Path(path)
        self.format = format
        self.rate_scale = rate_scale
        self.limit = limit
        self.start_at = start_at
        self.smear_s = smear_s
        self.seed = seed
        self.rules = rules or ReadRules()
        self._asked_chunk = chunk_tokens
        self._lengths = read_chunk_lengths(chunk_lengths, self.rules) if chunk_lengths else None
        first = scan(self._reader(), MAX_NS if smear_s else keep_rows)
        if first.counts.reordered and first.columns is None:
            first = scan(self._reader(), MAX_NS)
        self._counts = first.counts
        self._kind = first.kind
        self._segments = first.segments
        self.pieces = first.pieces
        """Segments of prompts and beam parents of all rows: they, not rows, may take the memory."""
        self._chunk_tokens = first.chunk_tokens
        self.content_sha256 = first.sha256
        self._start_ns = self._start(first)
        self._columns = self._arranged(first)
        self._parents = first.trees.parents
        self._trees = first.trees if self._parents and self._columns is not None else None

    @property
    def source(self) -> str:
        """The file's name, the same for a file and its `.gz`."""
        return self.path.name.removesuffix(".gz")

    @property
    def kind(self) -> str:
        """The key of `FORMATS` that the file was read as."""
        return self._kind

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed content and of everything done to it."""
        return digest_of(
            {
                "content": self.content_sha256,
                "format": self._kind,
                "rate_scale": round(self.rate_scale * NS_PER_S),
                "limit": self.limit,
                "start_at": self.start_at,
                "smear": [round(self.smear_s * NS_PER_S), self.seed] if self.smear_s else None,
                "on_bad_row": self.rules.on_bad_row,
                **({"chunk_tokens": self._asked_chunk} if self._asked_chunk else {}),
                **({"chunk_lengths": self._lengths.sha256} if self._lengths else {}),
            }
        )

    @property
    def max_concurrency(self) -> int | None:
        """None: arrivals are the file's."""
        return None

    @property
    def counts(self) -> RowCounts:
        """Rows of the file that were read, kept, dropped and out of order."""
        return self._counts

    @property
    def shares_prefixes(self) -> bool:
        """Whether any row has a parent, or ids of its prompt's chunks with known lengths."""
        return self._segments > 0

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens of a chunk; None where no row has chunks, or where they differ (RAGPulse)."""
        return self._chunk_tokens

    def __iter__(self) -> Iterator[Request]:
        if self._columns is not None:
            yield from self._columns.requests(self._start_ns, self.rate_scale, self._trees)
            return
        reader = self._reader()
        for chunk in reader.chunks():
            # Children may be in chunks to come: the parents are known from the first pass.
            reader.trees.parents |= self._parents
            trees = reader.trees if self._parents else None
            yield from chunk.requests(self._start_ns, self.rate_scale, trees)
        if reader.sha256 != self.content_sha256:
            raise InputError(
                "changed while it was read", where=str(self.path), fix="Run again on a file at rest"
            )

    def _reader(self) -> TraceReader:
        return TraceReader(
            self.path,
            self.format,
            self.rules,
            limit=self.limit,
            start_at=self.start_at,
            chunk_tokens=self._asked_chunk,
            chunk_lengths=self._lengths and self._lengths.tokens,
        )

    def _start(self, first: Scan) -> int:
        start = first.first_ns if FORMATS[first.kind].starts_at_first else 0
        start = start if self.start_at is None else self.start_at
        end_s = ((first.last_ns - start) / self.rate_scale) / NS_PER_S + self.smear_s
        if end_s > MAX_NS / NS_PER_S:
            raise InputError(
                f"the last request would arrive after {end_s:.3g} s, more than 292 years",
                where=str(self.path),
                fix="Check the unit of the arrivals, or raise rate_scale",
            )
        return start

    def _arranged(self, first: Scan) -> Columns | None:
        columns = first.columns
        if columns is not None and first.counts.reordered:
            columns = columns.by_arrival()
        if columns is not None and self.smear_s:
            columns = smeared(columns, round(self.smear_s * NS_PER_S), self.seed)
        return columns
