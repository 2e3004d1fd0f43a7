"""Paged KV memory: block tables over one pool of equal blocks."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.accounting import Usage
from kvsim.core.block_pool import BlockPool
from kvsim.core.plan import Copy
from kvsim.core.request import Request, Sequence


class PagedAllocator:
    """Grows a block table as a sequence needs slots (SOSP'23; vLLM 0.33, vllm/SPEC.md section 3).

    There is no external fragmentation: any free block serves any sequence. What is empty is the
    rest of each sequence's last block.
    """

    reserves_ahead = False

    def __init__(self, num_blocks: int, block_size: int, *, null_block: bool = True) -> None:
        """`num_blocks` counts vLLM's null block unless `null_block` is false (SOSP'23)."""
        if block_size < 1:
            raise ValueError(f"block_size (={block_size}) must be >= 1 token")
        self.pool = BlockPool(num_blocks, null_block=null_block)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.capacity_slots = self.pool.num_usable * block_size
        self.usage = Usage()
        self.live_tokens: Callable[[Sequence], int] = lambda sequence: sequence.computed

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why the whole pool could not hold `final_kv_tokens` slots, or None."""
        need = -(-final_kv_tokens // self.block_size)
        if need <= self.pool.num_usable:
            return None
        return f"needs {need} blocks of {self.block_size}, the pool has {self.pool.num_usable}"

    def admit(self, sequence: Sequence, new_tokens: int, known_tokens: int, keep_free: int) -> bool:
        """Fill an empty table for `new_tokens`; refuse by the gate and the watermark.

        `known_tokens` is the full-sequence gate (`scheduler_reserve_full_isl`), 0 without it.
        """
        block_size = self.block_size
        gate = known_tokens if known_tokens > new_tokens else new_tokens
        if -(-gate // block_size) + keep_free > self.pool.num_free():
            return False
        self._extend(sequence, -(-new_tokens // block_size))
        return True

    def append(self, sequence: Sequence, computed: int, new_tokens: int) -> bool:
        """Extend the table to `computed + new_tokens` slots, or refuse."""
        missing = -(-(computed + new_tokens) // self.block_size) - len(sequence.table)
        if missing <= 0:
            return True
        if missing > self.pool.num_free():
            return False
        self._extend(sequence, missing)
        return True

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """One block for each sequence, in order. All or nothing."""
        pool = self.pool
        count = len(sequences)
        if count > pool.num_free():
            return False
        block_size = self.block_size
        never_filled = 0
        for sequence, block in zip(sequences, pool.take(count), strict=True):
            table = sequence.table
            table.append(block)
            tail = len(table) * block_size - sequence.final_tokens + 1
            if tail >= 0:
                never_filled += tail
        self.usage.allocated += count * block_size
        self.usage.internal_tail += never_filled
        return True

    def _extend(self, sequence: Sequence, count: int) -> None:
        table = sequence.table
        table.extend(self.pool.take(count))
        self.usage.allocated += count * self.block_size
        self.usage.internal_tail += self._never_filled(sequence)

    def _never_filled(self, sequence: Sequence) -> int:
        """Slots of a held last block that the final length leaves empty."""
        tail = len(sequence.table) * self.block_size - sequence.final_kv_tokens
        return tail if tail > 0 else 0

    def append_period(self) -> int:
        """A sequence that grows by single tokens needs a block every `block_size` tokens."""
        return self.block_size

    def free_count(self) -> int:
        """Blocks in the free queue."""
        return self.pool.num_free()

    def held_up(self, sequence: Sequence) -> bool:
        """Never: any free block serves any sequence."""
        return False

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether all known tokens of a waiting sequence fit the free blocks."""
        return -(-sequence.tokens // self.block_size) <= self.pool.num_free()

    def largest_free_extent(self) -> int:
        """All free slots: one table may hold any of them."""
        return self.pool.num_free() * self.block_size

    def release(self, sequence: Sequence) -> None:
        """Give the table back to the front of the free queue and empty it."""
        table = sequence.table
        if not table:
            return
        self.usage.internal_tail -= self._never_filled(sequence)
        self.usage.allocated -= self.pool.give_back(table) * self.block_size
        sequence.table = []

    def take_copies(self) -> list[Copy]:
        """None: tables never move."""
        return []

    def dump(self) -> dict[str, Any]:
        """Block size and the free queue's ids in pop order."""
        return {"block_size": self.block_size, "free": self.pool.free_ids()}

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Every block free or held as often as counted; usage equal to what the tables say."""
        tables = [sequence.table for sequence in sequences]
        self.pool.check_integrity(tables)
        held = len({block for table in tables for block in table}) * self.block_size
        assert held == self.usage.allocated, (
            f"slots in tables ({held}) != usage.allocated ({self.usage.allocated})"
        )
        tail = sum(self._never_filled(sequence) for sequence in sequences)
        assert tail == self.usage.internal_tail, (
            f"never filled tails ({tail}) != usage.internal_tail ({self.usage.internal_tail})"
        )
