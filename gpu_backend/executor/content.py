"""Token values without text: a hash of (stream, place in the stream).

Prompts that share a stream hold equal tokens there, which is what a prefix cache relies on; what
nobody can share is a stream of the request's own. Equal on every machine and in every process.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from gpu_backend.executor.arrays import NumpyArray
from kvsim.core.request import Request


@lru_cache(maxsize=1 << 14)
def _seed(kind: str, stream: Hashable) -> int:
    digest = blake2b(repr((kind, stream)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def tail(request: Request) -> tuple[int, int]:
    """The stream behind the shared prompt: its 64-bit seed and the position where it starts.

    A request without segments is one such stream from position 0 on.
    """
    if request.segments is None:
        return _seed("request", request.request_id), 0
    if request.output_stream is None:
        return _seed("request", request.request_id), request.prompt_tokens
    return _seed("stream", request.output_stream), request.prompt_tokens


def token_values(seeds: NumpyArray, places: NumpyArray, vocab: int) -> NumpyArray:
    """Token ids int64 [n] below `vocab` for stream seeds uint64 [n] and places in them [n]."""
    mixed = seeds + (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray((mixed % np.uint64(vocab)).astype(np.int64))


def tokens_of(request: Request, first: int, stop: int, vocab: int) -> NumpyArray:
    """Token ids int64 [stop - first] of the request's positions `first` to `stop` (excluded)."""
    positions = np.arange(first, stop)
    seed, start = tail(request)
    seeds = np.full(stop - first, seed, np.uint64)
    places = positions - start
    begin = 0
    for stream, tokens in request.segments or ():
        inside = slice(max(begin - first, 0), max(min(begin + tokens, stop) - first, 0))
        seeds[inside] = _seed("stream", stream)
        places[inside] = positions[inside] - begin
        begin += tokens
    return token_values(seeds, places, vocab)
