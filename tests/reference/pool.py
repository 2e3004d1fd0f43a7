"""The blocks, their free queue and the prefix cache's dictionary (SPEC.md, sections 4 and 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Key = tuple[int, int]
"""The group that a cached block belongs to and the number of the tokens up to its end."""


@dataclass(eq=False)
class Block:
    """One block of the pool."""

    block_id: int
    users: int = 0
    key: Key | None = None

    @property
    def is_null(self) -> bool:
        """Block 0 stands in tables where there is no block."""
        return self.block_id == 0


class BlockPool:
    """All blocks of all groups."""

    def __init__(self, num_blocks: int) -> None:
        # section 3: block 0 is the null block; section 4: the queue starts in id order
        self.null = Block(0)
        self.free: deque[Block] = deque(Block(number) for number in range(1, num_blocks))
        self.cache: dict[Key, dict[int, Block]] = {}
        self.evicted = 0

    def take(self) -> Block:
        """Pop the front of the free queue; its hash is lost (section 4)."""
        block = self.free.popleft()
        if block.key is not None:
            self.forget(block)
            self.evicted += 1
        block.users = 1
        return block

    def forget(self, block: Block) -> None:
        """Take a block out of the prefix cache."""
        assert block.key is not None
        same = self.cache[block.key]
        del same[block.block_id]
        if not same:
            del self.cache[block.key]
        block.key = None

    def remember(self, block: Block, key: Key) -> None:
        """Put a full block into the cache; equal blocks coexist (section 5)."""
        assert block.key is None
        block.key = key
        self.cache.setdefault(key, {})[block.block_id] = block

    def find(self, key: Key) -> Block | None:
        """The oldest inserted block of a key (section 5)."""
        for block in self.cache.get(key, {}).values():
            return block
        return None

    def touch(self, block: Block) -> None:
        """One user more; a block without users leaves the free queue (section 3, step 4)."""
        if block.users == 0:
            self.free.remove(block)
        block.users += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """One user less each; un-hashed blocks to the front, hashed to the back (section 4)."""
        unused = []
        for block in blocks:
            block.users -= 1
            if block.users == 0:
                unused.append(block)
        self.free.extendleft(block for block in reversed(unused) if block.key is None)
        self.free.extend(block for block in unused if block.key is not None)
