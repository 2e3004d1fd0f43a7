"""Batches in which everything that must not be read is poisoned, and how wrong a result is.

NaN lies in free blocks, behind the last token of last blocks, before a window and around contiguous
sequences; unused entries of block tables hold 2^31 - 1. A kernel that reads one slot too many, or
multiplies one by a weight of 0, returns NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpu_backend import reference
from gpu_backend.bench.results import Row

RUBBISH_BLOCK = 2**31 - 1
NAN = float("nan")
FREE_BLOCKS = 2
# Of the mean of |v| under the same weights. Weights and results are each rounded once to the
# type (half a unit: 2^-11 and 2^-11 in float16), and half as much again is for everything else.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1.5 * 2.0**-10, torch.bfloat16: 1.5 * 2.0**-7}


@dataclass(frozen=True)
class Shape:
    """What the sequences of a batch have in common; `group` query heads per KV head."""

    kv_heads: int = 2
    group: int = 4
    head_dim: int = 128
    block_size: int = 16
    layout: str = "nhd"
    dtype: torch.dtype = torch.bfloat16
    window: int = 0
    soft_cap: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of contiguous attention."""
        scale = self.head_dim**-0.5
        return {"scale": scale, "window": self.window, "soft_cap": self.soft_cap}

    @property
    def paged_options(self) -> dict[str, Any]:
        """Keyword arguments of paged attention."""
        return self.options | {"layout": self.layout}


@dataclass(frozen=True)
class Batch:
    """The same tokens paged and contiguous.

    `query` [n, heads, d], `query_start` int32 [seqs + 1], `context_lens` int32 [seqs]; caches as
    `ops` wants them, in `cache` (key, value), with `block_table` int32 [seqs, max_blocks]; the
    arena [slots, kv_heads, d], in `arena` (key, value), with `start_slots` int64 [seqs].
    """

    shape: Shape
    query: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    cache: tuple[torch.Tensor, torch.Tensor]
    block_table: torch.Tensor
    arena: tuple[torch.Tensor, torch.Tensor]
    start_slots: torch.Tensor

    @property
    def out(self) -> torch.Tensor:
        """Room for the result, all NaN: what is not written shows."""
        return torch.full_like(self.query, NAN)

    @property
    def magnitude(self) -> Batch:
        """The same batch with |v| for v: its attention is what rounding errors are relative to."""
        return Batch(
            self.shape, self.query, self.query_start, self.context_lens,
            (self.cache[0], self.cache[1].abs()), self.block_table,
            (self.arena[0], self.arena[1].abs()), self.start_slots,
        )  # fmt: skip


def poisoned_batch(
    shape: Shape,
    contexts: Sequence[int],
    queries: Sequence[int] | None = None,
    *,
    device: torch.device,
    seed: int = 0,
) -> Batch:
    """Sequences of `contexts` tokens, the last `queries` of each being asked (1 by default).

    Block 0 is always free: full of NaN, and what a masked entry of the table reads as.
    """
    asked = [1] * len(contexts) if queries is None else list(queries)
    random = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *asked]).cumsum(0).int()
    heads = shape.kv_heads * shape.group
    query = torch.randn(int(starts[-1]), heads, shape.head_dim, generator=random)
    need = [-(-context // shape.block_size) for context in contexts]
    ids = 1 + torch.randperm(sum(need) + FREE_BLOCKS, generator=random)
    table = torch.full((len(contexts), max(need, default=0) + 2), RUBBISH_BLOCK, dtype=torch.int32)
    cache = torch.full((2, len(ids) + 1, shape.block_size, shape.kv_heads, shape.head_dim), NAN)
    arena = torch.full((2, sum(contexts) + 8, shape.kv_heads, shape.head_dim), NAN)
    start_slots = torch.zeros(len(contexts), dtype=torch.int64)
    slot = 3
    for seq, context in enumerate(contexts):
        first = max(0, context - asked[seq] - shape.window + 1) if shape.window else 0
        tokens = torch.randn(2, context, shape.kv_heads, shape.head_dim, generator=random)
        start_slots[seq] = slot
        arena[:, slot + first : slot + context] = tokens[:, first:]
        slot += context
        blocks, ids = ids[: need[seq]], ids[need[seq] :]
        visible = torch.arange(first // shape.block_size, need[seq])
        table[seq, visible] = blocks[visible].int()
        at = torch.arange(first, context)
        cache[:, blocks[at // shape.block_size], at % shape.block_size] = tokens[:, first:]
    if shape.layout == "hnd":
        cache = cache.transpose(2, 3)
    cached = cache.to(shape.dtype).contiguous().to(device)
    plain = arena.to(shape.dtype).to(device)
    return Batch(
        shape,
        query.to(shape.dtype).to(device),
        starts.to(device),
        torch.tensor(contexts, dtype=torch.int32, device=device),
        (cached[0], cached[1]),
        table.to(device),
        (plain[0], plain[1]),
        start_slots.to(device),
    )


def expected(batch: Batch, kind: str, *, paged: bool) -> torch.Tensor:
    """What `reference` says, float64 [n, heads, d]; `kind` is "decode" or "prefill"."""
    spans = (batch.context_lens,)
    ranges = (batch.query_start, *spans) if kind == "prefill" else spans
    function = getattr(reference, f"{'paged' if paged else 'contiguous'}_{kind}")
    if paged:
        place, options = batch.block_table, batch.shape.paged_options
        result = function(batch.query, *batch.cache, place, *ranges, **options)
    else:
        place, options = batch.start_slots, batch.shape.options
        result = function(batch.query, *batch.arena, place, *ranges, **options)
    return torch.as_tensor(result)


def judge(found: torch.Tensor, wanted: torch.Tensor, magnitude: torch.Tensor) -> Row:
    """A result against `wanted` (float64): the largest error, its bound, whether it is kept.

    Errors are relative to `magnitude`, element by element; where that is 0 the result must be.
    """
    tolerance = TOLERANCE[found.dtype]
    error = (found.double() - wanted).abs()
    relative = torch.where(error == 0, error, error / magnitude)
    nans = int(relative.isnan().sum())
    largest = NAN if nans else float(relative.max()) if relative.numel() else 0.0
    return {
        "max_error": largest,
        "tolerance": tolerance,
        "nan": nans,
        "correct": nans == 0 and largest <= tolerance,
    }
