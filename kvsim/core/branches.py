"""Paged memory whose block tables can be forked: sharing with copy-on-write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence


class SharedTail:
    """A partially filled block that is the last one of several tables."""

    __slots__ = ("tails", "tokens")

    def __init__(self, tokens: int, tail: int) -> None:
        self.tokens = tokens
        """Slots filled: whoever writes the next one takes a copy first."""
        self.tails = [tail]
        """Slots of the block that each holder's final length leaves empty, in no order."""

    @property
    def never_filled(self) -> int:
        """Slots of the block that no holder would ever fill."""
        return min(self.tails)


def group_blocks(prompt: int, generated: int, width: int, block_size: int) -> int:
    """Blocks of `width` branches with `generated` tokens each behind one prompt.

    Nothing but whole prompt blocks is shared: closed form 4 of parallel sampling, an upper bound
    for beams, which share more.
    """
    own = -(-(prompt + generated) // block_size)
    if not generated:
        return own
    whole = prompt // block_size
    return whole + width * (own - whole)


class BranchingAllocator(PagedAllocator):
    """A paged allocator with `fork`: block-level sharing and copy-on-write (SOSP'23, 4.4).

    Blocks are shared by reference counts. A sequence that writes into a block which others hold
    too takes a fresh one, has the filled slots copied by the device, and gives up its share; the
    last holder writes in place. Full blocks are never written again, so they stay shared.

    A sequence that is not forked is served exactly as by `PagedAllocator`. There is no prefix
    cache. `append_period` and `append_bulk` hold for sequences that share no partial block:
    `horizon` is 0 for the others.
    """

    def __init__(self, num_blocks: int, block_size: int, *, null_block: bool = True) -> None:
        """`num_blocks` counts vLLM's null block unless `null_block` is false (SOSP'23)."""
        super().__init__(num_blocks, block_size, null_block=null_block)
        self._shared_tails: dict[int, SharedTail] = {}
        self._copies: list[Copy] = []
        self._num_copies = 0
        self._copied_tokens = 0

    def group_never_fits(self, request: Request, width: int, final_kv_tokens: int) -> str | None:
        """Why the whole pool could not hold so many branches of `final_kv_tokens` tokens, or None.

        Counts what they need without sharing generated blocks: for beams an upper bound that a
        recomputed group reaches.
        """
        generated = max(final_kv_tokens - request.prompt_tokens, 0)
        blocks = group_blocks(request.prompt_tokens, generated, width, self.block_size)
        return self.never_fits(request, blocks * self.block_size)

    def admit_group(
        self,
        branches: Seq[Sequence],
        generated: int,
        new_tokens: int,
        *,
        gate: bool,
        keep_free: int,
    ) -> bool:
        """Fill the root's table; refuse by the gate and the watermark."""
        slots = self._known_blocks(branches, generated) * self.block_size if gate else 0
        return self.admit(branches[0], NO_HIT, new_tokens, slots, keep_free)

    def group_fits_sum(self, branches: Seq[Sequence], generated: int) -> bool:
        """Whether all known tokens of a waiting group fit the free blocks."""
        return self._known_blocks(branches, generated) <= self.pool.num_free()

    def group_held_up(self, branches: Seq[Sequence], generated: int) -> bool:
        """Never: any free block serves any sequence."""
        return False

    def _known_blocks(self, branches: Seq[Sequence], generated: int) -> int:
        prompt = branches[0].request.prompt_tokens
        return group_blocks(prompt, generated, len(branches), self.block_size)

    def fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        """Let `child` share all blocks of `parent`, which has KV of `computed` tokens.

        Takes no free block, so it always fits. Raises `ValueError` unless the child's table is
        empty, the parent's table ends with token `computed`, and the child has room for that many.
        Changes the child's `table`, reference counts, `usage.shared` and `usage.internal_tail`.
        """
        table = parent.table
        if child.table:
            raise ValueError(f"{child!r} holds blocks already")
        if len(table) != -(-computed // self.block_size):
            raise ValueError(f"{parent!r} does not end with token {computed}")
        if child.final_kv_tokens < computed:
            raise ValueError(f"{child!r} ends at {child.final_kv_tokens} tokens (< {computed})")
        if not table:
            return
        self.pool.hold(table)
        child.table = table.copy()
        usage, tokens = self.usage, computed % self.block_size
        if not tokens:
            usage.shared += len(table) * self.block_size
            return
        usage.shared += (len(table) - 1) * self.block_size + tokens
        tail = self._shared_tails.get(table[-1])
        if tail is None:
            tail = self._shared_tails[table[-1]] = SharedTail(tokens, self._never_filled(parent))
        before = tail.never_filled
        tail.tails.append(self._never_filled(child))
        usage.internal_tail += tail.never_filled - before

    def replace(self, branch: Sequence, parent: Sequence, computed: int) -> None:
        """Give up the branch's table and share the parent's."""
        self.release(branch)
        self.fork(parent, branch, computed)

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Extend the table to `computed + new_tokens` slots, or refuse.

        A partial last block that others hold too is replaced by a copy, which needs one more block.
        """
        table = sequence.table
        if not table or not new_tokens or table[-1] not in self._shared_tails:
            return super().append(sequence, computed, new_tokens, known, in_flight)
        missing = -(-(computed + new_tokens) // self.block_size) - len(table)
        if missing + 1 > self.pool.num_free():
            return False
        self._copy_tail(sequence)
        if missing:
            self._extend(sequence, missing)
        return True

    def append_group(self, sequences: Seq[Sequence], new_tokens: Seq[int]) -> bool:
        """Extend each sequence, in order, by its tokens behind its `computed`. All or nothing.

        Holders of one partial block copy it except the last of them, if all are in `sequences`.
        """
        if self.blocks_to_append(sequences, new_tokens) > self.pool.num_free():
            return False
        for sequence, tokens in zip(sequences, new_tokens, strict=True):
            computed = sequence.computed
            fits = self.append(sequence, computed, tokens, computed + tokens)
            assert fits, f"{sequence!r} needs a block that was not counted"
        return True

    def blocks_to_append(self, sequences: Seq[Sequence], new_tokens: Seq[int]) -> int:
        """Free blocks that `append_group` would take. Changes nothing."""
        block_size, tails = self.block_size, self._shared_tails
        writers: Counter[int] = Counter()
        need = 0
        for sequence, tokens in zip(sequences, new_tokens, strict=True):
            table = sequence.table
            need += -(-(sequence.computed + tokens) // block_size) - len(table)
            if tokens and table and table[-1] in tails:
                writers[table[-1]] += 1
        copies = (min(count, len(tails[block].tails) - 1) for block, count in writers.items())
        return need + sum(copies)

    def _copy_tail(self, sequence: Sequence) -> None:
        """Replace the shared last block by a private copy of its filled slots."""
        block_size, table, shared = self.block_size, sequence.table, sequence.table[-1]
        tokens = self._shared_tails[shared].tokens
        (fresh,) = self.pool.take(1)
        self._copies.append(Copy(shared * block_size, fresh * block_size, tokens))
        self._num_copies += 1
        self._copied_tokens += tokens
        own = self._never_filled(sequence)
        self._leave_tail(shared, own)
        self.pool.give_back([shared])
        table[-1] = fresh
        self.usage.allocated += block_size
        self.usage.internal_tail += own

    def _leave_tail(self, block: int, own_tail: int) -> None:
        """One holder of a shared partial block gives up its share."""
        tail, usage = self._shared_tails[block], self.usage
        before = tail.never_filled
        tail.tails.remove(own_tail)
        usage.internal_tail += tail.never_filled - before
        usage.shared -= tail.tokens
        if len(tail.tails) == 1:
            del self._shared_tails[block]

    def horizon(self, sequence: Sequence, computed: int) -> int:
        """Tokens to the next block boundary; 0 while the partial last block is shared."""
        if sequence.table and sequence.table[-1] in self._shared_tails:
            return 0
        return super().horizon(sequence, computed)

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """One block for each sequence, whose last block is full, in order. All or nothing."""
        for sequence in sequences:
            assert not sequence.table or sequence.table[-1] not in self._shared_tails, (
                f"{sequence!r} must copy its last block, not grow behind it"
            )
        return super().append_bulk(sequences)

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Give up every share; blocks that nobody else holds become free. Empties the table."""
        table = sequence.table
        if not table:
            return
        usage, own = self.usage, self._never_filled(sequence)
        full = len(table)
        if table[-1] in self._shared_tails:
            self._leave_tail(table[-1], own)
            full -= 1
        else:
            usage.internal_tail -= own
        freed = self.pool.give_back(table)
        usage.allocated -= freed * self.block_size
        usage.shared -= (full - freed) * self.block_size
        sequence.table = []

    def take_copies(self) -> list[Copy]:
        """Copies on write since the last call, in order. Forgets them."""
        copies, self._copies = self._copies, []
        return copies

    def sharing_counts(self) -> dict[str, int]:
        """Blocks held now, with and without sharing, and copies on write since the start.

        The saving of SOSP'23 (Fig. 15) is `1 - physical_blocks / logical_blocks`. Walks the shared
        blocks.
        """
        physical = self.usage.allocated // self.block_size
        return {
            "logical_blocks": physical + self.pool.num_extra_holders(),
            "physical_blocks": physical,
            "copies": self._num_copies,
            "copied_tokens": self._copied_tokens,
        }

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Reference counts equal table entries, and `usage` what the tables say."""
        tables = [sequence.table for sequence in sequences]
        self.pool.check_integrity(tables)
        block_size, usage, tails = self.block_size, self.usage, self._shared_tails
        holders = Counter(block for table in tables for block in table)
        entries, references = holders.total(), len(holders) + self.pool.num_extra_holders()
        assert entries == references, f"table entries {entries} != reference counts {references}"
        assert len(holders) <= entries, f"physical blocks {len(holders)} > logical {entries}"
        held = len(holders) * block_size
        assert held == usage.allocated, f"slots held {held} != usage.allocated {usage.allocated}"
        ends: dict[int, list[int]] = {}
        for sequence in sequences:
            if sequence.table:
                own = self._never_filled(sequence)
                ends.setdefault(sequence.table[-1], []).append(own)
        for block, tail in tails.items():
            assert sorted(tail.tails) == sorted(ends.get(block, [])), (
                f"tails of shared block {block} {tail.tails} != {ends.get(block)}"
            )
            assert holders[block] == len(tail.tails) > 1, f"block {block} is not a shared tail"
        never = sum(min(own) if block in tails else sum(own) for block, own in ends.items())
        assert never == usage.internal_tail, (
            f"never filled tails {never} != usage.internal_tail {usage.internal_tail}"
        )
        shared = sum(
            (count - 1) * (tails[block].tokens if block in tails else block_size)
            for block, count in holders.items()
        )
        assert shared == usage.shared, f"shared slots {shared} != usage.shared {usage.shared}"
