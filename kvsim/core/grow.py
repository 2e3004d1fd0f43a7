"""The naive baseline: one padded batch tensor, re-allocated and copied at every growth."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.accounting import Usage
from kvsim.core.plan import Copy
from kvsim.core.protocols import Hit
from kvsim.core.request import Request, Sequence
from kvsim.core.uncached import Uncached


class GrowAllocator(Uncached):
    """KV memory of a pipeline without a memory manager, for a static batch.

    The cache of a batch is one tensor of rows x width slots, position by position, padded to the
    longest prompt. A new token per row needs a wider tensor: it is allocated while the old one is
    still held, the content is copied, the old one is freed. Old and new tensor take opposite ends
    of the memory, so a growth fails only when both together exceed it; this is the kindest
    reading of the baseline, without any fragmentation of its own. `Sequence.extent` is the row.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ValueError(f"{name} (={value}) must be >= 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.capacity_slots = num_blocks * block_size
        self.usage = Usage()
        self.reserves_ahead = True
        self.live_tokens: Callable[[Sequence], int] = lambda sequence: sequence.computed
        """Not read: a growth copies the whole tensor."""
        self._real: dict[Sequence, int] = {}
        """Cells of each member that hold or will hold its own tokens; the other cells pad."""
        self._real_cells = 0
        """Sum of those."""
        self._rows = 0
        self._width = 0
        self._start = 0
        """First block of the tensor."""
        self._blocks = 0
        self._open = True
        """Nothing is computed yet, so rows can be added without a copy."""
        self._copies: list[Copy] = []

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why the request alone could not make its last growth, or None. Changes nothing."""
        final = max(final_kv_tokens, request.prompt_tokens)
        new = self._to_blocks(final)
        old = self._to_blocks(final - 1) if final > request.prompt_tokens else 0
        if old + new <= self.num_blocks:
            return None
        return (
            f"its last growth, to {final} tokens, holds the old cache of {old} blocks and the new "
            f"one of {new} at once, the memory has {self.num_blocks} blocks of {self.block_size}"
        )

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """Add a row to a batch of which nothing is computed yet, and widen it to the row's tokens.

        These are the prompt, and after a lost batch the tokens sampled before. Refuses, changing
        nothing, once the batch runs, and unless `keep_free` blocks stay free. Changes the free
        memory, `usage` and `sequence.extent`.
        """
        if not self._open:
            return False
        tokens = max(sequence.tokens, new_tokens, known_tokens)
        width = max(self._width, tokens)
        blocks = self._to_blocks((self._rows + 1) * width)
        if self.num_blocks - blocks < keep_free:
            return False
        sequence.extent = self._rows
        self._real[sequence] = tokens
        self._real_cells += tokens
        self._rows += 1
        self._set(width, blocks, start=0)
        return True

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Whether the tokens fit the present width, as a chunk of the prompt does.

        Changes nothing but that the batch takes no more rows.
        """
        if computed + new_tokens > self._width:
            return False
        self._open = False
        return True

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """Widen every row of the batch by one column.

        `sequences` are the rows that still generate; the new cells of the others are padding. All
        or nothing: False when the wider tensor does not fit beside the old one. Changes the free
        memory and `usage`, queues one copy; the batch takes no more rows.
        """
        width = self._width + 1
        blocks = self._to_blocks(self._rows * width)
        if self._blocks + blocks > self.num_blocks:
            return False
        start = 0 if self._start else self.num_blocks - blocks
        self._copies.append(
            Copy(
                self._start * self.block_size,
                start * self.block_size,
                self._rows * self._width,
            )
        )
        for sequence in sequences:
            self._real[sequence] += 1
        self._real_cells += len(sequences)
        self._open = False
        self._set(width, blocks, start=start)
        return True

    def append_period(self) -> int:
        """1: every token needs a growth."""
        return 1

    def free_count(self) -> int:
        """Blocks outside the tensor."""
        return self.num_blocks - self._blocks

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether the batch with this sequence as one more row is at most the memory."""
        width = max(self._width, sequence.tokens)
        return self._to_blocks((self._rows + 1) * width) <= self.num_blocks

    def held_up(self, sequence: Sequence) -> bool:
        """Never: all free blocks lie in one piece."""
        return False

    def largest_free_extent(self) -> int:
        """Slots outside the tensor."""
        return self.free_count() * self.block_size

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """End a row, if the sequence has one.

        Its cells become padding; the tensor is freed with the last row. Changes `usage`, the
        sequence's extent and, with the last row, the free memory.
        """
        if sequence.extent is None:
            return
        real = self._real.pop(sequence, None)
        if real is None:
            raise AssertionError(f"{sequence!r} has no row of this batch")
        self._real_cells -= real
        sequence.extent = None
        if self._real:
            self._set(self._width, self._blocks, start=self._start)
        else:
            self._rows = 0
            self._open = True
            self._set(0, 0, start=0)

    def take_copies(self) -> list[Copy]:
        """Growths since the last call, in order. Forgets them.

        `tokens` counts cells, padding included: the pipeline copies the whole tensor.
        """
        copies, self._copies = self._copies, []
        return copies

    def dump(self) -> dict[str, Any]:
        """The tensor's place, in slots, its shape, and the live rows."""
        return {
            "capacity_slots": self.capacity_slots,
            "start": self._start * self.block_size,
            "slots": self._blocks * self.block_size,
            "rows": self._rows,
            "width": self._width,
            "members": [
                {"request_id": s.request.request_id, "row": s.extent, "tokens": real}
                for s, real in self._real.items()
            ],
        }

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Raise `AssertionError` unless rows, tensor and `usage` agree.

        `sequences` are all those that hold memory.
        """
        given = sorted(sequence.extent for sequence in sequences)
        rows = sorted(sequence.extent for sequence in self._real)
        if given != rows or set(sequences) != set(self._real):
            raise AssertionError(f"rows of the sequences {given} != rows held {rows}")
        if len(set(rows)) != len(rows) or (rows and rows[-1] >= self._rows):
            raise AssertionError(f"rows held {rows} are not distinct rows of {self._rows}")
        if self._start + self._blocks > self.num_blocks:
            raise AssertionError(
                f"tensor ends at block {self._start + self._blocks} > {self.num_blocks} blocks"
            )
        usage, cells = self.usage, self._rows * self._width
        if self._to_blocks(cells) != self._blocks:
            raise AssertionError(f"{cells} cells need {self._to_blocks(cells)} != {self._blocks}")
        real = sum(self._real.values())
        for name, counted, recomputed in (
            ("allocated", usage.allocated, self._blocks * self.block_size),
            ("over_reservation", usage.over_reservation, cells - real),
            ("roundup", usage.roundup, self._blocks * self.block_size - cells),
        ):
            if counted != recomputed:
                raise AssertionError(f"usage.{name} {counted} != recomputed {recomputed}")

    def _to_blocks(self, cells: int) -> int:
        return -(-cells // self.block_size)

    def _set(self, width: int, blocks: int, *, start: int) -> None:
        """Give the tensor this width and place, and book its slots."""
        self._width, self._blocks, self._start = width, blocks, start
        cells, slots = self._rows * width, blocks * self.block_size
        self.usage.allocated = slots
        self.usage.roundup = slots - cells
        self.usage.over_reservation = cells - self._real_cells
