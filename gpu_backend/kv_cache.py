"""The tensors that hold cached keys and values: paged or contiguous, all layers of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Layout = Literal["nhd", "hnd"]
LAYOUTS: tuple[Layout, ...] = ("nhd", "hnd")


@dataclass(frozen=True)
class PagedShape:
    """Shape of a paged cache.

    `num_blocks` blocks of `block_size` token slots, per layer. `layout`: "nhd" is [num_blocks,
    block_size, kv_heads, head_dim], "hnd" [num_blocks, kv_heads, block_size, head_dim].
    """

    layers: int
    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    layout: Layout = "nhd"

    def __post_init__(self) -> None:
        _check_positive(self, "layers", "num_blocks", "block_size", "kv_heads", "head_dim")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is none of {', '.join(LAYOUTS)}")

    @property
    def tensor_shape(self) -> tuple[int, int, int, int]:
        """Shape of one layer's keys, and of its values."""
        slots, heads = self.block_size, self.kv_heads
        inner = (slots, heads) if self.layout == "nhd" else (heads, slots)
        return (self.num_blocks, *inner, self.head_dim)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: keys and values, all layers."""
        return self.block_size * _bytes_per_slot(self)

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.num_blocks * self.bytes_per_block


@dataclass(frozen=True)
class ArenaShape:
    """Shape of a contiguous cache: per layer [slots, kv_heads, head_dim], a sequence's in a row."""

    layers: int
    slots: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        _check_positive(self, "layers", "slots", "kv_heads", "head_dim")

    @property
    def tensor_shape(self) -> tuple[int, int, int]:
        """Shape of one layer's keys, and of its values."""
        return (self.slots, self.kv_heads, self.head_dim)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one token: keys and values, all layers."""
        return _bytes_per_slot(self)

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.slots * self.bytes_per_slot


@dataclass(frozen=True)
class KVCache:
    """Keys and values by layer, each tensor of the shape's `tensor_shape`."""

    shape: PagedShape | ArenaShape
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def allocate(shape: PagedShape | ArenaShape, device: torch.device | str = "cpu") -> KVCache:
    """Allocates a cache on `device`, not initialised: no kernel reads a slot before it is written.

    Raises torch's out-of-memory error when the device is short of `shape.total_bytes`.
    """
    pairs = [
        torch.empty((2, *shape.tensor_shape), dtype=shape.dtype, device=device)
        for _ in range(shape.layers)
    ]
    return KVCache(shape, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


def blocks_that_fit(budget_bytes: int, shape: PagedShape) -> int:
    """How many blocks of `shape` (its `num_blocks` aside) fit into `budget_bytes`."""
    return max(0, budget_bytes) // shape.bytes_per_block


def slots_of(blocks: Sequence[int], block_size: int, begin: int, end: int) -> torch.Tensor:
    """Slots of positions `begin` to `end` (exclusive) of a sequence: int64 [end - begin].

    `blocks` is the sequence's block table. Slot s is place s % block_size of block s // block_size.
    Raises ValueError when the blocks do not reach `end`.
    """
    if not 0 <= begin <= end <= len(blocks) * block_size:
        raise ValueError(f"positions {begin} to {end} are not within {len(blocks)} blocks")
    positions = torch.arange(begin, end, dtype=torch.int64)
    table = torch.as_tensor(blocks, dtype=torch.int64)
    return table[positions // block_size] * block_size + positions % block_size


def _bytes_per_slot(shape: PagedShape | ArenaShape) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * int(shape.dtype.itemsize)


def _check_positive(shape: PagedShape | ArenaShape, *names: str) -> None:
    for name in names:
        if getattr(shape, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(shape, name)}")
