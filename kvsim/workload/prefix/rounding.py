"""What whole blocks lose of the prefixes that prompts share, by block size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.workload.prefix.trace import PrefixTrace

Ints = npt.NDArray[np.int64]


class Rounding(NamedTuple):
    """For one block size, without eviction: where the seen prompt tokens go, in tokens."""

    block_size: int
    hit: int
    rounding: int
    last_token: int
    repeats: int
    """Requests of which some prompt token was seen before."""

    @property
    def lost_per_repeat(self) -> float:
        """Tokens lost to rounding per request that repeats something; 0 without any."""
        return self.rounding / self.repeats if self.repeats else 0.0


def fitting_sizes(chunk_tokens: int | None, most: int) -> list[int]:
    """Block sizes up to `most` for which the trace says what is shared: see `check_blocks_fit`."""
    return [
        size
        for size in range(1, most + 1)
        if not chunk_tokens or not size % chunk_tokens or not chunk_tokens % size
    ]


def split_seen(seen: Ints, prompts: Ints, block_size: int) -> tuple[int, int, int]:
    """Of prompt tokens seen before: those in findable blocks, beyond whole blocks, and in blocks
    that end with the prompt and so are computed again. All in tokens, summed over requests.
    """
    blocks = seen // block_size
    found = np.minimum(blocks, (prompts - 1) // block_size)
    return (
        int(found.sum()) * block_size,
        int((seen - blocks * block_size).sum()),
        int((blocks - found).sum()) * block_size,
    )


def block_rounding(trace: PrefixTrace, sizes: Iterable[int]) -> list[Rounding]:
    """The bound of `PrefixAnalysis` at every size, from one look at the trace."""
    seen = trace.seen_tokens()
    repeats = int((seen > 0).sum())
    return [Rounding(size, *split_seen(seen, trace.prompts, size), repeats) for size in sizes]
