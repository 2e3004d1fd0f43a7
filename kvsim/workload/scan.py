"""The first pass over a trace: first and last arrival, order, and the rows where they are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.errors import InputError
from kvsim.workload.base import RowCounts
from kvsim.workload.columns import Columns, Ints, TraceReader, joined
from kvsim.workload.formats import FORMATS
from kvsim.workload.trees import Trees

SEGMENTS_PER_ROW = 16
"""Also of beam parents. A file whose rows have more on average is held in memory up to so many
fewer rows."""


@dataclass(frozen=True)
class Scan:
    """`kind` is the format, times are on the file's clock.

    `columns` is None where the rows were too many to keep.
    """

    columns: Columns | None
    first_ns: int
    last_ns: int
    kind: str
    counts: RowCounts
    sha256: str
    segments: int
    """Segments of all kept rows together."""
    pieces: int
    """Segments and beam parents: what the kept rows hold of varying number."""
    chunk_tokens: int | None
    trees: Trees


def scan(reader: TraceReader, keep_rows: int) -> Scan:
    """Read the file to its end; keep its rows, in the file's order, unless above `keep_rows`.

    Raises `InputError` for a file without arrivals or without a usable row.
    """
    parts: list[Columns] = []
    firsts: list[int] = []
    last = reordered = 0
    for chunk in reader.chunks():
        firsts.append(int(chunk.arrivals_ns.min()))
        reordered += _late(chunk.arrivals_ns, last)
        last = max(last, int(chunk.arrivals_ns.max()))
        parts.append(chunk)
        if _too_many(reader, keep_rows):
            parts.clear()
    if not FORMATS[reader.kind].has_arrivals:
        raise InputError(
            "holds prompt and output lengths but no arrivals",
            where=str(reader.path),
            fix="Combine its lengths with generated arrivals, or add a column arrival_s",
        )
    if not reader.kept:
        dropped = ", ".join(f"{count} {why}" for why, count in sorted(reader.dropped.items()))
        raise InputError(
            f"no usable row among {reader.read:,} ({dropped or 'none at all'})",
            where=str(reader.path),
            fix="Check that this is the right file",
        )
    counts = RowCounts(reader.read, reader.kept, dict(sorted(reader.dropped.items())), reordered)
    return Scan(
        None if _too_many(reader, keep_rows) else joined(parts),
        min(firsts),
        last,
        reader.kind,
        counts,
        reader.sha256,
        reader.segments,
        reader.segments + reader.beam_parents,
        reader.chunk_tokens,
        reader.trees,
    )


def _too_many(reader: TraceReader, keep_rows: int) -> bool:
    held = reader.segments + reader.beam_parents
    return max(reader.kept, held // SEGMENTS_PER_ROW) > keep_rows


def smeared(columns: Columns, width_ns: int, seed: int) -> Columns:
    """Spread arrivals of one instant over `width_ns`, at most up to the next instant.

    `columns` are sorted. Places are uniform; within an instant the rows keep their order.
    """
    arrivals = columns.arrivals_ns
    instants, group = np.unique(arrivals, return_inverse=True)
    room = np.minimum(np.diff(instants, append=instants[-1] + width_ns), width_ns)
    places = np.random.Generator(np.random.PCG64(seed)).random(len(arrivals))
    places = places[np.lexsort((places, group))]
    spread = arrivals + np.floor(places * room[group]).astype(np.int64)
    return columns.moved_to(spread)


def _late(arrivals_ns: Ints, last: int) -> int:
    """Rows that arrive before some row above them; `last` is the latest arrival so far."""
    latest = np.maximum(np.maximum.accumulate(arrivals_ns), last)
    return int((arrivals_ns < latest).sum())
