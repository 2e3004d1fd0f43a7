"""What paging costs: one kernel with an ordered and with a random block table, and without any."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_backend.bench.bench import Bench
from gpu_backend.bench.pool import Point, Pool
from gpu_backend.bench.results import Row
from gpu_backend.bench.timing import interleave

SHAPES = ((64, 2048), (64, 8192), (256, 2048), (8, 8192), (8, 512), (1, 32768))
BLOCK_SIZES = (16, 64, 8, 128, 32)
TINY_SHAPES, TINY_BLOCK_SIZES = ((2, 40),), (16, 5)


def measure(bench: Bench) -> Iterator[Row]:
    """A row per point: three kernels in turns, on the same memory.

    `table_cost` is ordered table / contiguous - 1, what looking up costs; `order_cost` is random /
    ordered table - 1, what scattering costs; `paging_cost` is both, random / contiguous - 1.
    """
    shapes, sizes = (TINY_SHAPES, TINY_BLOCK_SIZES) if bench.tiny else (SHAPES, BLOCK_SIZES)
    every = [Point(*shape, size) for size in sizes for shape in shapes]
    pool = Pool(bench, max(point.tokens for point in every))
    for point in every:
        bench.check_time()
        yield {**point.row(), **paging_row(pool, point)}


def paging_row(pool: Pool, point: Point) -> Row:
    """One point."""
    if not pool.fits(point):
        return {"skipped": f"{point.tokens} tokens are more than the {pool.slots} slots"}
    query = pool.queries(point)
    calls = [
        pool.contiguous_calls(point, query),
        pool.paged_calls(point, pool.tables(point, shuffled=False), query),
        pool.paged_calls(point, pool.tables(point, shuffled=True), query),
    ]
    samples = [pool.bench.stopwatch.prepare(group) for group in calls]
    replays = (2, 2) if pool.bench.tiny else (9, 60)
    contiguous, ordered, scattered = interleave(samples, budget_s=0.5, replays=replays)
    return {
        **contiguous.row("contiguous_"),
        **ordered.row("ordered_"),
        **scattered.row("random_"),
        "kv_bytes": pool.kv_bytes(point),
        "table_cost": ordered.us / contiguous.us - 1,
        "order_cost": scattered.us / ordered.us - 1,
        "paging_cost": scattered.us / contiguous.us - 1,
    }
