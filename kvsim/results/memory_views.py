"""Who holds which slots, for every kind of memory, as plain ranges.

Addresses and lengths are slots, counted from the first one that requests can use (a null block is
outside). A view has two halves, so that a run pays little: `capture` copies what will change, in
O(running requests + blocks); `describe` turns the copy into ranges, once, at the end of the run.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvsim.core.contiguous import ContiguousAllocator, Extent
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Allocator
from kvsim.core.request import Sequence
from kvsim.core.vmm import VmmAllocator

Ranges = list[list[int]]
"""`[start_slot, slots]`, neighbours merged; of shared memory `[start_slot, slots, holders]`."""


class Holder(NamedTuple):
    """One request and what it holds; `place` is the view's own."""

    request_id: str
    live_tokens: int
    final_tokens: int
    place: Any


class Layout(NamedTuple):
    """The memory at one moment."""

    requests: list[dict[str, Any]]
    """`id`, `live_tokens`, `final_tokens`, `extents` in the order in which tokens fill them;
    where memory is reserved ahead, `reserved_tokens` too."""
    free: Ranges
    shared: Ranges
    extra: dict[str, Any]
    """What only this kind of memory has."""


class MemoryView(Protocol):
    """Reads the map of one allocator."""

    kind: str

    def capture(self, sequence: Sequence) -> Any:
        """A copy of what the sequence holds, small and safe from later changes."""

    def capture_rest(self) -> Any:
        """A copy of what the allocator knows beside that."""

    def describe(self, holders: Seq[Holder], rest: Any) -> Layout:
        """The ranges of one captured moment."""


class PagedView:
    """Block tables; consecutive block ids are one extent. A page set is drawn as a block."""

    kind = "paged"

    def __init__(self, allocator: PagedAllocator | GroupedAllocator | VmmAllocator) -> None:
        self._first_id = allocator.pool.first_id
        self._usable = allocator.pool.num_usable
        self._block_size = allocator.block_size

    def capture(self, sequence: Sequence) -> Any:
        """The table, as 4-byte numbers."""
        return array("i", sequence.table)

    def capture_rest(self) -> None:
        """Nothing: what no table holds is free."""

    def describe(self, holders: Seq[Holder], rest: Any) -> Layout:
        """Extents by table, free ranges between them, and blocks of several tables."""
        requests = []
        count = np.zeros(self._usable, dtype=np.int64)
        for holder in holders:
            blocks = np.asarray(holder.place, dtype=np.int64) - self._first_id
            np.add.at(count, blocks, 1)
            requests.append({**_facts(holder), "extents": self._ranges(blocks)})
        shared = np.flatnonzero(count > 1)
        return Layout(
            requests,
            free=self._ranges(np.flatnonzero(count == 0)),
            shared=self._shared(shared, count[shared]),
            extra={},
        )

    def _ranges(self, blocks: Any) -> Ranges:
        cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
        return [
            [int(run[0]) * self._block_size, len(run) * self._block_size]
            for run in np.split(blocks, cuts)
            if len(run)
        ]

    def _shared(self, blocks: Any, holders: Any) -> Ranges:
        cuts = np.flatnonzero((np.diff(blocks) != 1) | (np.diff(holders) != 0)) + 1
        pairs = zip(np.split(blocks, cuts), np.split(holders, cuts), strict=True)
        size = self._block_size
        return [[int(run[0]) * size, len(run) * size, int(n[0])] for run, n in pairs if len(run)]


class GroupedView(PagedView):
    """Tables of several layer groups: each group of a request is listed as `<id> group <n>`.

    Its tokens are counted in slots, from the first one inside the group's window on.
    """

    def __init__(self, allocator: GroupedAllocator) -> None:
        super().__init__(allocator)
        self._groups = allocator.groups

    def capture(self, sequence: Sequence) -> Any:
        """The tables without their null entries, and how many those are."""
        pairs = zip(sequence.tables, sequence.null_blocks, strict=True)
        return [(nulls, array("i", table[nulls:])) for table, nulls in pairs]

    def describe(self, holders: Seq[Holder], rest: Any) -> Layout:
        """As for one group, group by group."""
        return super().describe([one for holder in holders for one in self._split(holder)], rest)

    def _split(self, holder: Holder) -> Iterator[Holder]:
        for index, (nulls, table) in enumerate(holder.place):
            size, state = self._groups[index].block_size, self._groups[index].state_tokens
            slots = self._block_size // size
            live, final = holder.live_tokens, max(0, holder.final_tokens - 1)
            if state is not None:
                live = final = state
            yield Holder(
                f"{holder.request_id} group {index}",
                max(0, live - nulls * size) * slots,
                max(0, final - nulls * size) * slots + 1,
                table,
            )


class ContiguousView:
    """One extent per request, and the holes that can be handed out (buddies apart)."""

    kind = "contiguous"

    def __init__(self, allocator: ContiguousAllocator) -> None:
        self._allocator = allocator

    def capture(self, sequence: Sequence) -> Extent | None:
        """The extent, which is immutable."""
        extent: Extent | None = sequence.extent
        return extent

    def capture_rest(self) -> Ranges:
        """The holes."""
        return [[hole["start"], hole["slots"]] for hole in self._allocator.dump()["holes"]]

    def describe(self, holders: Seq[Holder], rest: Any) -> Layout:
        """As captured."""
        requests = []
        for holder in holders:
            extent = holder.place
            ranges = [[extent.start_slot, extent.slots]] if extent else []
            reserved = {"reserved_tokens": extent.reserved_tokens if extent else 0}
            requests.append({**_facts(holder), **reserved, "extents": ranges})
        return Layout(requests, free=rest, shared=[], extra={})


class GrowView:
    """The batch's tensor, drawn row by row; a row is its request's extent."""

    kind = "grow"

    def __init__(self, allocator: GrowAllocator) -> None:
        self._allocator = allocator

    def capture(self, sequence: Sequence) -> int | None:
        """The row."""
        row: int | None = sequence.extent
        return row

    def capture_rest(self) -> dict[str, int]:
        """Place and shape of the tensor."""
        dump = self._allocator.dump()
        return {name: dump[name] for name in ("capacity_slots", "start", "slots", "rows", "width")}

    def describe(self, holders: Seq[Holder], rest: Any) -> Layout:
        """Rows one after another from the tensor's start; the free memory on its other side."""
        start, slots, width = rest["start"], rest["slots"], rest["width"]
        requests = []
        for holder in holders:
            ranges = [] if holder.place is None else [[start + holder.place * width, width]]
            requests.append({**_facts(holder), "reserved_tokens": width, "extents": ranges})
        ends = [[0, start], [start + slots, rest["capacity_slots"] - start - slots]]
        tensor = {"start_slot": start, "slots": slots, "rows": rest["rows"], "width": width}
        free = [piece for piece in ends if piece[1]]
        return Layout(requests, free=free, shared=[], extra={"tensor": tensor})


def memory_view(allocator: Allocator) -> MemoryView:
    """The view of an allocator, by its class."""
    match allocator:
        case PagedAllocator() | VmmAllocator():
            return PagedView(allocator)
        case GroupedAllocator():
            return GroupedView(allocator)
        case ContiguousAllocator():
            return ContiguousView(allocator)
        case GrowAllocator():
            return GrowView(allocator)
    raise TypeError(f"no memory view for {type(allocator).__name__}")


def _facts(holder: Holder) -> dict[str, Any]:
    return {
        "id": holder.request_id,
        "live_tokens": holder.live_tokens,
        "final_tokens": holder.final_tokens,
    }
