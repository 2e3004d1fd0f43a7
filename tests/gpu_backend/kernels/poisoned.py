"""Batches whose caches hold NaN wherever no visible token is, and table rubbish in between.

A kernel that reads one slot too many, or multiplies one by a weight of 0, returns NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

RUBBISH_BLOCK = 2**31 - 1
NAN = float("nan")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


@dataclass(frozen=True)
class Shape:
    """What the batches of a test have in common."""

    kv_heads: int = 2
    group: int = 2
    head_dim: int = 24
    block_size: int = 4
    layout: str = "nhd"
    dtype: torch.dtype = torch.float32
    window: int = 0
    soft_cap: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of attention without a block table."""
        scale = self.head_dim**-0.5
        return {"scale": scale, "window": self.window, "soft_cap": self.soft_cap}

    @property
    def paged_options(self) -> dict[str, Any]:
        return self.options | {"layout": self.layout}


@dataclass(frozen=True)
class Batch:
    """Arguments of paged and of contiguous attention over the same tokens."""

    shape: Shape
    query: torch.Tensor  # [tokens, heads, d]
    query_start: torch.Tensor
    context_lens: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    key: torch.Tensor  # [slots, kv_heads, d]
    value: torch.Tensor
    start_slots: torch.Tensor

    @property
    def paged(self) -> tuple[torch.Tensor, ...]:
        return (self.query, self.key_cache, self.value_cache, self.block_table)

    @property
    def contiguous(self) -> tuple[torch.Tensor, ...]:
        return (self.query, self.key, self.value, self.start_slots)

    @property
    def out(self) -> torch.Tensor:
        """Room for the result, all NaN."""
        return torch.full_like(self.query, NAN)


def batch(
    shape: Shape,
    contexts: Sequence[int],
    queries: Sequence[int] | None = None,
    *,
    seed: int = 0,
    rubbish: int = RUBBISH_BLOCK,
) -> Batch:
    """Sequences of `contexts` tokens, the last `queries` of each being asked (1 by default).

    `rubbish` fills the block table where no visible token is. Block 0 is always free: full of NaN,
    and what a masked entry of the table reads as.
    """
    queries = [1] * len(contexts) if queries is None else queries
    random = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    heads = shape.kv_heads * shape.group
    query = torch.randn(int(starts[-1]), heads, shape.head_dim, generator=random)

    need = [-(-context // shape.block_size) for context in contexts]
    ids = 1 + torch.randperm(sum(need) + 2, generator=random)
    table = torch.full((len(contexts), max(need, default=0) + 2), rubbish, dtype=torch.int32)
    cached = torch.full((2, len(ids) + 1, shape.block_size, shape.kv_heads, shape.head_dim), NAN)
    arena = torch.full((2, sum(contexts) + 8, shape.kv_heads, shape.head_dim), NAN)
    start_slots = torch.zeros(len(contexts), dtype=torch.int64)
    slot = 3
    for seq, (context, asked) in enumerate(zip(contexts, queries, strict=True)):
        first = max(0, context - asked - shape.window + 1) if shape.window else 0
        start_slots[seq] = slot
        tokens = torch.randn(2, context, shape.kv_heads, shape.head_dim, generator=random)
        arena[:, slot + first : slot + context] = tokens[:, first:]
        slot += context
        blocks, ids = ids[: need[seq]], ids[need[seq] :]
        visible = torch.arange(first // shape.block_size, need[seq])
        table[seq, visible] = blocks[visible].int()
        at = torch.arange(first, context)
        cached[:, blocks[at // shape.block_size], at % shape.block_size] = tokens[:, first:]
    if shape.layout == "hnd":
        cached = cached.transpose(2, 3)
    keys, values = cached.to(shape.dtype).contiguous()
    plain_keys, plain_values = arena.to(shape.dtype)
    lens = torch.tensor(contexts, dtype=torch.int32)
    return Batch(
        shape, query.to(shape.dtype), starts, lens,
        keys, values, table, plain_keys, plain_values, start_slots,
    )  # fmt: skip


def differs(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a result is off by more than its type's rounding; NaN always is."""
    bound = TOLERANCE[found.dtype]
    return not torch.allclose(found.double(), expected, rtol=bound, atol=bound / 4)


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Fails, with the largest error, where `differs`."""
    if differs(found, expected):
        error = (found.double() - expected).abs()
        raise AssertionError(f"largest error {float(error.max())}, NaN: {int(error.isnan().sum())}")
