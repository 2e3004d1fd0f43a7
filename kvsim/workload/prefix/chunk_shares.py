"""Reuse counted in the trace's own chunks, as published figures count it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.workload.prefix.trace import PrefixTrace


@dataclass(frozen=True, slots=True)
class ChunkShares:
    """Three shares that papers call the reuse or hit rate of an infinite cache, in 0..1.

    chunks               repeated chunks, of all chunks, partial last ones included
    full_chunk_tokens    tokens in repeated full chunks, of the tokens in full chunks
    mean_of_requests     mean over requests of: prompt tokens in repeated chunks, of all its tokens

    A chunk is repeated if an earlier request had it, after the same chunks.
    """

    chunks: float
    full_chunk_tokens: float
    mean_of_requests: float


def chunk_shares(trace: PrefixTrace, chunk_tokens: int) -> ChunkShares:
    """The shares of a trace whose chunks have `chunk_tokens` tokens, less only at a prompt's end.

    Requests without chunks count as prompts that repeat nothing.
    """
    seen, owners = trace.seen_tokens(), trace.owners
    of_prompt = trace.ends <= trace.prompts[owners]
    repeated = of_prompt & (trace.ends <= seen[owners])
    lengths = trace.ends - trace.begins
    full = of_prompt & (lengths == chunk_tokens)
    tokens = np.bincount(owners[repeated], lengths[repeated], minlength=len(trace))
    return ChunkShares(
        _share(int(repeated.sum()), int(of_prompt.sum())),
        _share(int((repeated & full).sum()), int(full.sum())),
        float((tokens / trace.prompts).mean()),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
