"""Lengths taken from a file, row by row, for use with generated arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError
from kvsim.workload.base import RowCounts
from kvsim.workload.columns import TraceReader, joined
from kvsim.workload.lengths import Streams
from kvsim.workload.source import ReadRules

Ints = npt.NDArray[np.int64]


class PairLengths:
    """Prompt and output of the usable rows of a file; its arrivals, if any, are not used.

    order "file" takes the rows one after the other and starts over at the end; "sample" draws them
    with replacement. `counts` says what the file held.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        order: Literal["file", "sample"] = "file",
        format: str = "auto",
        limit: int | None = None,
        rules: ReadRules | None = None,
    ) -> None:
        if order not in ("file", "sample"):
            raise InputError(
                f"must be 'file' or 'sample', got {order!r}", where="order", fix="Use one of them"
            )
        self.path = Path(path)
        self.order = order
        reader = TraceReader(self.path, format, rules or ReadRules(), limit=limit)
        parts = list(reader.chunks())
        if not parts:
            raise InputError(
                f"no usable row among {reader.read:,}",
                where=str(path),
                fix="Give a file with columns such as prompt_tokens and output_tokens",
            )
        columns = joined(parts)
        self.prompt_tokens: Ints = columns.prompt_tokens
        self.output_tokens: Ints = columns.output_tokens
        self.counts = RowCounts(reader.read, reader.kept, dict(sorted(reader.dropped.items())))
        self.content_sha256 = reader.sha256

    def draw(self, streams: Streams, start: int, count: int) -> tuple[Ints, Ints]:
        """See `Lengths`."""
        rows = len(self.prompt_tokens)
        if self.order == "file":
            places = np.arange(start, start + count, dtype=np.int64) % rows
        else:
            places = (streams.prompts.random(count) * rows).astype(np.int64)
        return self.prompt_tokens[places], self.output_tokens[places]
