"""Rows of a trace as arrays, chunk by chunk, with every row accounted for."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload.base import CHUNK_ROWS, scaled
from kvsim.workload.fields import BadRowError, Record
from kvsim.workload.records import Entry, open_records
from kvsim.workload.row_format import Extras, FormatOptions, Row
from kvsim.workload.segment_table import SegmentBuffer, SegmentTable, joined_segments
from kvsim.workload.sniff import choose_format, make_format
from kvsim.workload.source import ReadRules
from kvsim.workload.trees import Trees

Ints = npt.NDArray[np.int64]
NO_STREAMS = (None, None)
MAX_BUFFERED = 2**24
"""Segments and beam parents, in integers, that make a chunk whatever its rows."""
_PLACE = re.compile(r"r(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class Columns:
    """Kept rows. `ranks` are their positions among the kept rows of the file, from 0."""

    ranks: Ints
    arrivals_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    extras: list[Extras] | None
    segments: SegmentTable | None = None

    def __len__(self) -> int:
        return len(self.ranks)

    def by_arrival(self) -> Columns:
        """Sorted by arrival; ties keep their order."""
        order = np.argsort(self.arrivals_ns, kind="stable")
        extras = self.extras and [self.extras[i] for i in order.tolist()]
        return Columns(
            self.ranks[order],
            self.arrivals_ns[order],
            self.prompt_tokens[order],
            self.output_tokens[order],
            extras,
            self.segments and self.segments.reordered(order),
        )

    def moved_to(self, arrivals_ns: Ints) -> Columns:
        """The same rows at other times."""
        return replace(self, arrivals_ns=arrivals_ns)

    def requests(
        self, start_ns: int, rate_scale: float, trees: Trees | None = None
    ) -> Iterator[Request]:
        """The rows as requests; `start_ns` on the file's clock is time 0.

        `trees`, with the parents of the whole file, is None where no row has a parent.
        """
        for low in range(0, len(self), CHUNK_ROWS):
            part = slice(low, low + CHUNK_ROWS)
            arrivals = scaled((self.arrivals_ns[part] - start_ns).tolist(), rate_scale)
            names = [f"r{rank}" for rank in self.ranks[part].tolist()]
            prompts = self.prompt_tokens[part].tolist()
            outputs = self.output_tokens[part].tolist()
            if self.segments is not None:
                yield from self._with_segments(
                    low, zip(names, arrivals, prompts, outputs, strict=True)
                )
                continue
            if self.extras is None:
                yield from map(Request, names, arrivals, prompts, outputs)
                continue
            for name, arrival, prompt, output, extras in zip(
                names, arrivals, prompts, outputs, self.extras[part], strict=True
            ):
                own, limit, priority, branches, fork = extras
                shared, stream = trees.streams(own or name, prompt, extras) if trees else NO_STREAMS
                yield Request(
                    own or name,
                    arrival,
                    prompt,
                    output,
                    limit,
                    priority,
                    shared,
                    stream,
                    branches,
                    fork,
                )

    def _with_segments(
        self, low: int, rows: Iterable[tuple[str, int, int, int]]
    ) -> Iterator[Request]:
        assert self.segments is not None
        for place, (name, arrival, prompt, output) in enumerate(rows, low):
            shared = self.segments.of_row(place, name)
            yield Request(name, arrival, prompt, output, segments=shared)


def joined(parts: list[Columns]) -> Columns:
    """One table of several, in order."""
    if len(parts) == 1:
        return parts[0]
    extras: list[Extras] = [extra for part in parts for extra in part.extras or ()]
    some = any(part.segments is not None for part in parts)
    tables = [part.segments or SegmentTable.empty(len(part)) for part in parts] if some else []
    return Columns(
        np.concatenate([part.ranks for part in parts]),
        np.concatenate([part.arrivals_ns for part in parts]),
        np.concatenate([part.prompt_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
        extras or None,
        joined_segments(tables) if some else None,
    )


class _Buffer:
    """Collects rows until they make a chunk."""

    def __init__(self) -> None:
        self._first = 0
        self._clear()

    def _clear(self) -> None:
        self._arrivals = array("q")
        self._prompts = array("q")
        self._outputs = array("q")
        self._extras: list[Extras] = []
        self._segments = SegmentBuffer()

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, row: Row) -> None:
        self._arrivals.append(row[0])
        self._prompts.append(row[1])
        self._outputs.append(row[2])
        if row[3] is not None:
            self._extras.append(row[3])
        self._segments.add(row[4])

    def take(self) -> Columns:
        """Everything collected since the last call."""
        columns = Columns(
            np.arange(self._first, self._first + len(self), dtype=np.int64),
            np.frombuffer(self._arrivals, dtype=np.int64),
            np.frombuffer(self._prompts, dtype=np.int64),
            np.frombuffer(self._outputs, dtype=np.int64),
            self._extras or None,
            self._segments.table(),
        )
        self._first += len(self)
        self._clear()
        return columns


class _Names:
    """Names of the kept rows: their own, or r0, r1, ... by their place, which must not collide."""

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        """Places of the rows with a name of their own among each other, by name."""
        self._has_own = bytearray()

    def take(self, own: str | None) -> None:
        """Name the next kept row. Raises `BadRowError` for a name that is taken."""
        rank = len(self._has_own)
        if own is None:
            if f"r{rank}" in self.own:
                problem = f"a row without request_id is called 'r{rank}', which another row is"
                raise BadRowError("duplicate_id", problem)
        elif own in self.own or self._is_place(own):
            raise BadRowError("duplicate_id", f"request_id {own!r} appears twice")
        else:
            self.own[own] = len(self.own)
        self._has_own.append(own is not None)

    def _is_place(self, name: str) -> bool:
        """Whether a row without a name of its own is called so."""
        match = _PLACE.fullmatch(name)
        place = int(match[1]) if match else len(self._has_own)
        return place < len(self._has_own) and not self._has_own[place]


class TraceReader:
    """One pass over a file. `kind`, `read`, `kept`, `dropped`, `segments` (of the rows kept, those
    of one row counted each), `beam_parents` (integers of theirs), `trees`, `chunk_tokens` and
    `sha256` are complete at its end.

    Rows before `start_at` (ns on the file's clock) are dropped. With `limit` the pass keeps the
    first `limit` usable rows and leaves the rest unread, except for the digest, which always
    covers the whole file.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        rules: ReadRules,
        *,
        limit: int | None = None,
        start_at: int | None = None,
        chunk_tokens: int | None = None,
        chunk_lengths: Mapping[int, int] | None = None,
    ) -> None:
        self.path = path
        self.kind = kind
        self._options = FormatOptions(
            rules.max_tokens, rules.max_chunks, chunk_tokens, chunk_lengths
        )
        self._rules = rules
        self._limit = limit
        self._start_at = start_at or 0
        self._names = _Names()
        self.trees = Trees(self._names.own)
        self.read = 0
        self.kept = 0
        self.segments = 0
        self.beam_parents = 0
        self.chunk_tokens: int | None = None
        self.dropped: Counter[str] = Counter()
        self.sha256 = ""

    def chunks(self) -> Iterator[Columns]:
        """The kept rows in the file's order. Raises `InputError` at the first bad row."""
        rules = self._rules
        buffer = _Buffer()
        taken = 0
        with closing(open_records(self.path, rules)) as records:
            self.kind = choose_format(
                self.kind, records.columns, self.path, objects=records.objects
            )
            rows = make_format(
                self.kind, records.columns, self._options, self.path, ragged=records.ragged
            )
            for entry in records.rows(rows.wanted):
                self.read += 1
                if self.read > rules.max_rows:
                    raise rules.too_many_rows(records.where())
                try:
                    row = self._usable(entry, rows.row)
                except BadRowError as bad:
                    self._refuse(bad, records.where())
                    continue
                if row is not None:
                    self.kept += 1
                    buffer.add(row)
                    if self.kept == self._limit:
                        break
                    held = self.segments + self.beam_parents - taken
                    if len(buffer) == CHUNK_ROWS or held > MAX_BUFFERED:
                        yield buffer.take()
                        taken += held
            self.chunk_tokens = rows.chunk_tokens
            self.sha256 = records.sha256()
        if len(buffer):
            yield buffer.take()

    def _usable(self, entry: Entry, parse: Callable[[Record], Row]) -> Row | None:
        if entry is None:
            self.dropped["blank"] += 1
            return None
        if isinstance(entry, BadRowError):
            raise entry
        row = parse(entry)
        if not row[1] or not row[2]:
            self.dropped["zero_output" if row[1] else "zero_prompt"] += 1
            return None
        if row[0] < self._start_at:
            self.dropped["before_start"] += 1
            return None
        if row[3] is not None:
            self._note_extras(row, row[3])
        self.segments += len(row[4][0]) if row[4] else 0
        return row

    def _note_extras(self, row: Row, extras: Extras) -> None:
        pieces = self.trees.check(row, extras.fork) if extras.fork is not None else 0
        self._names.take(extras.request_id)
        self.trees.add(row, extras)
        self.segments += pieces
        if extras.branches is not None:
            self.beam_parents += len(extras.branches.parents) * extras.branches.width

    def _refuse(self, bad: BadRowError, where: str) -> None:
        if self._rules.on_bad_row == "error":
            way = self._rules.way_to_drop
            drop = f", or drop bad rows, counted by reason, with {way}" if way else ""
            fix = f"Correct the row{drop}"
            raise InputError(bad.problem, where=where, fix=fix)
        self.dropped[bad.reason] += 1
