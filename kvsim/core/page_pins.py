"""Small KV blocks inside large physical pages: which pages cannot be given back.

Where blocks of few tokens lie in physical pages of many (kvcached: 2 MiB), a page can go back to
the device only when no block in it is held or cached. A page exists once per tensor, and a block
takes its place in all of them, so one block pins a whole page set: a page in every tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from kvsim.core.block_pool import BlockPool
from kvsim.core.prefix_cache import PrefixCache


class PageSets:
    """Held and cached blocks of each page set; block `i` lies in page set `i // blocks_per_page`.

    A block is held (by tables), cached (held by nobody, its content can be found) or empty.
    """

    def __init__(self, num_blocks: int, blocks_per_page: int) -> None:
        """All blocks start empty. Raises `ValueError` unless both are at least 1."""
        for name, value in (("num_blocks", num_blocks), ("blocks_per_page", blocks_per_page)):
            if value < 1:
                raise ValueError(f"{name} (={value}) must be >= 1")
        self.blocks_per_page = blocks_per_page
        self.num_page_sets = -(-num_blocks // blocks_per_page)
        self.held = [0] * self.num_page_sets
        """Held blocks of each page set."""
        self.cached = [0] * self.num_page_sets
        """Cached blocks of each page set."""
        self.pinned_by_held = 0
        """Page sets with a held block."""
        self.pinned_by_cached = 0
        """Page sets with cached blocks and no held one."""
        self.kept_blocks = 0
        """Blocks that are held or cached."""
        self.let_go: Callable[[int], None] | None = None
        """Told of every page set that loses its last held block."""

    @property
    def pinned(self) -> int:
        """Page sets that cannot be given back."""
        return self.pinned_by_held + self.pinned_by_cached

    def hold(self, blocks: Iterable[int], *, cached: bool) -> None:
        """Blocks that were cached (otherwise empty) are held now."""
        for block in blocks:
            page = block // self.blocks_per_page
            if not self.held[page]:
                self.pinned_by_held += 1
                self.pinned_by_cached -= self.cached[page] > 0
            self.held[page] += 1
            if cached:
                self.cached[page] -= 1
            else:
                self.kept_blocks += 1

    def free(self, blocks: Iterable[int], *, cached: bool) -> None:
        """Held blocks are held by nobody now: cached, or empty."""
        for block in blocks:
            page = block // self.blocks_per_page
            self.held[page] -= 1
            if cached:
                self.cached[page] += 1
            else:
                self.kept_blocks -= 1
            if not self.held[page]:
                self.pinned_by_held -= 1
                self.pinned_by_cached += self.cached[page] > 0
                if self.let_go is not None:
                    self.let_go(page)

    def freed_by(self, evicted: Iterable[int]) -> int:
        """Page sets that could be given back if these cached blocks were evicted."""
        lost = Counter(block // self.blocks_per_page for block in evicted)
        return sum(not self.held[page] and lost[page] == self.cached[page] for page in lost)


class PinningPool(BlockPool):
    """A pool that keeps the account of its page sets, block by block: no runs of private ones."""

    __slots__ = ("pages",)

    def __init__(
        self, num_blocks: int, *, null_block: bool, cache: PrefixCache | None, pages: PageSets
    ) -> None:
        """`pages` are of as many blocks, all empty."""
        super().__init__(num_blocks, null_block=null_block, cache=cache)
        self.pages = pages

    def take(self, count: int) -> list[int]:
        """Pop `count` blocks from the front of the free queue, in order; contents are lost."""
        empty = min(count, len(self._free))
        taken = super().take(count)
        self.pages.hold(taken[:empty], cached=False)
        self.pages.hold(taken[empty:], cached=True)
        return taken

    def hold(self, blocks: Iterable[int]) -> int:
        """Add one holder to each block, held or free with content; return how many were free."""
        blocks = list(blocks)
        cache = self.cache
        revived = [] if cache is None else [block for block in blocks if block in cache.free]
        self.pages.hold(revived, cached=True)
        return super().hold(blocks)

    def give_back(
        self, table: list[int], num_sealed: int = 0, first_private: int | None = None
    ) -> int:
        """Drop one holder of each block of `table`; return how many became free."""
        extra = self._extra_holders
        self.pages.free([b for b in table[:num_sealed] if b not in extra], cached=True)
        self.pages.free([b for b in table[num_sealed:] if b not in extra], cached=False)
        return super().give_back(table, num_sealed, None)

    def check_integrity(self, tables: Iterable[Seq[int]]) -> None:
        """As any pool; and the account of the page sets is what the tables say."""
        tables = list(tables)
        super().check_integrity(tables)
        size, pages = self.pages.blocks_per_page, self.pages
        held = {block for table in tables for block in table}
        cached = set() if self.cache is None else set(self.cache.free.ids())
        for name, blocks, counted in (
            ("held", held, pages.held),
            ("cached", cached, pages.cached),
        ):
            by_page = Counter(block // size for block in blocks)
            expected = [by_page[page] for page in range(pages.num_page_sets)]
            assert counted == expected, f"{name} blocks by page set {counted} != {expected}"
        by_held = len({block // size for block in held})
        pinned = len({block // size for block in held | cached})
        assert (pages.pinned_by_held, pages.pinned) == (by_held, pinned), (
            f"pinned page sets {pages.pinned_by_held} by held blocks, {pages.pinned} in all !="
            f" {by_held}, {pinned}"
        )
        kept = len(held) + len(cached)
        assert pages.kept_blocks == kept, f"kept blocks {pages.kept_blocks} != {kept}"
