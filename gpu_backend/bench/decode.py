"""Decode over batch x context x block size, as a share of the read ceiling measured beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_backend.bench.bench import Bench
from gpu_backend.bench.ceiling import ReadCeiling
from gpu_backend.bench.pool import Point, Pool
from gpu_backend.bench.results import Row
from gpu_backend.bench.timing import interleave

BATCHES = (64, 256, 8, 1)
CONTEXTS = (2048, 8192, 512, 32768)
BLOCK_SIZES = (16, 64, 8, 128, 32)
TINY_BATCHES, TINY_CONTEXTS, TINY_BLOCK_SIZES = (2,), (40,), (16, 5)
# The goal: this share of the read ceiling from so many bytes of keys and values on.
GOAL_SHARE, GOAL_BYTES, GOAL_BLOCK_SIZE = 0.85, 500_000_000, 16


def points(bench: Bench) -> list[list[Point]]:
    """Groups of points; the ceiling is measured again before each group."""
    axes: tuple[Sequence[int], ...] = (BATCHES, CONTEXTS, BLOCK_SIZES)
    if bench.tiny:
        axes = (TINY_BATCHES, TINY_CONTEXTS, TINY_BLOCK_SIZES)
    batches, contexts, sizes = axes
    return [
        [Point(batch, context, size) for context in contexts] for size in sizes for batch in batches
    ]


def measure(bench: Bench) -> Iterator[Row]:
    """A row per ceiling and per point; points that do not fit the memory say so."""
    groups = points(bench)
    pool = Pool(bench, max(point.tokens for group in groups for point in group))
    ceiling = ReadCeiling(bench, pool.pair)
    for group in groups:
        bench.check_time()
        now = ceiling.row()
        yield now
        for point in group:
            bench.check_time()
            yield {"kind": "decode", **point.row(), **decode_row(pool, point, now["gb_per_s"])}


def decode_row(pool: Pool, point: Point, ceiling_gb_per_s: float) -> Row:
    """One point, with a random block table."""
    if not pool.fits(point):
        return {"skipped": f"{point.tokens} tokens are more than the {pool.slots} slots"}
    calls = pool.paged_calls(point, pool.tables(point, shuffled=True))
    replays = (2, 2) if pool.bench.tiny else (5, 60)
    (timed,) = interleave([pool.bench.stopwatch.prepare(calls)], budget_s=0.2, replays=replays)
    gb_per_s = pool.moved_bytes(point) / timed.us / 1e3
    share = gb_per_s / ceiling_gb_per_s
    kv_bytes = pool.kv_bytes(point)
    in_goal = kv_bytes >= GOAL_BYTES and point.block_size == GOAL_BLOCK_SIZE
    return {
        **timed.row(),
        "bytes": pool.moved_bytes(point),
        "kv_bytes": kv_bytes,
        "repetitions": len(calls),
        "cold": len(calls) * kv_bytes >= pool.bench.cold_bytes,
        "gb_per_s": gb_per_s,
        "ceiling_gb_per_s": ceiling_gb_per_s,
        "share": share,
        "goal_met": share >= GOAL_SHARE if in_goal else None,
    }
