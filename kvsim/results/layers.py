"""What grouping layers costs: layers that groups are padded with, tokens that no layer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from kvsim.core.grouped import GroupedAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.results.requests import Window
from kvsim.results.snapshots import tokens_after_step


class PaddedType(NamedTuple):
    """Layers of one type: `padding` of the layers of all its groups hold nothing."""

    groups: tuple[int, ...]
    """Indices of the allocator's groups."""
    padding: int
    layers: int
    """Of all its groups together, padding included."""


class LimitedType(NamedTuple):
    """Layers that need the latest tokens only, although they keep all of them."""

    kind: str
    """`sliding` or `chunked`."""
    layers: int
    limit_tokens: int

    def unneeded(self, tokens: int) -> int:
        """Leading tokens, of so many computed ones, that neither the last nor a later one needs."""
        if self.kind == "chunked":
            return max(tokens - 1, 0) // self.limit_tokens * self.limit_tokens
        return max(tokens - self.limit_tokens, 0)


class _ByTime:
    """Time inside the measured window, in nanoseconds; takes part in a run as a recorder."""

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self.weight = 0

    def overlap(self, start_ns: int, duration_ns: int) -> int:
        """Time of a stretch inside the window, which is added to `weight`."""
        end_ns = start_ns + duration_ns
        if self._window is not None:
            start_ns, end_ns = max(start_ns, self._window[0]), min(end_ns, self._window[1])
        inside = max(0, end_ns - start_ns)
        self.weight += inside
        return inside

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Nothing is taken."""

    def rejected(self, request: Request, reason: str) -> None:
        """Nothing is taken."""


class PaddingRecorder(_ByTime):
    """Share of the capacity in padding layers of allocated blocks, averaged over time.

    Exact: a block of a type has `padding / layers` of its bytes in layers that hold nothing. It is
    part of what the memory terms call live, reservation and internal, which count slots.
    """

    def __init__(
        self, memory: GroupedAllocator, types: Iterable[PaddedType], *, window: Window | None = None
    ) -> None:
        super().__init__(window)
        self._blocks = memory.group_blocks
        self._capacity = memory.pool.num_usable
        self._types = [one for one in types if one.padding]
        self._sums = [0] * len(self._types)

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book a step's state."""
        self.idle(start_ns, duration_ns)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Book what is held meanwhile."""
        inside, blocks = self.overlap(start_ns, duration_ns), self._blocks
        for index, one in enumerate(self._types):
            self._sums[index] += inside * sum(blocks[group] for group in one.groups)

    def share(self) -> float | None:
        """The figure; None without measured time."""
        if not self.weight:
            return None
        padded = sum(
            total * one.padding / one.layers
            for total, one in zip(self._sums, self._types, strict=True)
        )
        return padded / (self.weight * self._capacity)


class _PassedBlocks:
    """By how many tables each block is wholly unneeded, followed from step to step.

    Only the block that the next token goes into is ever exchanged inside a table, and that one is
    needed; a table that is given up or copied is another list.
    """

    def __init__(self) -> None:
        self.tables: dict[int, int] = {}
        """Tables by block."""
        self._counted: dict[Sequence, tuple[list[int], int]] = {}
        """The table of each sequence and how many of its leading blocks are counted."""

    def advance(self, sequence: Sequence, blocks: int) -> None:
        """The leading `blocks` of the sequence's table are unneeded now; they become no fewer."""
        table, counted = self._counted.get(sequence, (sequence.table, 0))
        if table is not sequence.table:
            self._add(table[:counted], -1)
            table, counted = sequence.table, 0
        if counted < blocks:
            self._add(table[counted:blocks], 1)
        self._counted[sequence] = table, blocks

    def keep(self, sequences: Seq[Sequence]) -> None:
        """All others hold nothing any more."""
        if len(self._counted) == len(sequences):
            return
        for sequence in self._counted.keys() - set(sequences):
            table, counted = self._counted.pop(sequence)
            self._add(table[:counted], -1)

    def _add(self, blocks: list[int], change: int) -> None:
        for block in blocks:
            count = self.tables.get(block, 0) + change
            if count:
                self.tables[block] = count
            else:
                del self.tables[block]


class UnneededRecorder(_ByTime):
    """Share of the capacity that holds tokens outside the windows of layers that keep them all.

    Averaged over time, the state after `schedule()` held for the step's duration. A slot counts by
    the share of layers that need its token no more; one that several sequences hold counts when
    none of them needs it. Visits every running sequence and every shared block in every step.
    """

    def __init__(
        self,
        memory: PagedAllocator,
        running: Callable[[], list[Sequence]],
        types: Seq[LimitedType],
        *,
        layers: int,
        window: Window | None = None,
    ) -> None:
        """`layers` are all of the model; `running` lists what holds memory."""
        super().__init__(window)
        self._memory = memory
        self._running = running
        self._types = tuple(types)
        self._passed = [_PassedBlocks() for _ in self._types]
        self._capacity = memory.capacity_slots * layers
        self._sum = 0

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book a step's state."""
        inside = self.overlap(start_ns, duration_ns)
        if inside:
            self._sum += inside * self.unneeded()

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Book time: nothing runs."""
        self.overlap(start_ns, duration_ns)

    def unneeded(self) -> int:
        """Slots times layers that nobody needs, after the step that was just scheduled."""
        held = [(one, tokens_after_step(self._memory, one)) for one in self._running()]
        return sum(
            one.layers * self._slots(passed, [(s, one.unneeded(tokens)) for s, tokens in held])
            for one, passed in zip(self._types, self._passed, strict=True)
        )

    def _slots(self, passed: _PassedBlocks, unneeded: Seq[tuple[Sequence, int]]) -> int:
        """Slots at the start of the tables that no holder needs, each counted once."""
        total = sum(tokens for _, tokens in unneeded)
        further = self._memory.pool.extra_holders
        if not further:
            return total
        size = self._memory.block_size
        begun: dict[int, list[int]] = {}
        for sequence, tokens in unneeded:
            blocks, rest = divmod(tokens, size)
            passed.advance(sequence, blocks)
            if rest and (block := sequence.table[blocks]) in further:
                begun.setdefault(block, []).append(rest)
        passed.keep([sequence for sequence, _ in unneeded])
        for block, others in further.items():
            whole, parts = passed.tables.get(block, 0), begun.get(block, [])
            total -= whole * size + sum(parts)
            if whole + len(parts) == others + 1:
                total += min(parts, default=size)
        return total

    def share(self) -> float | None:
        """The figure; None without measured time."""
        return self._sum / (self.weight * self._capacity) if self.weight else None
