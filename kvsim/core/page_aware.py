"""Evicting cached blocks page by page, so that whole pages become free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from kvsim.core.page_pins import PageSets

Rank = tuple[bool, int, int, int]


class PageAwareOrder:
    """One page set after the other: first those without a held block, of these the one with the
    fewest cached blocks, then the one whose latest use is longest ago. Within it by latest use.

    The page set that was begun is finished first: its blocks are held again as soon as they are
    handed out, and beginning with another one each time would leave a held block in all of them.
    """

    def __init__(self, pages: PageSets) -> None:
        """`pages` is the account that the pool keeps; this order listens to it."""
        self._pages = pages
        self._used: dict[int, int] = {}
        """When each cached block was used last."""
        self._blocks: dict[int, dict[int, None]] = {}
        """Cached blocks of each page set that has some, least recently used first."""
        self._heap: list[Rank] = []
        self._begun: list[int] = []
        """Blocks of the page set that was begun, the next one last."""
        self._begun_at = 0
        self._clock = 0
        pages.let_go = self._file

    def sealed(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """Age does not count before a block is free."""

    def hit(self, blocks: Seq[int]) -> None:
        """A hit counts when the block is free again."""

    def add(self, blocks: Iterable[int]) -> None:
        """The blocks are used now, in this order."""
        size = self._pages.blocks_per_page
        for block in blocks:
            self._used[block] = self._clock
            self._clock += 1
            self._blocks.setdefault(block // size, {})[block] = None
            self._file(block // size)

    def add_run(self, blocks: list[int]) -> None:
        """One by one, like any other."""
        self.add(reversed(blocks))

    def reuse(self, block: int) -> None:
        """Leave the queue."""
        page = block // self._pages.blocks_per_page
        del self._used[block]
        blocks = self._blocks[page]
        del blocks[block]
        if not blocks:
            del self._blocks[page]
        self._file(page)

    def _rank(self, page: int) -> Rank:
        blocks = self._blocks[page]
        latest = self._used[next(reversed(blocks))]
        return self._pages.held[page] > 0, len(blocks), latest, page

    def _file(self, page: int) -> None:
        """The page set may have another rank now."""
        if page not in self._blocks:
            return
        heapq.heappush(self._heap, self._rank(page))
        if len(self._heap) > 4 * len(self._blocks) + 64:
            self._heap = [self._rank(page) for page in self._blocks]
            heapq.heapify(self._heap)

    def pop(self, count: int) -> list[int]:
        """The next blocks of the page set that was begun, then of others."""
        popped: list[int] = []
        while len(popped) < count:
            if not self._begun:
                self._begin()
            block = self._begun.pop()
            if self._is_left(block):
                popped.append(block)
                self.reuse(block)
        return popped

    def _begin(self) -> None:
        while True:
            rank = heapq.heappop(self._heap)
            page = rank[-1]
            if page in self._blocks:
                current = self._rank(page)
                if current == rank:
                    break
                heapq.heappush(self._heap, current)
        self._begun = list(reversed(self._blocks[page]))
        self._begun_at = self._clock

    def _is_left(self, block: int) -> bool:
        """Whether a block of the page set that was begun was not used since."""
        return self._used.get(block, self._begun_at) < self._begun_at

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, block: object) -> bool:
        return block in self._used

    def ids(self) -> list[int]:
        """As they would be popped if nothing happened in between."""
        begun = [block for block in reversed(self._begun) if self._is_left(block)]
        first = set(begun)
        left = {
            page: rest
            for page, blocks in self._blocks.items()
            if (rest := [block for block in blocks if block not in first])
        }
        order = sorted(
            (self._pages.held[page] > 0, len(rest), self._used[rest[-1]], page)
            for page, rest in left.items()
        )
        return begun + [block for *_, page in order for block in left[page]]
