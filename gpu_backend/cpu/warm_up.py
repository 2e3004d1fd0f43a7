"""Compile everything that a model's attention will call, before anything is measured."""

from __future__ import annotations

import numpy as np

from gpu_backend.cpu.attention import paged_decode, paged_prefill
from gpu_backend.cpu.cache_ops import reshape_and_cache
from gpu_backend.cpu.plan import SPLIT


def warm_up(heads: int, kv_heads: int, head_dim: int, *, num_threads: int | None = None) -> None:
    """Compile or load the kernels for one shape and start the threads; touches no other state.

    About ten seconds on a machine that never did it, else a fraction of one. Contiguous attention
    runs the same code.
    """
    context = SPLIT + 1  # long enough to be split, so that the reduction is compiled too
    cache = np.zeros((1, kv_heads, context, head_dim), np.float32)
    new = np.zeros((1, kv_heads, head_dim), np.float32)
    reshape_and_cache(new, new, cache, cache, np.zeros(1, np.int64))
    query = np.zeros((2, heads, head_dim), np.float32)
    table, contexts = np.zeros((1, 1), np.int32), np.array([context], np.int32)
    paged_decode(query[:1], cache, cache, table, contexts, scale=1.0, num_threads=num_threads)
    start = np.array([0, 2], np.int32)
    paged_prefill(query, cache, cache, table, start, contexts, scale=1.0, num_threads=num_threads)
