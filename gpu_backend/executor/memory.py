"""KV tensors of all layers and where each row of the batch lies in them: paged and contiguous.

New memory is filled with NaN: whatever reads a slot that no token was written to shows it, and no
page of it is touched for the first time while a step is measured.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpu_backend.cpu import (
    contiguous_decode,
    contiguous_prefill,
    paged_decode,
    paged_prefill,
    reshape_and_cache,
)
from gpu_backend.cpu.arrays import NumpyArray
from gpu_backend.executor.shape import ModelShape
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy
from kvsim.core.request import Sequence


class Memory(Protocol):
    """The caches of all layers, and the addresses of the rows of a batch."""

    def place(self, row: int, sequence: Sequence, *, is_new: bool) -> None:
        """Bring the row's address up to date; `is_new`: it belonged to another sequence."""

    def move_row(self, source: int, target: int) -> None:
        """Give one row's address to another row."""

    def slots(self, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """Slots int64 [tokens] of positions [tokens] in the sequences of `rows` [tokens]."""

    def move(self, copy: Copy) -> None:
        """Move the KV of consecutive slots, in every layer; source and target may overlap."""

    def write(self, layer: int, key: NumpyArray, value: NumpyArray, slots: NumpyArray) -> None:
        """Store keys and values float32 [tokens, kv_heads, head_dim] in slots [tokens]."""

    def attend(
        self,
        layer: int,
        query: NumpyArray,
        query_start: NumpyArray,
        contexts: NumpyArray,
        out: NumpyArray,
    ) -> None:
        """Attention of queries float32 [tokens, heads, head_dim] into `out` of that shape.

        Row i's queries are query_start[i] .. query_start[i + 1], the end of its contexts[i] tokens.
        """


class PagedMemory:
    """Blocks [num_blocks, kv_heads, block_size, head_dim] per layer, and a block table."""

    def __init__(
        self,
        allocator: PagedAllocator,
        shape: ModelShape,
        *,
        layers: int,
        rows: int,
        max_tokens: int,
        num_threads: int | None,
    ) -> None:
        self.block_size = allocator.block_size
        size = (2, allocator.num_blocks, shape.kv_heads, self.block_size, shape.head_dim)
        self.caches = [np.full(size, np.nan, np.float32) for _ in range(layers)]
        """Per layer, keys and values."""
        columns = min(-(-max_tokens // self.block_size), allocator.num_blocks)
        self.table = np.zeros((rows, columns), np.int32)
        self._held = [0] * rows
        """Block ids written to each row of the table."""
        self._scale = shape.head_dim**-0.5
        self._threads = num_threads

    def place(self, row: int, sequence: Sequence, *, is_new: bool) -> None:
        """Append the ids of new blocks to the row: a table only grows while its holder runs."""
        held = 0 if is_new else self._held[row]
        count = len(sequence.table)
        if count > held:
            self.table[row, held:count] = sequence.table[held:]
        self._held[row] = count

    def move_row(self, source: int, target: int) -> None:
        """Copy one row of the table onto another."""
        held = self._held[source]
        self.table[target, :held] = self.table[source, :held]
        self._held[target] = held

    def slots(self, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """Block id x block size + place in the block."""
        size = self.block_size
        blocks = self.table[rows, positions // size].astype(np.int64)
        return np.asarray(blocks * size + positions % size)

    def move(self, copy: Copy) -> None:
        """Read all slots of the copy, then write them."""
        steps = np.arange(copy.tokens)
        source, target = copy.source_slot + steps, copy.target_slot + steps
        size = self.block_size
        for cache in self.caches:
            moved = cache[:, source // size, :, source % size]
            cache[:, target // size, :, target % size] = moved

    def write(self, layer: int, key: NumpyArray, value: NumpyArray, slots: NumpyArray) -> None:
        """See `Memory.write`."""
        keys, values = self.caches[layer]
        reshape_and_cache(key, value, keys, values, slots)

    def attend(
        self,
        layer: int,
        query: NumpyArray,
        query_start: NumpyArray,
        contexts: NumpyArray,
        out: NumpyArray,
    ) -> None:
        """The decode kernel when every row has one query, else one call for the mixed batch."""
        keys, values = self.caches[layer]
        table = self.table[: len(contexts)]
        scale, threads = self._scale, self._threads
        if len(query) == len(contexts):
            paged_decode(
                query, keys, values, table, contexts, scale=scale, out=out, num_threads=threads
            )
        else:
            paged_prefill(
                query,
                keys,
                values,
                table,
                query_start,
                contexts,
                scale=scale,
                out=out,
                num_threads=threads,
            )


class ContiguousMemory:
    """An arena [kv_heads, slots, head_dim] per layer, and each row's first slot."""

    def __init__(
        self,
        allocator: ContiguousAllocator,
        shape: ModelShape,
        *,
        layers: int,
        rows: int,
        num_threads: int | None,
    ) -> None:
        size = (2, shape.kv_heads, allocator.capacity_slots, shape.head_dim)
        self.arenas = [np.full(size, np.nan, np.float32).swapaxes(1, 2) for _ in range(layers)]
        """Per layer, keys and values [2, slots, kv_heads, head_dim]; heads come first in memory."""
        self.start_slots = np.zeros(rows, np.int64)
        self._scale = shape.head_dim**-0.5
        self._threads = num_threads

    def place(self, row: int, sequence: Sequence, *, is_new: bool) -> None:
        """The extent's first slot, which compaction changes."""
        self.start_slots[row] = sequence.extent.start_slot

    def move_row(self, source: int, target: int) -> None:
        """Copy one row's first slot onto another."""
        self.start_slots[target] = self.start_slots[source]

    def slots(self, rows: NumpyArray, positions: NumpyArray) -> NumpyArray:
        """First slot + position."""
        return self.start_slots[rows] + positions

    def move(self, copy: Copy) -> None:
        """Move a range of slots (numpy buffers what overlaps)."""
        source, target, tokens = copy.source_slot, copy.target_slot, copy.tokens
        for arena in self.arenas:
            arena[:, target : target + tokens] = arena[:, source : source + tokens]

    def write(self, layer: int, key: NumpyArray, value: NumpyArray, slots: NumpyArray) -> None:
        """An arena is written as one block whose tokens come before its heads."""
        keys, values = self.arenas[layer]
        reshape_and_cache(key, value, keys[None], values[None], slots, layout="nhd")

    def attend(
        self,
        layer: int,
        query: NumpyArray,
        query_start: NumpyArray,
        contexts: NumpyArray,
        out: NumpyArray,
    ) -> None:
        """The decode kernel when every row has one query, else one call for the mixed batch."""
        keys, values = self.arenas[layer]
        starts = self.start_slots[: len(contexts)]
        scale, threads = self._scale, self._threads
        if len(query) == len(contexts):
            contiguous_decode(
                query, keys, values, starts, contexts, scale=scale, out=out, num_threads=threads
            )
        else:
            contiguous_prefill(
                query,
                keys,
                values,
                starts,
                query_start,
                contexts,
                scale=scale,
                out=out,
                num_threads=threads,
            )
