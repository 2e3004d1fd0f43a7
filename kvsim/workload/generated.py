"""A workload made from laws of arrivals and lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvsim.core.request import Request
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.base import CHUNK_ROWS, RowCounts, digest_of, scaled
from kvsim.workload.checks import check_integer, check_rate_scale, check_seed
from kvsim.workload.lengths import Lengths, Streams

Ints = npt.NDArray[np.int64]


class GeneratedWorkload:
    """`num_requests` requests called r0, r1, ... Arrivals, prompts and outputs have a random stream
    each (PCG64, spawned from `seed`).

    Rows are made `chunk_rows` at a time; their number changes nothing in the rows.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        lengths: Lengths,
        *,
        num_requests: int,
        seed: int = 0,
        rate_scale: float = 1.0,
        source: str = "generated",
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        check_integer(num_requests, "num_requests", 1, 1_000_000_000)
        check_integer(chunk_rows, "chunk_rows", 1, 10_000_000)
        check_seed(seed)
        check_rate_scale(rate_scale)
        self.arrivals = arrivals
        self.lengths = lengths
        self.num_requests = num_requests
        self.seed = seed
        self.rate_scale = rate_scale
        self.source = source
        self.chunk_rows = chunk_rows

    @cached_property
    def digest(self) -> str:
        """SHA-256 of rows and concurrency; makes the rows once."""
        hashes = [hashlib.sha256() for _ in range(3)]
        for columns in self._chunks():
            for column, hashed in zip(columns, hashes, strict=True):
                hashed.update(column.astype("<i8").tobytes())
        rows = hashlib.sha256(b"".join(hashed.digest() for hashed in hashes)).hexdigest()
        return digest_of({"rows": rows, "max_concurrency": self.max_concurrency})

    @property
    def max_concurrency(self) -> int | None:
        """As the arrivals say."""
        return self.arrivals.max_concurrency

    @property
    def counts(self) -> RowCounts:
        """Nothing is dropped."""
        return RowCounts(self.num_requests, self.num_requests)

    @property
    def shares_prefixes(self) -> bool:
        """No: every prompt is its own."""
        return False

    @property
    def chunk_tokens(self) -> int | None:
        """None: nothing is shared."""
        return None

    def __iter__(self) -> Iterator[Request]:
        start = 0
        for arrivals, prompts, outputs in self._chunks():
            names = map("r{}".format, range(start, start + len(arrivals)))
            start += len(arrivals)
            yield from map(Request, names, arrivals.tolist(), prompts.tolist(), outputs.tolist())

    def _chunks(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Arrivals in ns, prompts, outputs."""
        streams = [
            np.random.Generator(np.random.PCG64(child))
            for child in np.random.SeedSequence(self.seed).spawn(3)
        ]
        lengths = Streams(streams[1], streams[2])
        start = 0
        for times in self.arrivals.times_ns(streams[0], self.num_requests, self.chunk_rows):
            if self.rate_scale != 1:
                times = np.array(scaled(times.tolist(), self.rate_scale), dtype=np.int64)
            yield times, *self.lengths.draw(lengths, start, len(times))
            start += len(times)
