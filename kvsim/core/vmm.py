"""Virtually contiguous KV memory: physical pages are mapped behind each sequence as it grows."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy
from kvsim.core.protocols import Hit
from kvsim.core.request import Request, Sequence
from kvsim.core.uncached import Uncached


class VmmAllocator(Uncached):
    """KV memory over the device's virtual memory (vAttention, arXiv 2405.04437; kvcached).

    A sequence has a range of virtual addresses in the K and the V tensor of every layer, which
    costs nothing, and gets physical pages as it grows: one page in each of those tensors at once,
    a *page set*, which holds `tokens_per_page` tokens. Kernels see contiguous memory and need no
    block table. Any free page serves any address, so there is no external fragmentation, and what
    is empty is the rest of each sequence's last page set: it decides as a paged memory whose block
    is a page set. `Sequence.table` lists the page sets in the order of their addresses.

    Mapping takes time. With `keep_mapped_pages` the pages of a sequence that ends stay mapped, and
    a later one takes over its range (deferred reclamation, vAttention's default): what is mapped
    there already costs nothing. As in vAttention's code, the range is the shortest that holds all
    known tokens (the longest where none does), and pages mapped beyond a sequence's need are free
    memory. They are mapped elsewhere when no unmapped page is left: here those of the range that
    was left first before others (vAttention goes by descending number of the range), and only as
    many as needed. vAttention's mapping ahead of need in the background is not modelled. Only how
    many page sets a range has is known: ids in a table do not say which were taken over.
    """

    reserves_ahead = False

    def __init__(
        self, num_page_sets: int, tokens_per_page: int, *, keep_mapped_pages: bool = True
    ) -> None:
        """All `num_page_sets` can be used; `tokens_per_page` is in tokens of one layer's K or V.

        Raises `ValueError` unless both are at least 1.
        """
        if tokens_per_page < 1:
            raise ValueError(f"tokens_per_page (={tokens_per_page}) must be >= 1 token")
        if num_page_sets < 1:
            raise ValueError(f"num_page_sets (={num_page_sets}) must be >= 1")
        self._paged = PagedAllocator(num_page_sets, tokens_per_page, null_block=False)
        self.pool = self._paged.pool
        self.num_blocks = num_page_sets
        self.block_size = tokens_per_page
        self.capacity_slots = self._paged.capacity_slots
        self.usage = self._paged.usage
        self.live_tokens: Callable[[Sequence], int] = lambda sequence: sequence.computed
        """Not read: nothing is ever moved."""
        self.keep_mapped_pages = keep_mapped_pages
        self._unmapped = num_page_sets
        """Free page sets that no range has."""
        self._kept: list[int] = []
        """Page sets of each range that a sequence left mapped, the latest last."""
        self._ahead: dict[Sequence, int] = {}
        """Page sets mapped behind the end of a sequence that took over a longer range."""
        self._mapped_in_step = 0
        self._mapped = 0
        self._reused = 0

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why all page sets could not hold `final_kv_tokens` tokens, or None."""
        need, have = -(-final_kv_tokens // self.block_size), self.num_blocks
        if need <= have:
            return None
        return (
            f"needs {need} page sets of {self.block_size} tokens, the memory has {have} "
            f"(at most {self.capacity_slots} tokens)"
        )

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """Take over a range that was left, if there is one, and map what `new_tokens` still need.

        Refuses, changing nothing, by the gate and the watermark, in page sets. Changes the free
        memory, `usage`, the counts of mappings and the sequence's table.
        """
        if not self._paged.admit(sequence, hit, new_tokens, known_tokens, keep_free):
            return False
        if self._kept:
            self._ahead[sequence] = self._take_over(-(-sequence.tokens // self.block_size))
        self._map(sequence, len(sequence.table))
        return True

    def _take_over(self, page_sets: int) -> int:
        """Remove the range that fits best from those left; how many page sets it has."""
        long_enough = [mapped for mapped in self._kept if mapped >= page_sets]
        mapped = min(long_enough) if long_enough else max(self._kept)
        self._kept.remove(mapped)
        return mapped

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Map the page sets that `computed + new_tokens` tokens lack, or refuse.

        Changes the free memory, `usage`, the counts of mappings and the sequence's table.
        """
        held = len(sequence.table)
        if not self._paged.append(sequence, computed, new_tokens, known, in_flight):
            return False
        grown = len(sequence.table) - held
        if grown:
            self._map(sequence, grown)
        return True

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """One page set for each sequence, in order. All or nothing."""
        if not self._paged.append_bulk(sequences):
            return False
        for sequence in sequences:
            self._map(sequence, 1)
        return True

    def _map(self, sequence: Sequence, count: int) -> None:
        """Count the mappings of `count` page sets that the pool just gave to the sequence."""
        ahead = self._ahead.get(sequence, 0)
        reused = min(ahead, count)
        if reused == ahead:
            self._ahead.pop(sequence, None)
        else:
            self._ahead[sequence] = ahead - reused
        missing = count - reused
        if missing > self._unmapped:
            self._reclaim(missing - self._unmapped)
        self._unmapped -= missing
        self._reused += reused
        self._mapped += missing
        self._mapped_in_step += missing

    def _reclaim(self, count: int) -> None:
        """Unmap `count` free page sets: of ranges nobody has, then of those too long for theirs."""
        self._unmapped += count
        while count and self._kept:
            taken = min(self._kept[0], count)
            count -= taken
            self._kept[0] -= taken
            if not self._kept[0]:
                del self._kept[0]
        while count:
            sequence, ahead = next(iter(self._ahead.items()))
            taken = min(ahead, count)
            count -= taken
            if ahead > taken:
                self._ahead[sequence] = ahead - taken
            else:
                del self._ahead[sequence]

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Free the sequence's page sets at once, mapped or not. Empties its table."""
        left = len(sequence.table) + self._ahead.pop(sequence, 0)
        self._paged.release(sequence, resumes=resumes)
        if self.keep_mapped_pages and left:
            self._kept.append(left)
        else:
            self._unmapped += left

    def take_mapped_pages(self) -> int:
        """Page sets mapped since the last call. Forgets them."""
        mapped = self._mapped_in_step
        self._mapped_in_step = 0
        return mapped

    def mapping_counts(self) -> dict[str, int]:
        """Page sets mapped since the start, and those that sequences found mapped."""
        return {"mapped_page_sets": self._mapped, "reused_page_sets": self._reused}

    def append_period(self) -> int | None:
        """A sequence that grows by single tokens needs a page set every `tokens_per_page`."""
        return self.block_size

    def free_count(self) -> int:
        """Page sets that no sequence fills, kept mapped or not."""
        return self._paged.free_count()

    def held_up(self, sequence: Sequence) -> bool:
        """Never: any free page can be mapped at any address."""
        return False

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether all known tokens of a waiting sequence fit the free page sets."""
        return self._paged.fits_sum(sequence)

    def largest_free_extent(self) -> int:
        """All free slots: one range may be backed by any of them."""
        return self._paged.largest_free_extent()

    def take_copies(self) -> list[Copy]:
        """None: nothing moves."""
        return []

    def dump(self) -> dict[str, Any]:
        """As a paged memory, and the free page sets by what is mapped."""
        return {
            **self._paged.dump(),
            "unmapped": self._unmapped,
            "kept": list(self._kept),
            "ahead": sum(self._ahead.values()),
        }

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """As a paged memory; and every free page set is unmapped, kept or ahead of a sequence."""
        self._paged.check_integrity(sequences)
        kept, ahead, free = sum(self._kept), sum(self._ahead.values()), self.free_count()
        assert self._unmapped + kept + ahead == free, (
            f"unmapped ({self._unmapped}) + kept ({kept}) + ahead ({ahead}) != free ({free})"
        )
        sizes = [self._unmapped + 1, *self._kept, *self._ahead.values()]
        assert min(sizes) > 0, f"no range may have {min(sizes)} page sets"
        strangers = self._ahead.keys() - set(sequences)
        assert not strangers, f"{strangers} have mapped pages and are not among the sequences"
