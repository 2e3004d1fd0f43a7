"""What sequences share: blocks counted once and once per holder, and copies on write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence
from kvsim.core.sequence_group import SequenceGroup
from kvsim.results.requests import Window
from kvsim.results.rows import logical_slots_of

Groups = Callable[[], Iterable[SequenceGroup]]
"""The running groups, as of now."""


@runtime_checkable
class _Branches(Protocol):
    """Memory that counts the copies which branching made."""

    def sharing_counts(self) -> dict[str, int]:
        """With `copies` and `copied_tokens` since the start."""


class SharingRecorder:
    """The section `sharing` of a summary, in constant memory.

    Block counts are averages over time inside `window`, idle time included; a step's state is the
    one after `schedule()`, held for its duration. Copies cover the whole run.
    """

    def __init__(
        self, allocator: Allocator, *, groups: Groups | None, window: Window | None = None
    ) -> None:
        """`groups` is None where branches are requests of their own."""
        self._allocator = allocator
        self._usage = allocator.usage
        self._block_size = allocator.block_size
        self._logical_slots = logical_slots_of(allocator)
        self._groups = groups
        self._window = window
        self._weight = self._logical = self._physical = self._prompt = 0
        self._steps = 0
        self._ratios = 0.0

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book a step's state."""
        physical = self._usage.allocated // self._block_size
        logical = self._logical_slots() // self._block_size
        weight = self._overlap(start_ns, start_ns + duration_ns)
        self._weight += weight
        self._physical += physical * weight
        self._logical += logical * weight
        if self._groups is not None and weight:
            self._prompt += weight * prompt_blocks([*self._groups()], self._block_size)
        starts_inside = self._window is None or self._window[0] <= start_ns < self._window[1]
        if physical and starts_inside:
            self._steps += 1
            self._ratios += logical / physical

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Nothing is held while nothing runs."""
        self._weight += self._overlap(start_ns, start_ns + duration_ns)

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Nothing."""

    def rejected(self, request: Request, reason: str) -> None:
        """Nothing."""

    def _overlap(self, start_ns: int, end_ns: int) -> int:
        if self._window is None:
            return end_ns - start_ns
        return max(0, min(end_ns, self._window[1]) - max(start_ns, self._window[0]))

    def counts(self, kv_bytes_per_token: int | None) -> dict[str, float | int | None]:
        """The section; None where nothing was observed or the model is not known.

        `saving_by_step` is the PagedAttention paper's figure (Fig. 15): 1 - 1 / (mean over steps of
        logical / physical blocks).
        """
        weight, logical, physical = self._weight, self._logical, self._physical
        mean_ratio = self._ratios / self._steps if self._steps else 0.0
        prompt = self._prompt if self._groups is not None else None
        copies, tokens = self._copies()
        bytes_ = None if kv_bytes_per_token is None else tokens * kv_bytes_per_token
        return {
            "logical_blocks": logical / weight if weight else None,
            "physical_blocks": physical / weight if weight else None,
            "saving": 1 - physical / logical if logical else None,
            "saving_by_step": 1 - 1 / mean_ratio if mean_ratio else None,
            "prompt_share": None if prompt is None or not physical else prompt / physical,
            "generated_share": None if prompt is None or not physical else 1 - prompt / physical,
            "copies": copies,
            "copied_tokens": tokens,
            "copied_bytes": bytes_,
        }

    def _copies(self) -> tuple[int, int]:
        """Copies of branching and their tokens; a plan's copies may be compaction's moves too."""
        if not isinstance(self._allocator, _Branches):
            return 0, 0
        made = self._allocator.sharing_counts()
        return made["copies"], made["copied_tokens"]


def prompt_blocks(groups: list[SequenceGroup], block_size: int) -> int:
    """Blocks of running groups that hold a prompt token, each counted once.

    Groups have prompt blocks in common where one forked from another.
    """
    if any(group.root.request.fork is not None for group in groups):
        common = {block for group in groups for block in _prompt_table(group, block_size)}
        if common:
            return len(common)
    return sum(_prompt_blocks(group, block_size) for group in groups)


def _prompt_table(group: SequenceGroup, block_size: int) -> Iterator[int]:
    """Blocks of a group's prompt, each at least once; none in contiguous memory."""
    prompt = group.root.request.prompt_tokens
    whole, end = prompt // block_size, -(-prompt // block_size)
    yield from group.active[0].table[:whole]
    for branch in group.active:
        yield from branch.table[whole:end]


def _prompt_blocks(group: SequenceGroup, block_size: int) -> int:
    """Blocks of a running group that hold a token of its prompt, each counted once.

    All branches hold the whole blocks of the prompt in common, if they hold tables at all; the
    block in which it ends is common until they write behind it. In contiguous memory every branch
    has its own.
    """
    branches, prompt = group.active, group.root.request.prompt_tokens
    tables = [branch.table for branch in branches if branch.table]
    if not tables:
        return len(branches) * -(-prompt // block_size)
    whole, rest = divmod(prompt, block_size)
    common = min(whole, len(tables[0]))
    if not rest:
        return common
    return common + len({table[whole] for table in tables if len(table) > whole})
