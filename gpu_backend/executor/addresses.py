"""Where each row of the batch lies in the KV memory: kept on the host, for every device.

A device that keeps a copy asks for what changed since it last asked, and gets nothing else.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpu_backend.executor.arrays import NumpyArray
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Sequence


class Addresses(Protocol):
    """The addresses of the rows of a batch."""

    def place(self, row: int, sequence: Sequence, *, is_new: bool) -> None:
        """Bring the row's address up to date; `is_new`: it belonged to another sequence."""

    def move_row(self, source: int, target: int) -> None:
        """Give one row's address to another row."""

    def slots(self, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """Slots int64 [tokens] of positions [tokens] in the sequences of `rows` [tokens]."""

    def take_changes(self) -> NumpyArray:
        """Indices and value of what changed since the last call, int64 [indices + 1, changes].

        Forgets them. No place comes twice.
        """


class PagedAddresses:
    """A block table: per row the ids of its blocks."""

    def __init__(self, block_size: int, *, rows: int, columns: int) -> None:
        """`columns`: most blocks that a row can hold."""
        self.block_size = block_size
        self.table = np.zeros((rows, columns), np.int32)
        """[rows, columns]; a row's first ids are current, the rest is anything."""
        self._held = [0] * rows
        """Block ids written to each row of the table."""
        self._changed: dict[int, tuple[int, int]] = {}
        """By row, the columns from .. to (excluded) that changed."""

    def place(self, row: int, sequence: Sequence, *, is_new: bool) -> None:
        """Append the ids of new blocks to the row: a table only grows while its holder runs."""
        held = 0 if is_new else self._held[row]
        count = len(sequence.table)
        if count > held:
            self.table[row, held:count] = sequence.table[held:]
            self._note(row, held, count)
        self._held[row] = count

    def move_row(self, source: int, target: int) -> None:
        """Copy one row of the table onto another."""
        held = self._held[source]
        self.table[target, :held] = self.table[source, :held]
        self._held[target] = held
        self._note(target, 0, held)

    def slots(self, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """Block id x block size + place in the block."""
        size = self.block_size
        blocks = self.table[rows, positions // size].astype(np.int64)
        return np.asarray(blocks * size + positions % size)

    def take_changes(self) -> NumpyArray:
        """(row, column, block id) of what changed."""
        if not self._changed:
            return np.empty((3, 0), np.int64)
        spans = np.array([(row, *span) for row, span in self._changed.items()], np.int64)
        self._changed.clear()
        counts = spans[:, 2] - spans[:, 1]
        begins = np.cumsum(counts) - counts
        rows = np.repeat(spans[:, 0], counts)
        columns = np.arange(len(rows)) + np.repeat(spans[:, 1] - begins, counts)
        return np.stack([rows, columns, self.table[rows, columns]])

    def _note(self, row: int, begin: int, end: int) -> None:
        before = self._changed.get(row)
        self._changed[row] = (
            (begin, end) if before is None else (min(begin, before[0]), max(end, before[1]))
        )


class ContiguousAddresses:
    """Per row the first slot of its extent."""

    def __init__(self, *, rows: int) -> None:
        self.start_slots = np.zeros(rows, np.int64)
        """[rows]."""
        self._changed: set[int] = set()

    def place(self, row: int, sequence: Sequence, *, is_new: bool) -> None:
        """The extent's first slot, which compaction changes."""
        self._set(row, sequence.extent.start_slot)

    def move_row(self, source: int, target: int) -> None:
        """Copy one row's first slot onto another."""
        self._set(target, int(self.start_slots[source]))

    def slots(self, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """First slot + position."""
        return np.asarray(self.start_slots[rows] + positions)

    def take_changes(self) -> NumpyArray:
        """(row, first slot) of what changed."""
        rows = np.array(sorted(self._changed), np.int64)
        self._changed.clear()
        return np.stack([rows, self.start_slots[rows]])

    def _set(self, row: int, start_slot: int) -> None:
        if self.start_slots[row] != start_slot:
            self.start_slots[row] = start_slot
            self._changed.add(row)


def addresses_in(
    allocator: PagedAllocator | ContiguousAllocator, *, rows: int, max_tokens: int
) -> PagedAddresses | ContiguousAddresses:
    """Addresses of `rows` sequences, of at most `max_tokens` tokens each, in this memory."""
    if isinstance(allocator, ContiguousAllocator):
        return ContiguousAddresses(rows=rows)
    size = allocator.block_size
    columns = min(-(-max_tokens // size), allocator.num_blocks)
    return PagedAddresses(size, rows=rows, columns=columns)
