"""The memory of sequence groups, as their scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from kvsim.core.plan import Transfer
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence


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


@runtime_checkable
class SwapMemory(Protocol):
    """Group memory that can move groups to bounded host memory and back.

    `branches` are those of a group that hold memory, with current `computed`. `release` of a branch
    that is swapped out gives up its host blocks.
    """

    def footprint(self, branches: Seq[Sequence]) -> tuple[int, int]:
        """Filled slots and blocks that a group on the device has, shared ones once."""

    def fits_empty(self, branches: Seq[Sequence], new_tokens: Seq[int]) -> bool:
        """Whether the blocks of a group on the device, and those its tokens need, fit the pool."""

    def swap_out(self, branches: Seq[Sequence]) -> Transfer | None:
        """Move a group's blocks to the host, each once. None: no room there, nothing changed."""

    def swap_in(self, branches: Seq[Sequence]) -> Transfer | None:
        """Move a group's blocks back. None: too few free blocks, nothing changed."""

    def blocks_to_swap_in(self, branches: Seq[Sequence], new_tokens: Seq[int]) -> int:
        """Free blocks that `swap_in` and then `append_group` take. Changes nothing."""

    def peak_host_blocks(self) -> int:
        """Most host blocks ever held at once."""


@runtime_checkable
class TreeMemory(Protocol):
    """Group memory in which a request can begin with the blocks of another one."""

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
        """Admit a group behind the parent's first `shared_tokens` tokens.

        The root gets those and memory for `new_tokens` more. Refuses as `admit_group` does; blocks
        it shares need no room.
        """

    def fork_fits_sum(self, branches: Seq[Sequence], shared_tokens: int) -> bool:
        """Whether a waiting group's memory, but for the shared tokens, is at most the free one."""
