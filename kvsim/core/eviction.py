"""In which order free blocks with known content are given up.

vLLM gives up the least recently used one (vllm/SPEC.md section 4); the others are for study.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Any, Protocol


class EvictionOrder(Protocol):
    """The free blocks whose content can be found, as a queue."""

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """The blocks (held, not in the queue) got a content."""

    def hit(self, blocks: Seq[int]) -> None:
        """The blocks, free or held, were found and are used once more."""

    def add(self, blocks: Iterable[int]) -> None:
        """Blocks become free, in this order."""

    def add_run(self, blocks: list[int]) -> None:
        """Blocks that nothing can ever find again become free, the last one first."""

    def reuse(self, block: int) -> None:
        """A block in the queue is held again: it leaves the queue."""

    def pop(self, count: int) -> list[int]:
        """Take out the next `count` blocks."""

    def __len__(self) -> int: ...

    def __contains__(self, block: object) -> bool: ...

    def ids(self) -> list[int]:
        """All blocks in eviction order."""


class LruOrder:
    """Least recently freed first. A run is one entry, cut from its end."""

    __slots__ = ("_count", "_next_run", "_queue")

    def __init__(self) -> None:
        self._queue: OrderedDict[int, list[int] | None] = OrderedDict()
        self._count = 0
        self._next_run = -1

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """Age does not count before a block is free."""

    def hit(self, blocks: Seq[int]) -> None:
        """A hit counts when the block is free again."""

    def add(self, blocks: Iterable[int]) -> None:
        """Append to the end."""
        queue = self._queue
        before = len(queue)
        queue.update(dict.fromkeys(blocks))
        self._count += len(queue) - before

    def add_run(self, blocks: list[int]) -> None:
        """Append the run under a number that is no block's."""
        self._queue[self._next_run] = blocks
        self._next_run -= 1
        self._count += len(blocks)

    def reuse(self, block: int) -> None:
        """Leave the queue."""
        del self._queue[block]
        self._count -= 1

    def pop(self, count: int) -> list[int]:
        """The oldest ones."""
        queue = self._queue
        taken: list[int] = []
        self._count -= count
        while len(taken) < count:
            entry, run = queue.popitem(last=False)
            if run is None:
                taken.append(entry)
                continue
            missing = count - len(taken)
            taken += run[: -missing - 1 : -1]
            if len(run) > missing:
                del run[len(run) - missing :]
                queue[entry] = run
                queue.move_to_end(entry, last=False)
        return taken

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: object) -> bool:
        return block in self._queue

    def ids(self) -> list[int]:
        """Oldest first."""
        ids: list[int] = []
        for entry, run in self._queue.items():
            ids += [entry] if run is None else run[::-1]
        return ids


class RankedOrder:
    """Smallest rank first, among equal ranks the one freed first.

    A rank that is asked for again when a block comes up may have grown since: then the block is
    filed again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, int]] = []
        self._stamp: dict[int, int] = {}
        self._next_stamp = 0

    def rank(self, block: int) -> Any:
        """What is compared."""
        raise NotImplementedError

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """The blocks got a content."""

    def hit(self, blocks: Seq[int]) -> None:
        """The blocks are used once more."""

    def add(self, blocks: Iterable[int]) -> None:
        """File the blocks by rank."""
        for block in blocks:
            stamp = self._next_stamp
            self._next_stamp = stamp + 1
            self._stamp[block] = stamp
            heapq.heappush(self._heap, (self.rank(block), stamp, block))
        if len(self._heap) > 2 * len(self._stamp) + 64:
            self._heap = [entry for entry in self._heap if self._stamp.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def add_run(self, blocks: list[int]) -> None:
        """One by one, like any other."""
        self.add(reversed(blocks))

    def reuse(self, block: int) -> None:
        """Leave the queue."""
        del self._stamp[block]

    def pop(self, count: int) -> list[int]:
        """Those of the smallest ranks."""
        popped: list[int] = []
        while len(popped) < count:
            rank, stamp, block = heapq.heappop(self._heap)
            if self._stamp.get(block) != stamp:
                continue
            current = self.rank(block)
            if current != rank:
                heapq.heappush(self._heap, (current, stamp, block))
                continue
            del self._stamp[block]
            popped.append(block)
        return popped

    def __len__(self) -> int:
        return len(self._stamp)

    def __contains__(self, block: object) -> bool:
        return block in self._stamp

    def ids(self) -> list[int]:
        """By current rank."""
        return [
            block
            for _, _, block in sorted(
                (self.rank(block), stamp, block) for block, stamp in self._stamp.items()
            )
        ]


class FifoOrder(RankedOrder):
    """Oldest content first, however often it was used since."""

    def __init__(self) -> None:
        super().__init__()
        self._sealed_at: dict[int, int] = {}
        self._clock = 0

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """A chain's later blocks count as older: a chain without its head is worth nothing."""
        self._clock += len(blocks)
        for index, block in enumerate(blocks):
            self._sealed_at[block] = self._clock - index

    def rank(self, block: int) -> int:
        """When the block got its content."""
        return self._sealed_at[block]


class LfuOrder(RankedOrder):
    """Fewest hits since the block got its content first."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[int, int] = {}

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """New content has no hits."""
        self._uses.update(dict.fromkeys(blocks, 0))

    def hit(self, blocks: Seq[int]) -> None:
        """One hit more for each."""
        for block in blocks:
            self._uses[block] += 1

    def rank(self, block: int) -> int:
        """Hits so far."""
        return self._uses[block]


class BeladyOrder(RankedOrder):
    """Content whose next use is farthest away first; needs to be told the future.

    Optimal for one request at a time (Belady 1966); with several in flight a strong reference.
    """

    def __init__(self, next_use: Callable[[int], int]) -> None:
        """`next_use` of a content number: when it is asked for next, later than all if never."""
        super().__init__()
        self._next_use = next_use
        self._key: dict[int, int] = {}

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """Remember the content."""
        self._key.update(zip(blocks, keys, strict=True))

    def rank(self, block: int) -> int:
        """Farthest next use first."""
        return -self._next_use(self._key[block])


class NextUses:
    """When each content is asked for next, as requests take their turn."""

    NEVER = 1 << 62
    """Later than any request."""

    def __init__(self, prompts: Iterable[Iterable[int]]) -> None:
        """`prompts` are the content numbers that each request asks for, in arrival order."""
        self._uses: dict[int, list[int]] = {}
        for ordinal, keys in enumerate(prompts):
            for key in keys:
                self._uses.setdefault(key, []).append(ordinal)
        for ordinals in self._uses.values():
            ordinals.reverse()

    def served(self, keys: Iterable[int]) -> None:
        """One request asked for these: its uses are no longer to come."""
        for key in keys:
            ordinals = self._uses.get(key)
            if ordinals:
                ordinals.pop()

    def __call__(self, key: int) -> int:
        """Ordinal of the next request that asks for `key`."""
        ordinals = self._uses.get(key)
        return ordinals[-1] if ordinals else self.NEVER


EVICTION_ORDERS: dict[str, Callable[[], EvictionOrder]] = {
    "lru": LruOrder,
    "fifo": FifoOrder,
    "lfu": LfuOrder,
}
"""Orders that need nothing else; `belady` is built from a workload, `page_aware` from a pool."""
