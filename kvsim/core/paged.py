"""Paged KV memory: block tables over one pool of equal blocks, one full-attention layer group."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.accounting import Usage
from kvsim.core.block_pool import BlockPool
from kvsim.core.eviction import EvictionOrder, LruOrder
from kvsim.core.hit_ledger import HitLedger
from kvsim.core.page_pins import PageSets, PinningPool
from kvsim.core.plan import Copy
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.protocols import NO_HIT, Hit
from kvsim.core.request import Request, Sequence
from kvsim.core.streams import StreamTree, block_keys

NEVER_PRIVATE = 1 << 62


class PagedAllocator:
    """Grows a block table as a sequence needs slots (SOSP'23; vLLM 0.33, vllm/SPEC.md section 3).

    There is no external fragmentation: any free block serves any sequence. What is empty is the
    rest of each sequence's last block.

    With a prefix cache (section 5) a full block's content can be found again, while it is held and
    after it is free, until its block is handed out for something else.
    """

    reserves_ahead = False

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        null_block: bool = True,
        eviction: EvictionOrder | None = None,
        streams: StreamTree | None = None,
        hash_lookahead: int = 0,
        lookahead_tokens: int = 0,
        seals_ahead: bool = True,
        pages: PageSets | None = None,
    ) -> None:
        """`num_blocks` counts vLLM's null block unless `null_block` is false (SOSP'23).

        `eviction` switches the prefix cache on; `streams` numbers contents (share it with whoever
        computes the same numbers). `hash_lookahead` more tokens belong to a block's content
        (EAGLE: 1) and `lookahead_tokens` slots are kept beyond the scheduled ones (drafts).
        `seals_ahead` is false under asynchronous scheduling: the token that fills a block is not
        known in the step that computes it. `pages` accounts for the physical pages of the blocks.
        """
        if block_size < 1:
            raise ValueError(f"block_size (={block_size}) must be >= 1 token")
        self.cache = None if eviction is None else self._new_cache(eviction)
        self.pool = (
            BlockPool(num_blocks, null_block=null_block, cache=self.cache)
            if pages is None
            else PinningPool(num_blocks, null_block=null_block, cache=self.cache, pages=pages)
        )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.capacity_slots = self.pool.num_usable * block_size
        self.seals_ahead = seals_ahead and eviction is not None
        self.usage = Usage()
        self.live_tokens: Callable[[Sequence], int] = lambda sequence: sequence.computed
        self.ledger = (
            None if eviction is None else HitLedger(block_size, hash_lookahead=hash_lookahead)
        )
        self._streams = streams or StreamTree()
        self._files_private = eviction is not None and not isinstance(eviction, LruOrder)
        self._hash_lookahead = hash_lookahead
        self._lookahead_tokens = lookahead_tokens

    def _new_cache(self, eviction: EvictionOrder) -> PrefixCache:
        return PrefixCache(eviction)

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why the whole pool could not hold `final_kv_tokens` slots, or None."""
        need = -(-final_kv_tokens // self.block_size)
        if need <= self.pool.num_usable:
            return None
        return (
            f"needs {need} blocks of {self.block_size}, the pool has {self.pool.num_usable} "
            f"(at most {self.capacity_slots} tokens)"
        )

    def lookup(self, sequence: Sequence) -> Hit:
        """The longest run of cached blocks from the first on.

        The last known token is always computed, so a fully cached prompt of whole blocks computes
        its last block again.
        """
        if self.cache is None:
            return NO_HIT
        limit = (sequence.tokens - 1) // self.block_size
        blocks = self.cache.find_run(self.keys(sequence, 0, limit))
        if not blocks:
            return NO_HIT
        return Hit(len(blocks) * self.block_size, blocks, self.pool.count_free(blocks))

    def keys(self, sequence: Sequence, first: int, stop: int) -> Seq[int]:
        """Content numbers of the logical blocks `first` to `stop` (excluded)."""
        if not sequence.piece_ends:
            self._open(sequence)
        return block_keys(sequence, first, stop, self.block_size, lookahead=self._hash_lookahead)

    def _open(self, sequence: Sequence) -> None:
        """Number the sequence's content, and find from which block on nobody shares it."""
        self._streams.open(sequence)
        request = sequence.request
        if self._files_private:
            sequence.first_private = NEVER_PRIVATE
        elif request.segments is None:
            sequence.first_private = 0
        elif request.output_stream is not None:
            sequence.first_private = NEVER_PRIVATE
        else:
            shareable = max(request.prompt_tokens - self._hash_lookahead, 0)
            sequence.first_private = shareable // self.block_size

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """Fill an empty table; refuse by the gate and the watermark.

        `known_tokens` is the full-sequence gate (`scheduler_reserve_full_isl`), 0 without it.
        """
        block_size = self.block_size
        end = hit.tokens + new_tokens
        slots = self._with_lookahead(sequence, end) if self._lookahead_tokens else end
        gate = known_tokens if known_tokens > slots else slots
        taken_by_hit = hit.free_blocks - len(hit.blocks)
        if -(-gate // block_size) + taken_by_hit + keep_free > self.pool.num_free():
            return False
        if self.ledger is not None:
            self.ledger.admitted(sequence, hit.tokens)
        if hit.blocks:
            self._use_hit(sequence, hit)
        self._extend(sequence, -(-slots // block_size) - len(hit.blocks))
        if self.cache is not None:
            self._computed(sequence, end, sequence.tokens)
        return True

    def _use_hit(self, sequence: Sequence, hit: Hit) -> None:
        revived = self.pool.hold(hit.blocks)
        if self.cache is not None:
            self.cache.free.hit(hit.blocks)
        sequence.table.extend(hit.blocks)
        sequence.sealed = len(hit.blocks)
        usage = self.usage
        usage.allocated += revived * self.block_size
        usage.shared += (len(hit.blocks) - revived) * self.block_size
        usage.cached = self.pool.num_cached_free() * self.block_size

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Extend the table to `computed + new_tokens` slots, or refuse."""
        end = computed + new_tokens
        slots = self._with_lookahead(sequence, end) if self._lookahead_tokens else end
        missing = -(-slots // self.block_size) - len(sequence.table)
        if missing > 0:
            if missing > self.pool.num_free():
                return False
            self._extend(sequence, missing)
        if self.cache is not None:
            self._computed(sequence, end, known)
        return True

    def _computed(self, sequence: Sequence, end: int, known: int) -> None:
        if self.ledger is not None:
            upto = end if end < known else known
            self.seal(sequence, upto)
            self.ledger.computed(sequence, upto)

    def _with_lookahead(self, sequence: Sequence, end: int) -> int:
        return min(end + self._lookahead_tokens, sequence.max_model_len)

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """One block for each sequence, in order. All or nothing."""
        pool = self.pool
        count = len(sequences)
        if count > pool.num_free():
            return False
        block_size = self.block_size
        never_filled = 0
        for sequence, block in zip(sequences, pool.take(count), strict=True):
            table = sequence.table
            table.append(block)
            tail = len(table) * block_size - sequence.final_tokens + 1
            if tail >= 0:
                never_filled += tail
        usage = self.usage
        usage.allocated += count * block_size
        usage.internal_tail += never_filled
        if self.cache is not None:
            usage.cached = pool.num_cached_free() * block_size
            if not self.seals_ahead:
                self.seal_bulk([s for s in sequences if s.sealed < len(s.table) - 1])
        return True

    def seal(self, sequence: Sequence, upto: int) -> None:
        """Give the full blocks within the first `upto` tokens their content."""
        cache = self.cache
        if cache is None:
            return
        stop = upto // self.block_size
        if self._hash_lookahead:
            stop = min(stop, (sequence.tokens - self._hash_lookahead) // self.block_size)
        first = sequence.sealed
        if stop <= first:
            return
        sequence.sealed = stop
        private = sequence.first_private
        if first < private:
            named = stop if stop < private else private
            cache.seal(sequence.table[first:named], self.keys(sequence, first, named))
            first = named
        cache.num_private += stop - first

    def seal_bulk(self, sequences: Seq[Sequence]) -> None:
        """Each sequence's first block without a content gets one: it lies behind the prompt."""
        cache, ledger = self.cache, self.ledger
        if cache is None or ledger is None:
            return
        for sequence in sequences:
            first = sequence.sealed
            sequence.sealed = first + 1
            if first >= sequence.first_private:
                cache.num_private += 1
            else:
                ledger.computed(sequence, (first + 1) * self.block_size)
                cache.seal((sequence.table[first],), (sequence.piece_bases[-1] + first,))

    def _extend(self, sequence: Sequence, count: int) -> None:
        table = sequence.table
        table.extend(self.pool.take(count))
        usage = self.usage
        slots = count * self.block_size
        usage.allocated += slots
        usage.internal_tail += min(self._never_filled(sequence), slots)
        if self.cache is not None:
            usage.cached = self.pool.num_cached_free() * self.block_size

    def _never_filled(self, sequence: Sequence) -> int:
        """Slots of a held last block that the final length leaves empty."""
        tail = len(sequence.table) * self.block_size - sequence.final_tokens + 1
        return tail if tail > 0 else 0

    def append_period(self) -> int | None:
        """A sequence that grows by single tokens needs a block every `block_size` tokens."""
        return self.block_size

    def horizon(self, sequence: Sequence, computed: int) -> int:
        """Tokens to the next block boundary."""
        return -computed % self.block_size

    def free_count(self) -> int:
        """Blocks in the free queue."""
        return self.pool.num_free()

    def held_up(self, sequence: Sequence) -> bool:
        """Never: any free block serves any sequence."""
        return False

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether all known tokens of a waiting sequence fit the free blocks."""
        need = -(-sequence.tokens // self.block_size)
        free = self.pool.num_free()
        if need <= free or self.cache is None:
            return need <= free
        hit = self.lookup(sequence)
        return need - len(hit.blocks) + hit.free_blocks <= free

    def largest_free_extent(self) -> int:
        """All free slots: one table may hold any of them."""
        return self.pool.num_free() * self.block_size

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Give the table back and empty it: blocks with content stay findable."""
        table = sequence.table
        if not table:
            return
        usage, pool = self.usage, self.pool
        usage.internal_tail -= self._never_filled(sequence)
        if resumes and self.cache is not None:
            self._file_private(sequence)
        freed = pool.give_back(table, sequence.sealed, sequence.first_private)
        usage.allocated -= freed * self.block_size
        if self.ledger is not None:
            self.ledger.computed(sequence, sequence.computed)
            usage.shared -= (len(table) - freed) * self.block_size
            usage.cached = pool.num_cached_free() * self.block_size
        sequence.table = []
        sequence.sealed = 0

    def _file_private(self, sequence: Sequence) -> None:
        """The sequence will look for its own content: from now on that is filed like any."""
        assert self.cache is not None
        first, stop = sequence.first_private, sequence.sealed
        if stop > first:
            self.cache.num_private -= stop - first
            self.cache.seal(sequence.table[first:stop], self.keys(sequence, first, stop))
        if not sequence.piece_ends:
            self._open(sequence)
        sequence.first_private = NEVER_PRIVATE

    def prefix_counts(self) -> dict[str, int] | None:
        """Tokens of first admissions by what became of them, and blocks evicted."""
        if self.ledger is None or self.cache is None:
            return None
        return self.ledger.as_dict(evicted_blocks=self.cache.evicted)

    def further_holders(self) -> int:
        """Table entries beyond the first of each block."""
        return self.pool.num_extra_holders

    def take_copies(self) -> list[Copy]:
        """None: tables never move."""
        return []

    def dump(self) -> dict[str, Any]:
        """Block size and the free queue's ids in pop order."""
        return {"block_size": self.block_size, "free": self.pool.free_ids()}

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Every block free or held as often as counted; usage equal to what the tables say."""
        tables = [sequence.table for sequence in sequences]
        self.pool.check_integrity(tables)
        block_size, usage = self.block_size, self.usage
        held = len({block for table in tables for block in table}) * block_size
        assert held == usage.allocated, (
            f"slots in tables ({held}) != usage.allocated ({usage.allocated})"
        )
        tail = sum(self._never_filled(sequence) for sequence in sequences)
        assert tail == usage.internal_tail, (
            f"never filled tails ({tail}) != usage.internal_tail ({usage.internal_tail})"
        )
        if self.cache is None:
            return
        shared = self.pool.num_extra_holders * block_size
        assert shared == usage.shared, f"shared slots {shared} != usage.shared {usage.shared}"
        cached = self.pool.num_cached_free() * block_size
        assert cached == usage.cached, f"cached slots {cached} != usage.cached {usage.cached}"
        for sequence in sequences:
            sealed = sequence.sealed
            named = [block in self.cache for block in sequence.table]
            filed = min(sealed, sequence.first_private)
            assert named == [index < filed for index in range(len(named))], (
                f"{sequence} has {sealed} sealed blocks, the cache knows {named}"
            )
