"""Which block holds which content (vllm/SPEC.md sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from kvsim.core.eviction import EvictionOrder


class PrefixCache:
    """Content numbers (`streams.block_keys`) of full blocks, and the queue of the free ones.

    Equal blocks coexist: a look-up returns the one that got its content first.

    Private contents, which only their own sequence could ask for, are counted and not filed.
    """

    __slots__ = ("_blocks", "_key_of", "evicted", "free", "num_private")

    def __init__(self, order: EvictionOrder) -> None:
        self.free = order
        """Blocks nobody holds whose content can be found."""
        self.evicted = 0
        """Blocks that lost their content so far."""
        self.num_private = 0
        """Blocks, held or free, with a private content."""
        self._blocks: dict[int, int | list[int]] = {}
        self._key_of: dict[int, int] = {}

    def __contains__(self, block: object) -> bool:
        return block in self._key_of

    def num_keys(self) -> int:
        """Distinct contents."""
        return len(self._blocks) + self.num_private

    def find(self, key: int) -> int | None:
        """The block with this content, or None."""
        found = self._blocks.get(key)
        return found[0] if isinstance(found, list) else found

    def find_run(self, keys: Iterable[int]) -> list[int]:
        """Blocks of the leading contents that are all there."""
        blocks = self._blocks
        run: list[int] = []
        for key in keys:
            found = blocks.get(key)
            if found is None:
                break
            run.append(found[0] if isinstance(found, list) else found)
        return run

    def seal(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """The held `blocks` are full: from now on their contents can be found."""
        known = self._blocks
        if len(blocks) == 1:
            self._seal_one(blocks[0], keys[0])
        elif known.keys().isdisjoint(keys):
            known.update(zip(keys, blocks, strict=True))
            self._key_of.update(zip(blocks, keys, strict=True))
        else:
            for block, key in zip(blocks, keys, strict=True):
                self._seal_one(block, key)
        self.free.sealed(blocks, keys)

    def _seal_one(self, block: int, key: int) -> None:
        found = self._blocks.get(key)
        if found is None:
            self._blocks[key] = block
        elif isinstance(found, list):
            found.append(block)
        else:
            self._blocks[key] = [found, block]
        self._key_of[block] = key

    def evict(self, count: int) -> list[int]:
        """Take the next `count` free blocks; their contents are lost."""
        taken = self.free.pop(count)
        key_of, blocks = self._key_of, self._blocks
        self.evicted += count
        filed = [block for block in taken if block in key_of]
        self.num_private -= count - len(filed)
        for block in filed:
            key = key_of.pop(block)
            found = blocks.pop(key)
            if isinstance(found, list):
                found.remove(block)
                blocks[key] = found if len(found) > 1 else found[0]
        return taken

    def check_integrity(self) -> None:
        """Both directions agree; what is free without being filed is private."""
        listed = {
            block: key
            for key, found in self._blocks.items()
            for block in (found if isinstance(found, list) else [found])
        }
        assert listed == self._key_of, f"contents {listed} != blocks {self._key_of}"
        private = sum(block not in self._key_of for block in self.free.ids())
        assert private <= self.num_private, (
            f"{private} free blocks are not filed, but only {self.num_private} are private"
        )
