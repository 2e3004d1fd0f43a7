"""The segments of many prompts as flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from kvsim.workload.chunks import UNIQUE

Ints = npt.NDArray[np.int64]
Segments = tuple[tuple[Hashable, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Row i has the segments `starts[i]` to `starts[i + 1]`; none: it shares its prompt with
    nobody. 16 bytes a segment.
    """

    starts: Ints
    streams: Ints
    tokens: Ints

    @classmethod
    def empty(cls, rows: int) -> SegmentTable:
        """Of rows that share nothing."""
        none = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(rows + 1, dtype=np.int64), none, none)

    def of_row(self, row: int, name: str) -> Segments | None:
        """The segments as a request carries them; `name` is the stream of what is unique to it."""
        low, high = self.starts[row], self.starts[row + 1]
        if low == high:
            return None
        streams: list[Hashable] = self.streams[low:high].tolist()
        if streams[-1] == UNIQUE:
            streams[-1] = name
        return tuple(zip(streams, self.tokens[low:high].tolist(), strict=True))

    def reordered(self, order: Ints) -> SegmentTable:
        """The rows in another order."""
        counts = np.diff(self.starts)[order]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.arange(starts[-1]) + np.repeat(self.starts[:-1][order] - starts[:-1], counts)
        return SegmentTable(starts, self.streams[places], self.tokens[places])


def joined_segments(parts: list[SegmentTable]) -> SegmentTable:
    """One table of several, in order."""
    counts = np.concatenate([np.diff(part.starts) for part in parts])
    return SegmentTable(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([part.streams for part in parts]),
        np.concatenate([part.tokens for part in parts]),
    )


class SegmentBuffer:
    """Collects the segments of rows."""

    def __init__(self) -> None:
        self._counts = array("q")
        self._streams = array("q")
        self._tokens = array("q")

    def add(self, segments: tuple[list[int], list[int]] | None) -> None:
        """The next row: streams and lengths, or None."""
        if segments is None:
            self._counts.append(0)
            return
        streams, lengths = segments
        self._counts.append(len(streams))
        self._streams.extend(streams)
        self._tokens.extend(lengths)

    def table(self) -> SegmentTable | None:
        """Everything collected; None if no row has a segment."""
        if not self._streams:
            return None
        starts = np.fromiter(chain((0,), self._counts), np.int64, len(self._counts) + 1)
        return SegmentTable(
            np.cumsum(starts),
            np.frombuffer(self._streams, dtype=np.int64),
            np.frombuffer(self._tokens, dtype=np.int64),
        )
