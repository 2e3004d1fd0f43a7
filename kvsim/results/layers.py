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


class UnneededRecorder(_ByTime):
    """Share of the capacity that holds tokens outside the windows of layers that keep them all.

    Averaged over time, the state after `schedule()` held for the step's duration. A slot counts by
    the share of layers that need its token no more; one that several sequences hold counts when
    none of them needs it. Visits every running sequence in every step.
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
            one.layers * self._slots([(s.table, one.unneeded(tokens)) for s, tokens in held])
            for one in self._types
        )

    def _slots(self, unneeded: Seq[tuple[list[int], int]]) -> int:
        """Slots at the start of the tables that no holder needs, each counted once."""
        total = sum(tokens for _, tokens in unneeded)
        further = self._memory.pool.extra_holders
        if not further:
            return total
        size = self._memory.block_size
        seen: dict[int, list[int]] = {}
        for table, tokens in unneeded:
            for index in range(-(-tokens // size)):
                if table[index] in further:
                    seen.setdefault(table[index], []).append(min(size, tokens - index * size))
        for block, slots in seen.items():
            everyone = len(slots) == further[block] + 1
            total -= sum(slots) - (min(slots) if everyone else 0)
        return total

    def share(self) -> float | None:
        """The figure; None without measured time."""
        return self._sum / (self.weight * self._capacity) if self.weight else None
