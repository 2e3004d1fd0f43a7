"""The trace recipe of the PagedAttention paper's artifact (SOSP'23)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import numpy as np

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload.base import RowCounts, digest_of
from kvsim.workload.checks import check_number
from kvsim.workload.joint import JointHistogram
from kvsim.workload.lengths import Streams
from kvsim.workload.pairs import PairLengths

QUANTUM_NS = 10_000_000
MAX_TOTAL_TOKENS = 2048
MAX_REQUESTS = 100_000_000


class Sosp23Workload:
    """Length pairs under Poisson arrivals counted in quanta of 10 ms.

    Arrivals per quantum are `RandomState(seed).poisson(rate * 0.01, int(duration_s * 100))`, at the
    quantum's start. Pairs with prompt + output < 2048 are taken from the file's beginning, once
    more if there are too few, and shuffled with `random.Random(seed)`. Both generators are frozen
    by numpy and Python, so the rows are those of the artifact. Where `lengths` is a law instead of
    a file, as many pairs are drawn from it with the same seed.

    `counts` covers the pairs looked at; `too_long` are those of 2048 tokens and more.
    """

    max_concurrency: int | None = None
    shares_prefixes: bool = False
    chunk_tokens: int | None = None

    def __init__(
        self,
        lengths: PairLengths | JointHistogram,
        *,
        rate_rps: float,
        duration_s: float = 900.0,
        seed: int = 0,
        source: str | None = None,
    ) -> None:
        check_number(rate_rps, "rate_rps", 1e-6, 1e6, "requests per second")
        check_number(duration_s, "duration_s", 0.01, 1e6, "s")
        check_number(rate_rps * duration_s, "rate_rps * duration_s", 0, MAX_REQUESTS, "requests")
        check_number(seed, "seed", 0, 2**32 - 1)
        quanta = np.random.RandomState(seed).poisson(rate_rps * 0.01, int(duration_s * 100))
        self._arrivals = np.repeat(np.arange(len(quanta)) * QUANTUM_NS, quanta)
        wanted = len(self._arrivals)
        if isinstance(lengths, PairLengths):
            source = source or lengths.path.name.removesuffix(".gz")
            self._pairs, self._counts = _first_short(lengths, wanted)
        else:
            self._pairs, self._counts = _drawn(lengths, wanted, seed), RowCounts(wanted, wanted)
        random.Random(seed).shuffle(self._pairs)
        self.source = f"sosp23 {source or 'lengths drawn from a law'}"
        self.digest = self._digest()

    @property
    def counts(self) -> RowCounts:
        """Pairs looked at, used, too long."""
        return self._counts

    def __iter__(self) -> Iterator[Request]:
        rows = zip(self._arrivals.tolist(), self._pairs, strict=True)
        for rank, (arrival, (prompt, output)) in enumerate(rows):
            yield Request(f"r{rank}", arrival, prompt, output)

    def _digest(self) -> str:
        """SHA-256 of the rows."""
        hashed = hashlib.sha256(self._arrivals.astype("<i8").tobytes())
        hashed.update(np.array(self._pairs, dtype="<i8").tobytes())
        return digest_of({"rows": hashed.hexdigest(), "max_concurrency": None})


def _drawn(lengths: JointHistogram, wanted: int, seed: int) -> list[tuple[int, int]]:
    children = np.random.SeedSequence(seed).spawn(2)
    streams = Streams(*(np.random.Generator(np.random.PCG64(child)) for child in children))
    prompts, outputs = lengths.draw(streams, 0, wanted)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def _first_short(pairs: PairLengths, wanted: int) -> tuple[list[tuple[int, int]], RowCounts]:
    """The first `wanted` pairs below the limit, from the top again as often as needed."""
    short = pairs.prompt_tokens + pairs.output_tokens < MAX_TOTAL_TOKENS
    if not short.any():
        raise InputError(
            f"no pair has fewer than {MAX_TOTAL_TOKENS} tokens",
            where=str(pairs.path),
            fix="Give the length pairs the recipe is meant for",
        )
    places = np.flatnonzero(short)
    taken = [
        (int(pairs.prompt_tokens[place]), int(pairs.output_tokens[place]))
        for place in np.resize(places, wanted).tolist()
    ]
    rounds, rest = divmod(wanted, len(places))
    looked_at = rounds * len(short) + (int(places[rest - 1]) + 1 if rest else 0)
    too_long = {"too_long": looked_at - wanted} if looked_at > wanted else {}
    return taken, RowCounts(looked_at, wanted, too_long)
