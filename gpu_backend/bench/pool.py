"""One large KV memory that all timed kernels share, and batches that lie in it.

The same bytes are seen as blocks of any size or as one arena. A batch is repeated on other places
of the memory until its repetitions are 4 times the L2 cache: then every call reads cold memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from gpu_backend import configs, launches, ops
from gpu_backend.bench.bench import Bench

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
TINY_HEADS, TINY_KV_HEADS, TINY_HEAD_DIM = 4, 2, 16
DTYPE = torch.bfloat16
MEMORY_SHARE = 0.6  # of the free memory: queries, partial results and graphs need some too
MAX_POOL_BYTES = 40 << 30
MAX_REPETITIONS = 128


@dataclass(frozen=True)
class Point:
    """A decode batch: `batch` sequences of `context` tokens, in blocks of `block_size`."""

    batch: int
    context: int
    block_size: int = 16

    @property
    def tokens(self) -> int:
        """Slots that the batch takes, whole blocks."""
        return self.batch * self.blocks * self.block_size

    @property
    def blocks(self) -> int:
        """Blocks of one sequence."""
        return -(-self.context // self.block_size)

    def row(self) -> dict[str, object]:
        """As part of a row."""
        return {"batch": self.batch, "context": self.context, "block_size": self.block_size}


class Pool:
    """Keys and values of one layer, bfloat16, random; `slots` tokens, [slots, kv_heads, d] each."""

    def __init__(self, bench: Bench, wanted_slots: int) -> None:
        """Takes as many of `wanted_slots` as fit, but never less than 4 times the L2 cache.

        Raises torch's out-of-memory error when not even those fit.
        """
        self.bench = bench
        sizes = (HEADS, KV_HEADS, HEAD_DIM)
        self.heads, self.kv_heads, self.head_dim = (
            (TINY_HEADS, TINY_KV_HEADS, TINY_HEAD_DIM) if bench.tiny else sizes
        )
        self.token_bytes = 2 * self.kv_heads * self.head_dim * DTYPE.itemsize
        limit = min(_free_bytes(bench) * MEMORY_SHARE, MAX_POOL_BYTES) // self.token_bytes
        cold = -(-bench.cold_bytes // self.token_bytes)
        self.slots = -(-max(cold, min(wanted_slots, int(limit))) // 128) * 128
        shape = (2, self.slots, self.kv_heads, self.head_dim)
        self.pair = torch.empty(shape, dtype=DTYPE, device=bench.device)
        self.pair.normal_(generator=bench.random())
        self._random = bench.random()

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.head_dim**-0.5)

    def fits(self, point: Point) -> bool:
        """Whether the batch lies in the memory without sharing a slot."""
        return point.tokens <= self.slots // point.block_size * point.block_size

    def caches(self, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as blocks: [blocks, block_size, kv_heads, d] each, layout "nhd"."""
        count = self.slots // block_size
        shape = (2, count, block_size, self.kv_heads, self.head_dim)
        keys, values = self.pair[:, : count * block_size].view(shape)
        return keys, values

    def repetitions(self, point: Point) -> int:
        """How many disjoint places of the batch make 4 times the L2 cache, as far as they exist."""
        bytes_each = point.tokens * self.token_bytes
        wanted = -(-self.bench.cold_bytes // bytes_each)
        return max(1, min(wanted, self.slots // point.tokens, MAX_REPETITIONS))

    def tables(self, point: Point, *, shuffled: bool) -> list[torch.Tensor]:
        """A block table, int32 [batch, blocks], for each repetition; no block is in two of them."""
        count, each = self.repetitions(point), point.batch * point.blocks
        total = self.slots // point.block_size
        ids = torch.arange(total, device=self.bench.device)
        if shuffled:
            ids = torch.randperm(total, device=self.bench.device, generator=self._random)
        shape = (count, point.batch, point.blocks)
        return list(ids[: count * each].int().view(shape).unbind())

    def starts(self, point: Point) -> list[torch.Tensor]:
        """First slots, int64 [batch], of the same places as unshuffled tables, per repetition."""
        size = point.blocks * point.block_size
        first = torch.arange(self.repetitions(point) * point.batch, device=self.bench.device)
        return list((first * size).view(-1, point.batch).unbind())

    def queries(self, point: Point) -> torch.Tensor:
        """Random queries, [batch, heads, d]."""
        shape = (point.batch, self.heads, self.head_dim)
        return torch.randn(shape, dtype=DTYPE, device=self.bench.device, generator=self._random)

    def lens(self, point: Point) -> torch.Tensor:
        """Context lengths, int32 [batch]: all the same."""
        return torch.full(
            (point.batch,), point.context, dtype=torch.int32, device=self.bench.device
        )

    def paged_calls(
        self, point: Point, tables: list[torch.Tensor], query: torch.Tensor | None = None
    ) -> list[Callable[[], torch.Tensor]]:
        """Paged decode of the batch, one call per table."""
        lens = self.lens(point)
        query = self.queries(point) if query is None else query
        return [
            partial(
                ops.paged_decode, query, *self.caches(point.block_size), table, lens,
                scale=self.scale, layout="nhd",
                out=torch.empty_like(query), max_context=point.context,
            )
            for table in tables
        ]  # fmt: skip

    def contiguous_calls(
        self, point: Point, query: torch.Tensor | None = None
    ) -> list[Callable[[], torch.Tensor]]:
        """Contiguous decode of the batch, one call per repetition."""
        lens = self.lens(point)
        query = self.queries(point) if query is None else query
        return [
            partial(
                ops.contiguous_decode, query, self.pair[0], self.pair[1], starts, lens,
                scale=self.scale, out=torch.empty_like(query), max_context=point.context,
            )
            for starts in self.starts(point)
        ]  # fmt: skip

    def kv_bytes(self, point: Point) -> int:
        """Bytes of keys and values that the batch must read."""
        return point.batch * point.context * self.token_bytes

    def moved_bytes(self, point: Point) -> int:
        """Bytes that a paged decode moves: K, V, table, query, result, partial results."""
        query = point.batch * self.heads * self.head_dim * DTYPE.itemsize
        table = point.batch * point.blocks * 4
        return self.kv_bytes(point) + table + 2 * query + self._partial_bytes(point)

    def _partial_bytes(self, point: Point) -> int:
        """Float32 results and log-sum-exps of the chunks, written once and read once."""
        config = configs.decode_config(
            launches.settings_name(self.bench.device), self.head_dim, DTYPE.itemsize
        )
        chunks = -(-point.context // config.chunk)
        if chunks == 1:
            return 0
        return 2 * 4 * point.batch * self.heads * chunks * (self.head_dim + 1)


def _free_bytes(bench: Bench) -> int:
    if bench.device.type != "cuda":
        return bench.memory_bytes
    return int(torch.cuda.mem_get_info(bench.device)[0])
