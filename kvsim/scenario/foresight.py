"""Paged memory whose prefix cache knows which prompts are still to come."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.eviction import BeladyOrder, NextUses
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Hit
from kvsim.core.request import Request, Sequence


class ForesightAllocator(PagedAllocator):
    """Gives up the content that will be asked for last (Belady), first come first served.

    `expect` the requests before the first of them arrives.
    """

    def __init__(self, num_blocks: int, block_size: int, **settings: Any) -> None:
        """`settings` are those of `PagedAllocator`, but for the eviction order."""
        self._order = BeladyOrder(self._next_use)
        self._uses = NextUses(())
        super().__init__(num_blocks, block_size, eviction=self._order, **settings)

    def expect(self, requests: Iterable[Request], max_model_len: int) -> None:
        """The requests that will be admitted, in this order."""
        sequences = (Sequence(request, max_model_len) for request in requests)
        self._uses = NextUses(self._asked_for(sequence) for sequence in sequences)

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """As any paged memory; a first admission is one use less to come."""
        admitted = super().admit(sequence, hit, new_tokens, known_tokens, keep_free)
        if admitted and sequence.admissions == 0:
            self._served(self._asked_for(sequence))
        return admitted

    def _asked_for(self, sequence: Sequence) -> Seq[int]:
        """Contents of the blocks that a first look-up may find, if others can have them at all."""
        request = sequence.request
        if request.segments is None:
            return ()
        return self.keys(sequence, 0, (request.prompt_tokens - 1) // self.block_size)

    def _next_use(self, key: int) -> int:
        return self._uses(key)

    def _served(self, keys: Seq[int]) -> None:
        """Blocks that were not reached, because one before them is gone, are wanted later now."""
        assert self.cache is not None
        self._uses.served(keys)
        for key in reversed(keys):
            block = self.cache.find(key)
            if block is not None and block in self._order:
                self._order.reuse(block)
                self._order.add((block,))
