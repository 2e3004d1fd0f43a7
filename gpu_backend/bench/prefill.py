"""Prefill over chunk x prior context, as a share of the matrix products measured beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from gpu_backend import ops
from gpu_backend.bench.bench import Bench
from gpu_backend.bench.ceiling import MatmulCeiling
from gpu_backend.bench.pool import DTYPE, Point, Pool
from gpu_backend.bench.results import Row
from gpu_backend.bench.timing import interleave

CHUNKS = (2048, 8192, 512)
PRIORS = (0, 2048, 8192, 32768)
TINY_CHUNKS, TINY_PRIORS = (9,), (0, 20)
BLOCK_SIZE = 16


def measure(bench: Bench) -> Iterator[Row]:
    """A row per chunk and prior context: one sequence, paged with a random table, and contiguous.

    Operations are those of a causal chunk, a multiply-add being two: 4 * heads * d per pair of a
    query and a token that it sees.
    """
    chunks, priors = (TINY_CHUNKS, TINY_PRIORS) if bench.tiny else (CHUNKS, PRIORS)
    pool = Pool(bench, max(chunks) + max(priors) + BLOCK_SIZE)
    ceiling = MatmulCeiling(bench)
    for chunk in chunks:
        bench.check_time()
        limit = ceiling.tflop_per_s()
        yield {"kind": "ceiling", "tflop_per_s": limit}
        for prior in priors:
            bench.check_time()
            yield {"kind": "prefill", **prefill_row(pool, chunk, prior, limit)}


def pairs_seen(chunk: int, prior: int) -> int:
    """Pairs of a query and a token that it sees, its own included."""
    return chunk * prior + chunk * (chunk + 1) // 2


def prefill_row(pool: Pool, chunk: int, prior: int, ceiling_tflop_per_s: float) -> Row:
    """One chunk of one sequence."""
    device = pool.bench.device
    point = Point(1, prior + chunk, BLOCK_SIZE)
    shape, random = (chunk, pool.heads, pool.head_dim), pool.bench.random()
    query = torch.randn(shape, dtype=DTYPE, device=device, generator=random)
    starts = torch.tensor([0, chunk], dtype=torch.int32, device=device)
    ranges = (starts, pool.lens(point))
    table = pool.tables(point, shuffled=True)[0]
    paged = partial(
        ops.paged_prefill, query, *pool.caches(BLOCK_SIZE), table, *ranges,
        scale=pool.scale, layout="nhd", out=torch.empty_like(query),
    )  # fmt: skip
    contiguous = partial(
        ops.contiguous_prefill, query, pool.pair[0], pool.pair[1], pool.starts(point)[0], *ranges,
        scale=pool.scale, out=torch.empty_like(query),
    )  # fmt: skip
    samples = [pool.bench.stopwatch.prepare([call]) for call in (paged, contiguous)]
    replays = (2, 2) if pool.bench.tiny else (5, 30)
    timed, plain = interleave(samples, budget_s=0.4, replays=replays)
    operations = 4 * pool.heads * pool.head_dim * pairs_seen(chunk, prior)
    tflop_per_s = operations / timed.us / 1e6
    return {
        "chunk": chunk,
        "prior": prior,
        "block_size": BLOCK_SIZE,
        **timed.row(),
        **plain.row("contiguous_"),
        "operations": operations,
        "tflop_per_s": tflop_per_s,
        "ceiling_tflop_per_s": ceiling_tflop_per_s,
        "share": tflop_per_s / ceiling_tflop_per_s,
    }
