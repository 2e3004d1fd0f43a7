"""Block ids, reference counts and the free queue of a paged KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

from kvsim.core.prefix_cache import PrefixCache


class BlockPool:
    """All blocks of one pool; free ones in the order in which vLLM 0.33 would hand them out.

    The free queue (`core/block_pool.py` of vLLM, vllm/SPEC.md section 4) is a stack of blocks
    without content, whose *end* is the queue's front, followed by the eviction queue of the prefix
    cache, where there is one. Blocks of a freed sequence are freed from its last to its first:
    those without content go to the front, so that the last is reused first, the others to the
    back, so that the tail of a chain is evicted before its head.

    A block is held by one table unless `hold` says otherwise, so only further holders are
    counted: an unshared block costs nothing.
    """

    __slots__ = ("_extra_holders", "_free", "cache", "first_id", "num_blocks", "num_extra_holders")

    def __init__(
        self, num_blocks: int, *, null_block: bool, cache: PrefixCache | None = None
    ) -> None:
        """`num_blocks` counts the null block (id 0, never handed out) where there is one."""
        self.num_blocks = num_blocks
        self.first_id = 1 if null_block else 0
        if num_blocks <= self.first_id:
            raise ValueError(
                f"num_blocks (={num_blocks}) must be > {self.first_id}: no block is left to use"
            )
        self.cache = cache
        self._free = list(range(num_blocks - 1, self.first_id - 1, -1))
        self._extra_holders: dict[int, int] = {}
        self.num_extra_holders = 0
        """Table entries beyond the first of each block."""

    @property
    def num_usable(self) -> int:
        """Blocks that tables can hold."""
        return self.num_blocks - self.first_id

    @property
    def extra_holders(self) -> Mapping[int, int]:
        """Tables beyond the first that hold a block, for blocks that several hold."""
        return self._extra_holders

    def num_free(self) -> int:
        """Blocks that nobody holds, those with content included."""
        if self.cache is None:
            return len(self._free)
        return len(self._free) + len(self.cache.free)

    def num_cached_free(self) -> int:
        """Those among them whose content can be found."""
        return 0 if self.cache is None else len(self.cache.free)

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the front of the free queue, in order; contents are lost.

        The caller has checked `num_free()`.
        """
        free = self._free
        if count <= len(free):
            taken = free[: -count - 1 : -1]
            del free[len(free) - count :]
            return taken
        taken = free[::-1]
        free.clear()
        if self.cache is not None:
            taken += self.cache.evict(count - len(taken))
        return taken

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks with content nobody holds."""
        if self.cache is None or not len(self.cache.free):
            return 0
        return sum(map(self.cache.free.__contains__, blocks))

    def hold(self, blocks: Iterable[int]) -> int:
        """Add one holder to each block, held or free with content; return how many were free."""
        extra = self._extra_holders
        revived = further = 0
        if self.cache is None:
            for block in blocks:
                extra[block] = extra.get(block, 0) + 1
                further += 1
            self.num_extra_holders += further
            return 0
        free = self.cache.free
        for block in blocks:
            if block in free:
                free.reuse(block)
                revived += 1
            else:
                extra[block] = extra.get(block, 0) + 1
                further += 1
        self.num_extra_holders += further
        return revived

    def give_back(
        self, table: list[int], num_sealed: int = 0, first_private: int | None = None
    ) -> int:
        """Drop one holder of each block of `table`; return how many became free.

        The first `num_sealed` blocks have a content, the others have none; those from
        `first_private` on are private, so that nobody else holds them.
        """
        if not num_sealed:
            plain = self._without_shared(table) if self._extra_holders else table
            self._free.extend(plain)
            return len(plain)
        plain, sealed = table[num_sealed:], table[:num_sealed]
        if first_private is not None and self.cache is not None and num_sealed > first_private:
            self.cache.free.add_run(sealed[first_private:])
            self._free.extend(plain)
            return (
                len(table) - first_private + self.give_back(sealed[:first_private], first_private)
            )
        if self._extra_holders:
            plain, sealed = self._without_shared(plain), self._without_shared(sealed)
        self._free.extend(plain)
        if sealed and self.cache is not None:
            self.cache.free.add(reversed(sealed))
        return len(plain) + len(sealed)

    def leave(self, block: int) -> None:
        """Drop one holder of a block that others hold too: as `give_back`, for this case alone."""
        shared = self._drop_extra_holder(block)
        assert shared, f"nobody else holds block {block}"

    def _without_shared(self, blocks: list[int]) -> list[int]:
        """Drop one holder of each; return those that nobody else holds."""
        extra = self._extra_holders
        return [b for b in blocks if b not in extra or not self._drop_extra_holder(b)]

    def _drop_extra_holder(self, block: int) -> bool:
        extra = self._extra_holders
        holders = extra.get(block)
        if holders is None:
            return False
        if holders == 1:
            del extra[block]
        else:
            extra[block] = holders - 1
        self.num_extra_holders -= 1
        return True

    def ref_cnt(self, block: int) -> int:
        """Tables that hold `block`. Walks the free queue: for tests and reports."""
        if block in self.free_ids():
            return 0
        return 1 + self._extra_holders.get(block, 0)

    def free_ids(self) -> list[int]:
        """The free queue in pop order."""
        return self._free[::-1] + ([] if self.cache is None else self.cache.free.ids())

    def check_integrity(self, tables: Iterable[Seq[int]]) -> None:
        """Every block is free or held, never both; holders equal table entries, block by block."""
        held = Counter(block for table in tables for block in table)
        owned = bytearray(self.num_blocks)
        free = self.free_ids()
        for block in free:
            assert block >= self.first_id, f"block {block} is not usable, but in the free queue"
            assert not owned[block], f"free queue holds block {block} twice"
            owned[block] = 1
        for block in held:
            assert self.first_id <= block < self.num_blocks, f"a table holds unknown block {block}"
            assert not owned[block], f"block {block} is both free and held"
            owned[block] = 1
        lost = self.num_usable - sum(owned)
        assert lost == 0, (
            f"free ({len(free)}) + held ({len(held)}) != usable ({self.num_usable}): "
            f"lost block {owned.index(0, self.first_id)}"
        )
        extra = {block: count - 1 for block, count in held.items() if count > 1}
        assert extra == self._extra_holders, (
            f"table entries beyond the first {extra} != reference counts {self._extra_holders}"
        )
        counted, further = self.num_extra_holders, sum(extra.values())
        assert counted == further, f"num_extra_holders {counted} != table entries {further}"
        if self.cache is not None:
            self.cache.check_integrity()
            named = [block for block in self._free if block in self.cache]
            assert not named, f"free blocks {named} have a content, but are not in its queue"
