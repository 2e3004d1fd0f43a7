"""Memory for groups that are admitted, and what they share with a running request.

A request may branch off another one that still runs, its parent: they form a tree. Sharing needs no
prefix cache; the request says what it shares (`Request.fork`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvsim.core.group_memory import GroupMemory, TreeMemory
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.core.sequence_group import SequenceGroup


class Shared(NamedTuple):
    """Tokens that a request shares with its running parent, if it has one."""

    parent: Sequence | None
    tokens: int


NOTHING = Shared(None, 0)


class GroupAdmission:
    """Gives waiting groups their memory."""

    def __init__(self, memory: GroupMemory, *, gate: bool) -> None:
        """With `gate`, all known tokens must fit at admission (`reserve_full_isl`)."""
        self._memory = memory
        self._trees = memory if isinstance(memory, TreeMemory) else None
        self._gate = gate

    def shared(self, child: Sequence, running: Iterable[Sequence], plan: StepPlan) -> Shared:
        """What a group shares if its root, `child`, is admitted in this step.

        The parent must run, and its root must have computed all tokens that are the same, this
        step's included. The child shares those but for its prompt's last token, which it always
        computes. Slots are copied before the step's kernels run, so of a partial last block only
        what had KV before the step counts; whole blocks may be filled in this step, for a layer's
        KV is written before it is read. Only a first admission shares.
        """
        fork = child.request.fork
        if fork is None or child.admissions or self._trees is None:
            return NOTHING
        for parent in running:
            if parent.request.request_id == fork.parent_id:
                break
        else:
            return NOTHING
        if parent.computed < fork.tokens:
            return NOTHING
        tokens = min(fork.tokens, child.request.prompt_tokens - 1)
        whole = tokens // self._memory.block_size * self._memory.block_size
        tokens = min(tokens, max(whole, _had_kv(parent, plan)))
        return Shared(parent, tokens) if tokens else NOTHING

    def take(self, group: SequenceGroup, shared: Shared, new_tokens: int, keep_free: int) -> bool:
        """Give a group's root its shared tokens and memory for new ones; refuse if too few."""
        branches, (parent, tokens) = group.root_first, shared
        if parent is None or self._trees is None:
            return self._memory.admit_group(
                branches, group.sampled, new_tokens, gate=self._gate, keep_free=keep_free
            )
        return self._trees.admit_fork(
            parent, branches, tokens, new_tokens, gate=self._gate, keep_free=keep_free
        )

    def look_at(self, group: SequenceGroup, shared: Shared, plan: StepPlan) -> None:
        """Note in the plan what keeps the head of the queue from its memory."""
        branches = group.root_first
        if shared.parent is not None and self._trees is not None:
            fits = self._trees.fork_fits_sum(branches, shared.tokens)
        else:
            fits = self._memory.group_fits_sum(branches, group.sampled)
        if not fits:
            plan.head_short_of_memory = True
        elif self._memory.group_held_up(branches, group.sampled):
            plan.head_held_up = True
            group.root.held_up_by_fragmentation = True


def _had_kv(sequence: Sequence, plan: StepPlan) -> int:
    """Tokens that had KV before this step; none at an admission, for shared ones may be new too."""
    if sequence in plan.admitted:
        return 0
    return sequence.computed - sum(new for branch, new in plan.scheduled() if branch is sequence)


def check_fork(request: Request) -> None:
    """Raise `ValueError` unless the prompt has the tokens that it shares."""
    fork = request.fork
    if fork is not None and not 1 <= fork.tokens <= request.prompt_tokens:
        raise ValueError(
            f"request {request.request_id}: fork tokens (={fork.tokens}) must be in "
            f"1..{request.prompt_tokens}, the prompt's length"
        )
