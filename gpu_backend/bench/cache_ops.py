"""Writing, copying and swapping cached blocks: bytes per second, reads and writes both counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from gpu_backend import checks, launches, ops
from gpu_backend.bench.bench import Bench
from gpu_backend.bench.pool import DTYPE, Pool
from gpu_backend.bench.results import Row
from gpu_backend.bench.timing import Call, interleave

BLOCK_SIZES = (16, 64)
TOKENS = (256, 8192)
BLOCKS = (64, 4096)
TINY_BLOCK_SIZES, TINY_TOKENS, TINY_BLOCKS = (5,), (4,), (3,)
REPETITIONS = 8


def measure(bench: Bench) -> Iterator[Row]:
    """A row per operation, block size and amount; `device` operations and copies to the host."""
    amounts: tuple[Sequence[int], ...] = (BLOCK_SIZES, TOKENS, BLOCKS)
    if bench.tiny:
        amounts = (TINY_BLOCK_SIZES, TINY_TOKENS, TINY_BLOCKS)
    sizes, tokens, blocks = amounts
    pool = Pool(bench, 4 * max(sizes) * max(blocks))
    for size in sizes:
        for count in tokens:
            bench.check_time()
            yield write_row(pool, size, count)
        for count in blocks:
            bench.check_time()
            room = pool.slots // size
            if 2 * count > room:
                why = f"2 * {count} blocks are more than the {room} of the memory"
                yield {"operation": "blocks", "block_size": size, "count": count, "skipped": why}
                continue
            yield from block_rows(pool, size, count)


def write_row(pool: Pool, block_size: int, tokens: int) -> Row:
    """`tokens` new tokens into random slots."""
    keys, values = pool.caches(block_size)
    shape = (2, tokens, pool.kv_heads, pool.head_dim)
    fresh = torch.randn(shape, dtype=DTYPE, device=pool.bench.device)
    strides = checks.cache_strides(keys, values, "nhd")
    # The launch itself: the checks of `ops.reshape_and_cache` are not what is timed.
    writes = [
        launches.write_launch(fresh[0], fresh[1], keys, values, slots, strides, block_size).run
        for slots in _places(pool, tokens, keys.shape[0] * block_size)
    ]
    return _row(
        pool, "reshape_and_cache", block_size, tokens, writes, 2 * tokens * pool.token_bytes
    )


def block_rows(pool: Pool, block_size: int, blocks: int) -> Iterator[Row]:
    """Copies within the cache, to a buffer, back, and from the buffer to pinned host memory."""
    keys, values = pool.caches(block_size)
    moved = 2 * blocks * block_size * pool.token_bytes
    places = _places(pool, 2 * blocks, keys.shape[0])
    pairs = [ids.view(2, blocks).t().contiguous() for ids in places]
    calls = [partial(ops.copy_blocks, keys, values, pair) for pair in pairs]
    yield _row(pool, "copy_blocks", block_size, blocks, calls, moved)
    buffer = keys.new_empty((2, blocks, *keys.shape[1:]))
    gone = [ids[:blocks] for ids in places]
    out = [partial(ops.swap_out_blocks, keys, values, ids, out=buffer) for ids in gone]
    yield _row(pool, "swap_out_blocks", block_size, blocks, out, moved)
    back = [partial(ops.swap_in_blocks, buffer, keys, values, ids) for ids in gone]
    yield _row(pool, "swap_in_blocks", block_size, blocks, back, moved)
    if pool.bench.device.type == "cuda":
        host = torch.empty(buffer.shape, dtype=DTYPE, pin_memory=True)
        ways = {"buffer_to_host": (host, buffer), "host_to_buffer": (buffer, host)}
        for name, (target, source) in ways.items():
            call = partial(target.copy_, source, non_blocking=True)
            yield _row(pool, name, block_size, blocks, [call], moved // 2)


def _places(pool: Pool, count: int, limit: int) -> list[torch.Tensor]:
    """Random ids below `limit`, int64 [count], other ones for each repetition where they last."""
    repetitions = max(1, min(REPETITIONS, limit // count))
    ids = torch.randperm(limit, device=pool.bench.device, generator=pool.bench.random())
    return list(ids[: repetitions * count].view(repetitions, count).unbind())


def _row(
    pool: Pool,
    operation: str,
    block_size: int,
    count: int,
    calls: Sequence[Call],
    moved_bytes: int,
) -> Row:
    replays = (2, 2) if pool.bench.tiny else (5, 40)
    (timed,) = interleave([pool.bench.stopwatch.prepare(calls)], budget_s=0.1, replays=replays)
    return {
        "operation": operation,
        "block_size": block_size,
        "count": count,
        **timed.row(),
        "bytes": moved_bytes,
        "gb_per_s": moved_bytes / timed.us / 1e3,
    }
