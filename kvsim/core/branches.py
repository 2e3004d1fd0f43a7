"""Paged memory whose block tables can be forked: sharing with copy-on-write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from kvsim.core.group_memory import group_blocks
from kvsim.core.host_pool import SWAP_IN, SWAP_OUT, HostPool, distinct, footprint
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy, Transfer
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence
from kvsim.core.shared_tails import SharedTail, check_holders, check_usage


class BranchingAllocator(PagedAllocator):
    """A paged allocator with `fork`: block-level sharing and copy-on-write (SOSP'23, 4.4).

    Blocks are shared by reference counts. A sequence that writes into a block which others hold
    too takes a fresh one, has the filled slots copied by the device, and gives up its share; the
    last holder writes in place. Full blocks are never written again, so they stay shared.

    Groups can be swapped out to host blocks and back in, all branches together: each block moves
    once and stays shared among them. A block that another group holds too is copied out and stays
    where it is for the other; the group comes back with a block of its own.

    A sequence that is not forked is served exactly as by `PagedAllocator`. There is no prefix
    cache. `append_period` and `append_bulk` hold for sequences that share no partial block:
    `horizon` is 0 for the others.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, null_block: bool = True, host_blocks: int = 0
    ) -> None:
        """`num_blocks` counts vLLM's null block unless `null_block` is false (SOSP'23).

        `host_blocks` of the same size are there for swapped groups.
        """
        super().__init__(num_blocks, block_size, null_block=null_block)
        self.host = HostPool(host_blocks, block_size)
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
        if child.table:
            raise ValueError(f"{child!r} holds blocks already")
        self._check_fork(parent, child, computed)
        self._share(parent, child, computed, 0)

    def _check_fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        if len(parent.table) != -(-computed // self.block_size):
            raise ValueError(f"{parent!r} does not end with token {computed}")
        if child.final_kv_tokens < computed:
            raise ValueError(f"{child!r} ends at {child.final_kv_tokens} tokens (< {computed})")

    def _share(self, parent: Sequence, child: Sequence, computed: int, held: int) -> None:
        """Give the child the parent's table, of which it holds the first `held` blocks already."""
        table = parent.table
        if not table:
            return
        self.pool.hold(table[held:])
        child.table = table.copy()
        usage, tokens = self.usage, computed % self.block_size
        if not tokens:
            usage.shared += (len(table) - held) * self.block_size
            return
        usage.shared += (len(table) - held - 1) * self.block_size + tokens
        self._share_tail(parent, child, tokens)

    def _share_tail(self, holder: Sequence, other: Sequence, tokens: int) -> None:
        """Note that `other` holds the last block of `holder` too, which is partly filled."""
        block = holder.table[-1]
        tail = self._shared_tails.get(block)
        if tail is None:
            tail = self._shared_tails[block] = SharedTail(tokens, self._never_filled(holder))
        before = tail.never_filled
        tail.tails.append(self._never_filled(other))
        self.usage.internal_tail += tail.never_filled - before

    def fork_at(self, parent: Sequence, child: Sequence, tokens: int) -> bool:
        """Let `child` begin with the first `tokens` tokens of `parent`; refuse without a block.

        Whole blocks are shared. Of a partial one the first slots are copied into a fresh block, so
        they must have KV before the step. Raises `ValueError` unless the child's table is empty,
        the parent's holds so many tokens, and the child has room for them.
        """
        whole, rest = divmod(tokens, self.block_size)
        if child.table:
            raise ValueError(f"{child!r} holds blocks already")
        if tokens > len(parent.table) * self.block_size:
            raise ValueError(f"{parent!r} does not hold {tokens} tokens")
        if child.final_kv_tokens < tokens:
            raise ValueError(f"{child!r} ends at {child.final_kv_tokens} tokens (< {tokens})")
        if rest and not self.pool.num_free():
            return False
        child.table = parent.table[:whole]
        self.pool.hold(child.table)
        self.usage.shared += whole * self.block_size
        if rest:
            self._extend(child, 1)
            self._note_copy(parent.table[whole], child.table[whole], rest)
        return True

    def admit_fork(
        self,
        parent: Sequence,
        branches: Seq[Sequence],
        shared_tokens: int,
        new_tokens: int,
        *,
        gate: bool,
        keep_free: int,
    ) -> bool:
        """Fill the root's table behind tokens of the parent; refuse by the gate and watermark."""
        child, block_size = branches[0], self.block_size
        end = -(-(shared_tokens + new_tokens) // block_size)
        known = self._known_blocks(branches, 0) if gate else 0
        need = max(end, known) - shared_tokens // block_size
        if need + keep_free > self.pool.num_free():
            return False
        self.fork_at(parent, child, shared_tokens)
        self._extend(child, end - len(child.table))
        return True

    def fork_fits_sum(self, branches: Seq[Sequence], shared_tokens: int) -> bool:
        """Whether all known tokens of a waiting group but the shared ones fit the free blocks."""
        need = self._known_blocks(branches, 0) - shared_tokens // self.block_size
        return need <= self.pool.num_free()

    def replace(self, branch: Sequence, parent: Sequence, computed: int) -> None:
        """Give up the branch's table and share the parent's; leading blocks of both stay held."""
        self._check_fork(parent, branch, computed)
        table, other = branch.table, parent.table
        most = min(len(table), len(other)) - 1
        same = 0
        while same < most and table[same] == other[same]:
            same += 1
        self._give_up(branch, same)
        self._share(parent, branch, computed, same)

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
        block_size, tails = self.block_size, self._shared_tails
        changing = [
            (sequence, tokens)
            for sequence, tokens in zip(sequences, new_tokens, strict=True)
            if tokens
            and (
                sequence.computed + tokens > len(sequence.table) * block_size
                or sequence.table[-1] in tails
            )
        ]
        if not changing:
            return True
        sequences, new_tokens = zip(*changing, strict=True)
        if self.blocks_to_append(sequences, new_tokens) > self.pool.num_free():
            return False
        for sequence, tokens in changing:
            computed = sequence.computed
            fits = self.append(sequence, computed, tokens, computed + tokens)
            assert fits, f"{sequence!r} needs a block that was not counted"
        return True

    def blocks_to_append(self, sequences: Seq[Sequence], new_tokens: Seq[int]) -> int:
        """Free blocks that `append_group` would take. Changes nothing."""
        block_size, tails = self.block_size, self._shared_tails
        writers: dict[int, int] = {}
        need = 0
        for sequence, tokens in zip(sequences, new_tokens, strict=True):
            table = sequence.table
            need += -(-(sequence.computed + tokens) // block_size) - len(table)
            if tokens and table and table[-1] in tails:
                writers[table[-1]] = writers.get(table[-1], 0) + 1
        copies = (min(count, len(tails[block].tails) - 1) for block, count in writers.items())
        return need + sum(copies)

    def _copy_tail(self, sequence: Sequence) -> None:
        """Replace the shared last block by a private copy of its filled slots."""
        block_size, table, shared = self.block_size, sequence.table, sequence.table[-1]
        tokens = self._shared_tails[shared].tokens
        (fresh,) = self.pool.take(1)
        self._note_copy(shared, fresh, tokens)
        own = self._never_filled(sequence)
        self._leave_tail(shared, own)
        self.pool.leave(shared)
        table[-1] = fresh
        self.usage.allocated += block_size
        self.usage.internal_tail += own

    def _note_copy(self, source: int, target: int, tokens: int) -> None:
        size = self.block_size
        self._copies.append(Copy(source * size, target * size, tokens))
        self._num_copies += 1
        self._copied_tokens += tokens

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
        """Give up every share; blocks that nobody else holds become free. Empties the table.

        The host blocks of a sequence that is swapped out are free too.
        """
        self._give_up(sequence, 0)

    def _give_up(self, sequence: Sequence, kept: int) -> None:
        """As `release`, but for the shares of the table's first `kept` blocks."""
        table = sequence.table
        if not table:
            self.host.discard(sequence)
            return
        usage, own = self.usage, self._never_filled(sequence)
        full = len(table) - kept
        if table[-1] in self._shared_tails:
            self._leave_tail(table[-1], own)
            full -= 1
        else:
            usage.internal_tail -= own
        freed = self.pool.give_back(table[kept:])
        usage.allocated -= freed * self.block_size
        usage.shared -= (full - freed) * self.block_size
        sequence.table = []

    def footprint(self, branches: Seq[Sequence]) -> tuple[int, int]:
        """Filled slots and physical blocks of some branches, shared ones once."""
        return footprint(branches, [branch.table for branch in branches], self.block_size)

    def fits_empty(self, branches: Seq[Sequence], new_tokens: Seq[int]) -> bool:
        """Whether the whole pool could hold the branches and their next tokens."""
        held = len(distinct(branch.table for branch in branches))
        return held + self.blocks_to_append(branches, new_tokens) <= self.pool.num_usable

    def swap_out(self, branches: Seq[Sequence]) -> Transfer | None:
        """Move the blocks of all branches to the host, or of none."""
        tokens, blocks = self.footprint(branches)
        if blocks > self.host.num_free:
            return None
        tables = [branch.table for branch in branches]
        for branch in branches:
            self.release(branch, resumes=True)
        self.host.store(branches, tables)
        return Transfer(SWAP_OUT, tokens, blocks)

    def swap_in(self, branches: Seq[Sequence]) -> Transfer | None:
        """Move the blocks of all branches back to the device, or of none."""
        size, tables = self.block_size, [self.host.tables[branch] for branch in branches]
        tokens, blocks = footprint(branches, tables, size)
        if blocks > self.pool.num_free():
            return None
        device = dict(zip(distinct(tables), self.pool.take(blocks), strict=True))
        self.usage.allocated += blocks * size
        first_holder: dict[int, Sequence] = {}
        for branch, table in zip(branches, tables, strict=True):
            self.host.discard(branch)
            branch.table = [device[block] for block in table]
            self._share_again(branch, first_holder)
        return Transfer(SWAP_IN, tokens, blocks)

    def _share_again(self, branch: Sequence, first_holder: dict[int, Sequence]) -> None:
        """Count the blocks of a table that came back, as `fork` and the appends did."""
        size, usage, last = self.block_size, self.usage, branch.table[-1]
        shared = [block for block in branch.table if block in first_holder]
        self.pool.hold(shared)
        usage.shared += len(shared) * size
        rest = branch.computed % size
        if rest and last in first_holder:
            usage.shared -= size - rest
            self._share_tail(first_holder[last], branch, rest)
        else:
            usage.internal_tail += self._never_filled(branch)
        for block in branch.table:
            first_holder.setdefault(block, branch)

    def blocks_to_swap_in(self, branches: Seq[Sequence], new_tokens: Seq[int]) -> int:
        """Free blocks that swapped branches and their next tokens take. Changes nothing."""
        return self.host.blocks_to_return(branches, new_tokens)

    def peak_host_blocks(self) -> int:
        """Most host blocks ever held at once."""
        return self.host.peak_blocks

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
            "logical_blocks": physical + self.pool.num_extra_holders,
            "physical_blocks": physical,
            "copies": self._num_copies,
            "copied_tokens": self._copied_tokens,
        }

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Reference counts equal table entries, and `usage` what the tables say. Host side too."""
        self.host.check_integrity()
        both = [sequence for sequence in sequences if sequence in self.host.tables]
        assert not both, f"{both} are on the device and swapped out"
        tables = [sequence.table for sequence in sequences]
        self.pool.check_integrity(tables)
        ends: dict[int, list[int]] = {}
        for sequence in sequences:
            if sequence.table:
                ends.setdefault(sequence.table[-1], []).append(self._never_filled(sequence))
        holders = Counter(block for table in tables for block in table)
        check_holders(holders, self.pool.num_extra_holders)
        check_usage(self.usage, self._shared_tails, holders, ends, self.block_size)
