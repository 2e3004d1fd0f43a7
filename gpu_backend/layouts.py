"""How a cache is laid out: in blocks of a size, or in one extent per sequence."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.cost.profile import layout_key


class CacheLayout(NamedTuple):
    """One way of holding KV whose kernels have a speed of their own."""

    block_size: int | None
    """Tokens per block; None: contiguous extents, without a block table."""

    @property
    def name(self) -> str:
        """`paged-16` or `contiguous`, the keys of a profile."""
        return layout_key(self.block_size)

    @classmethod
    def named(cls, name: str) -> CacheLayout:
        """The layout of this name. ValueError for any other text."""
        kind, _, size = name.partition("-")
        if name == "contiguous":
            return cls(None)
        if kind == "paged" and size.isascii() and size.isdigit() and 1 <= int(size) <= 65536:
            return cls(int(size))
        raise ValueError(f"a layout is `contiguous` or `paged-<block size>`, got {name[:40]!r}")

    def allocator(self, slots: int, max_model_len: int) -> PagedAllocator | ContiguousAllocator:
        """Empty memory of at most so many token slots."""
        if self.block_size is None:
            return ContiguousAllocator(
                slots, 1, max_model_len=max_model_len, reserve="oracle", placement="first_fit"
            )
        return PagedAllocator(slots // self.block_size, self.block_size, null_block=False)
