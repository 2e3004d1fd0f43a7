"""Small KV blocks inside large physical pages: which pages a prefix cache keeps from being freed.

Where blocks of few tokens lie in physical pages of many (kvcached: 2 MiB), a page can go back to
the device only when no block in it is kept. A page exists once per tensor, and a block takes its
place in all of them, so one block that survives an eviction pins a whole page set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

EVICTION_ORDERS = ("lru", "page_aware")


class Freed(NamedTuple):
    """What an eviction gave back."""

    blocks: list[int]
    """Evicted blocks, in order."""
    page_sets: int
    """Page sets without any block left, which the device gets back."""


class PagePins:
    """The pages that hold `block_size`-token blocks of one model on one GPU.

    Block `i` lies in page set `i // blocks_per_page`, at the same place in every tensor.
    """

    def __init__(
        self, *, page_bytes: int, layers: int, blocks_per_page: int, tensors_per_layer: int = 2
    ) -> None:
        """`tensors_per_layer` is 2 for K and V. Raises `ValueError` for what is not positive."""
        sizes = {
            "page_bytes": page_bytes,
            "layers": layers,
            "blocks_per_page": blocks_per_page,
            "tensors_per_layer": tensors_per_layer,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} (={value}) must be >= 1")
        self.blocks_per_page = blocks_per_page
        self.page_set_bytes = layers * tensors_per_layer * page_bytes
        """Bytes that one kept block pins: a page in every tensor."""

    def pinned_page_sets(self, blocks: Iterable[int]) -> int:
        """Page sets with at least one of these blocks."""
        return len({block // self.blocks_per_page for block in blocks})

    def pinned_bytes(self, blocks: Iterable[int]) -> int:
        """Bytes of those page sets on one GPU."""
        return self.pinned_page_sets(blocks) * self.page_set_bytes

    def evict(
        self, last_used: Mapping[int, int], count: int, *, order: str, held: Iterable[int] = ()
    ) -> Freed:
        """Choose up to `count` cached blocks to give up; changes nothing.

        `last_used` maps each cached block that nobody holds to when it was used; `held` blocks
        stay, and so does their page. `lru` takes the least recently used first. `page_aware` takes
        page by page: those without a held block first, then those with fewer cached blocks, then
        those whose latest use is longest ago. Raises `ValueError` for another order and for a
        block that is both cached and held.
        """
        pinned = set(held)
        both = pinned & last_used.keys()
        if both:
            raise ValueError(f"block {min(both)} is both held and free to evict")
        if order == "lru":
            ranked = sorted(last_used, key=lambda block: (last_used[block], block))
        elif order == "page_aware":
            ranked = self._page_by_page(last_used, pinned)
        else:
            raise ValueError(f"order (={order!r}) must be one of {EVICTION_ORDERS}")
        evicted = ranked[: max(count, 0)]
        before = self.pinned_page_sets([*last_used, *pinned])
        after = self.pinned_page_sets([*(last_used.keys() - set(evicted)), *pinned])
        return Freed(evicted, before - after)

    def _page_by_page(self, last_used: Mapping[int, int], held: Iterable[int]) -> list[int]:
        size = self.blocks_per_page
        cached = Counter(block // size for block in last_used)
        stuck = {block // size for block in held}
        latest: dict[int, int] = {}
        for block, used in last_used.items():
            page = block // size
            latest[page] = max(used, latest.get(page, used))

        def rank(block: int) -> tuple[bool, int, int, int, int]:
            page = block // size
            return page in stuck, cached[page], latest[page], page, last_used[block]

        return sorted(last_used, key=rank)
