"""Contiguous memory of sequence groups: every branch has an extent of its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.contiguous import ContiguousAllocator, Extent
from kvsim.core.plan import Copy
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence


class ContiguousBranches(ContiguousAllocator):
    """A contiguous allocator with branches, which can share nothing.

    All branches get their extents when their group is admitted, or none does. The prompt is
    computed once, in the root's extent; `fork` copies it into another branch's, and a beam that
    goes on from another one has that one's tokens copied over its own (as the systems before
    PagedAttention do, SOSP'23 section 6.3). Until they are forked, branches hold their extents on
    behalf of the root: releasing the root releases them.

    Copies run in the order they were asked for, before the step's kernels. One whose target is
    released before it ran is not made, unless a later one reads that target.

    Compaction copies what had KV before the step, which `append_group` is told: `live_tokens` is
    not read.
    """

    def __init__(self, num_blocks: int, block_size: int, **settings: Any) -> None:
        """Arguments as in `ContiguousAllocator`."""
        super().__init__(num_blocks, block_size, **settings)
        self._unforked: dict[Sequence, list[Sequence]] = {}
        """Branches with an extent and no tokens, by the root that will be forked."""
        self._branch_copies: list[Copy] = []
        """Copies of branching that no move has been asked for after."""
        self._before_step: dict[Sequence, int] = {}
        """Tokens with KV before the step being scheduled, of sequences that it has served; kept
        for compaction only."""
        self._num_copies = 0
        self._copied_tokens = 0

    def group_never_fits(self, request: Request, width: int, final_kv_tokens: int) -> str | None:
        """Why an empty arena could not hold an extent for each branch, or None."""
        why = self.never_fits(request, final_kv_tokens)
        if why is not None:
            return why
        reserved = self._reserve(request, final_kv_tokens + 1, self._max_model_len)
        size = self._arena.round_up(-(-reserved // self.block_size))
        most = self.num_blocks // size
        if width <= most:
            return None
        return (
            f"{width} branches reserve {reserved} tokens each, extents of {size} blocks of "
            f"{self.block_size}; an empty memory gives {most} of these"
        )

    def admit_group(
        self,
        branches: Seq[Sequence],
        generated: int,
        new_tokens: int,
        *,
        gate: bool,
        keep_free: int,
    ) -> bool:
        """Reserve an extent for each branch, the root's first, for their whole lives.

        The reservations cover whatever is known, so there is no gate to ask. Refuses, changing
        nothing, unless all extents can be placed and `keep_free` blocks stay free.
        """
        arena, count = self._arena, len(branches)
        size = arena.round_up(self._blocks(branches[0]))
        if arena.free_blocks - count * size < keep_free:
            return False
        if self._packable is None and not self._can_place(size, count):
            return False
        for branch in branches:
            placed = self.admit(branch, NO_HIT, new_tokens, 0, 0)
            assert placed, f"no extent of {size} blocks for {branch!r}: {arena.holes()}"
        if self._packable is not None:
            self._note_before(branches)
        if count > 1:
            self._unforked[branches[0]] = list(branches[1:])
        return True

    def group_fits_sum(self, branches: Seq[Sequence], generated: int) -> bool:
        """Whether the reservations, in blocks before buddy rounding, are at most the free ones."""
        return len(branches) * self._blocks(branches[0]) <= self._arena.free_blocks

    def group_held_up(self, branches: Seq[Sequence], generated: int) -> bool:
        """Whether the reservations fit the free blocks but not all can be placed.

        Never with compaction. Buddy rounding counts as a reason, as in `held_up`.
        """
        if self._packable is not None or not self.group_fits_sum(branches, generated):
            return False
        size = self._arena.round_up(self._blocks(branches[0]))
        return not self._can_place(size, len(branches))

    def append_group(self, sequences: Seq[Sequence], new_tokens: Seq[int]) -> bool:
        """Nothing to do: the reservations cover it. Changes no memory.

        A length beyond a reservation is a bug of the caller and raises `AssertionError`.
        """
        for sequence, tokens in zip(sequences, new_tokens, strict=True):
            self.append(sequence, sequence.computed, tokens, sequence.computed + tokens)
        if self._packable is not None:
            self._note_before(sequences)
        return True

    def fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        """Copy the parent's `computed` tokens into the child's extent.

        Raises `ValueError` unless the child is a branch that was admitted with the parent and has
        not been forked yet, and has room for that many tokens.
        """
        unforked = self._unforked.get(parent, [])
        if child not in unforked:
            raise ValueError(f"{child!r} has no extent that was reserved with {parent!r}")
        self._copy(parent, child, computed)
        unforked.remove(child)
        if not unforked:
            del self._unforked[parent]

    def replace(self, branch: Sequence, parent: Sequence, computed: int) -> None:
        """Copy the parent's `computed` tokens over the branch's; extents stay.

        Raises `ValueError` if the branch has no room for that many tokens.
        """
        self._copy(parent, branch, computed)

    def sharing_counts(self) -> dict[str, int]:
        """Blocks of all extents, none shared, and the copies of branching since the start."""
        blocks = self.usage.allocated // self.block_size
        return {
            "logical_blocks": blocks,
            "physical_blocks": blocks,
            "copies": self._num_copies,
            "copied_tokens": self._copied_tokens,
        }

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Free the sequence's extent, if it has one, and those of branches it has yet to fork."""
        for branch in (sequence, *self._unforked.pop(sequence, ())):
            if branch.extent is not None:
                self._forget_copies(branch.extent.start_slot)
            super().release(branch, resumes=resumes)

    def take_copies(self) -> list[Copy]:
        """Copies and moves asked for since the last call, in order. Forgets them."""
        self._file_copies()
        self._before_step.clear()
        return super().take_copies()

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """As in `ContiguousAllocator`; branches yet to be forked are those of their roots."""
        held = [*sequences]
        for root, branches in self._unforked.items():
            if root not in sequences:
                raise AssertionError(f"{len(branches)} branches are reserved for {root!r}")
            held += branches
        super().check_integrity(held)

    def _can_place(self, size: int, count: int) -> bool:
        """Whether so many extents of one size fit; every placement fills each hole with them."""
        if size > self._arena.largest():
            return False
        return count == 1 or sum(hole // size for _, hole in self._arena.holes()) >= count

    def _copy(self, source: Sequence, target: Sequence, tokens: int) -> None:
        origin: Extent = source.extent
        place: Extent = target.extent
        if tokens > place.reserved_tokens:
            raise ValueError(f"{target!r} reserves {place.reserved_tokens} tokens (< {tokens})")
        if tokens:
            self._branch_copies.append(Copy(origin.start_slot, place.start_slot, tokens))
            self._num_copies += 1
            self._copied_tokens += tokens

    def _forget_copies(self, start_slot: int) -> None:
        """Drop the latest copies to an extent that nobody will read."""
        copies = self._branch_copies
        for index in range(len(copies) - 1, -1, -1):
            if copies[index].source_slot == start_slot:
                return
            if copies[index].target_slot == start_slot:
                self._num_copies -= 1
                self._copied_tokens -= copies.pop(index).tokens

    def _file_copies(self) -> None:
        """Put the copies of branching before the moves to come: these change their addresses."""
        self._copies += self._branch_copies
        self._branch_copies.clear()

    def _note_before(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._before_step.setdefault(sequence, sequence.computed)

    def _move(self, source: int, target: int) -> None:
        self._file_copies()
        super()._move(source, target)

    def _live_tokens(self, sequence: Sequence) -> int:
        return self._before_step.get(sequence, sequence.computed)
