"""The memory of sequence groups, as their scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence


class GroupMemory(Allocator, Protocol):
    """An allocator whose sequences can branch.

    A group is given as its branches, the root first. The root computes the prompt; then `fork`
    gives it to the others. `generated` tokens have been sampled by each branch so far: more than 0
    where a group comes back after a preemption. What "does not fit" changes nothing.
    """

    def group_never_fits(self, request: Request, width: int, final_kv_tokens: int) -> str | None:
        """Why an empty memory could not serve so many branches of this request, or None."""

    def admit_group(
        self,
        branches: Seq[Sequence],
        generated: int,
        new_tokens: int,
        *,
        gate: bool,
        keep_free: int,
    ) -> bool:
        """Give the root of a waiting group memory for its first `new_tokens` tokens.

        Refuses unless, with `gate`, all known tokens of all branches would fit, and unless
        `keep_free` blocks stay free.
        """

    def group_fits_sum(self, branches: Seq[Sequence], generated: int) -> bool:
        """Whether a waiting group's memory is at most the sum of the free slots."""

    def group_held_up(self, branches: Seq[Sequence], generated: int) -> bool:
        """Whether a waiting group fits the sum of the free slots but no free extents."""

    def append_group(self, sequences: Seq[Sequence], new_tokens: Seq[int]) -> bool:
        """Extend each sequence, in order, by its tokens behind its `computed`. All or nothing."""

    def fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        """Give a branch without tokens the first `computed` ones, which are all of its parent's.

        Always fits.
        """

    def replace(self, branch: Sequence, parent: Sequence, computed: int) -> None:
        """Let `branch` give up its tokens and go on from its parent's `computed` ones.

        Always fits.
        """

    def sharing_counts(self) -> dict[str, int]:
        """Blocks held now and copies since the start.

        `logical_blocks` counts a block for every branch that holds it, `physical_blocks` once;
        `copies` and `copied_tokens` are those that branching made so far.
        """
