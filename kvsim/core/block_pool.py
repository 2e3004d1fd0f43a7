"""Block ids, reference counts and the free queue of a paged KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class BlockPool:
    """All blocks of one pool; free ones in the order in which vLLM 0.33 would hand them out.

    The free queue is kept as a stack whose *end* is the queue's front (`core/block_pool.py` of
    vLLM, vllm/SPEC.md section 4): blocks of a freed sequence go to the front in reverse table
    order, so that its last block is reused first.

    A block is held by one table unless `share` says otherwise, so only further holders are
    counted: an unshared block costs nothing.
    """

    __slots__ = ("_extra_holders", "_free", "first_id", "num_blocks")

    def __init__(self, num_blocks: int, *, null_block: bool) -> None:
        """`num_blocks` counts the null block (id 0, never handed out) where there is one."""
        self.num_blocks = num_blocks
        self.first_id = 1 if null_block else 0
        if num_blocks <= self.first_id:
            raise ValueError(
                f"num_blocks (={num_blocks}) must be > {self.first_id}: no block is left to use"
            )
        self._free = list(range(num_blocks - 1, self.first_id - 1, -1))
        self._extra_holders: dict[int, int] = {}

    @property
    def num_usable(self) -> int:
        """Blocks that tables can hold."""
        return self.num_blocks - self.first_id

    def num_free(self) -> int:
        """Blocks in the free queue."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the front of the free queue, in order.

        The caller has checked `num_free()`.
        """
        free = self._free
        taken = free[: -count - 1 : -1]
        del free[len(free) - count :]
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one holder to each block. They must be held already."""
        extra = self._extra_holders
        for block in blocks:
            extra[block] = extra.get(block, 0) + 1

    def give_back(self, table: list[int]) -> int:
        """Drop one holder of each block of `table`; return how many blocks became free."""
        if not self._extra_holders:
            self._free.extend(table)
            return len(table)
        freed = [block for block in table if not self._drop_extra_holder(block)]
        self._free.extend(freed)
        return len(freed)

    def _drop_extra_holder(self, block: int) -> bool:
        extra = self._extra_holders
        holders = extra.get(block)
        if holders is None:
            return False
        if holders == 1:
            del extra[block]
        else:
            extra[block] = holders - 1
        return True

    def ref_cnt(self, block: int) -> int:
        """Tables that hold `block`. Walks the free queue: for tests and reports."""
        if block in self._free:
            return 0
        return 1 + self._extra_holders.get(block, 0)

    def free_ids(self) -> list[int]:
        """The free queue in pop order."""
        return self._free[::-1]

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Every block is free or held, never both; holders equal table entries, block by block."""
        held = Counter(block for table in tables for block in table)
        owned = bytearray(self.num_blocks)
        for block in self._free:
            assert block >= self.first_id, f"block {block} is not usable, but in the free queue"
            assert not owned[block], f"free queue holds block {block} twice"
            owned[block] = 1
        for block in held:
            assert self.first_id <= block < self.num_blocks, f"a table holds unknown block {block}"
            assert not owned[block], f"block {block} is both free and held"
            owned[block] = 1
        lost = self.num_usable - sum(owned)
        assert lost == 0, (
            f"free ({len(self._free)}) + held ({len(held)}) != usable ({self.num_usable}): "
            f"lost block {owned.index(0, self.first_id)}"
        )
        extra = {block: count - 1 for block, count in held.items() if count > 1}
        assert extra == self._extra_holders, (
            f"table entries beyond the first {extra} != reference counts {self._extra_holders}"
        )
