"""Contiguous KV memory: one extent per sequence, reserved whole at admission."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

from kvsim.core.accounting import Usage
from kvsim.core.placement import PLACEMENTS, HoleList, Placement
from kvsim.core.plan import Copy
from kvsim.core.protocols import Hit
from kvsim.core.request import Request, Sequence
from kvsim.core.uncached import Uncached


class Extent(NamedTuple):
    """The address range of one sequence. `Sequence.extent` holds it."""

    start_slot: int
    slots: int
    reserved_tokens: int
    """Length the reservation rule asked for; `slots` is that, rounded up by blocks and buddies."""
    final_tokens: int
    """Prompt and output together, as the sequence stated them at admission."""


def _reserve_max(request: Request, final_tokens: int, max_model_len: int) -> int:
    return max_model_len


def _reserve_pow2(request: Request, final_tokens: int, max_model_len: int) -> int:
    output = max(final_tokens - request.prompt_tokens, 1)
    return min(request.prompt_tokens + (1 << (output - 1).bit_length()), max_model_len)


def _reserve_oracle(request: Request, final_tokens: int, max_model_len: int) -> int:
    return min(final_tokens, max_model_len)


def _reserve_requested(request: Request, final_tokens: int, max_model_len: int) -> int:
    if request.max_tokens is None:
        return max_model_len
    # A replayed output longer than the stated limit still needs its slots.
    return min(max(request.prompt_tokens + request.max_tokens, final_tokens), max_model_len)


RESERVATIONS: dict[str, Callable[[Request, int, int], int]] = {
    "max": _reserve_max,
    "pow2": _reserve_pow2,
    "oracle": _reserve_oracle,
    "requested": _reserve_requested,
}
"""Rule -> tokens reserved for (request, its prompt + output, max_model_len)."""


class ContiguousAllocator(Uncached):
    """An address-true arena of `num_blocks` blocks of `block_size` slots; extents are whole blocks.

    `reserve` says how many tokens an admission takes, with P prompt and O output tokens:
    `max` max_model_len; `pow2` P + the smallest power of two >= O; `oracle` P + O, whose last slot
    is never filled (these two as in the PagedAttention paper, SOSP'23, section 6.1); `requested`
    P + `max_tokens` where the request states a limit (P + O if that is more), max_model_len where
    it does not. None exceeds max_model_len.

    `placement` is a key of `PLACEMENTS`; `max_chunk_tokens` limits buddy chunks. `compaction`
    moves extents down when a request fits the free slots but no hole. It needs a placement without
    chunks. Nothing grows after admission, so nothing is ever preempted for memory.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        reserve: str = "max",
        placement: str = "buddy",
        max_chunk_tokens: int | None = None,
        compaction: bool = False,
    ) -> None:
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_model_len": max_model_len}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} (={value}) must be >= 1")
        _check_kind("reserve", reserve, RESERVATIONS)
        _check_kind("placement", placement, PLACEMENTS)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.capacity_slots = num_blocks * block_size
        self.usage = Usage()
        self.reserves_ahead = True
        self.live_tokens: Callable[[Sequence], int] = lambda row: row.extent.reserved_tokens
        """Length of compaction's copies: computed tokens, or, until a scheduler sets that, all
        that is reserved."""
        self._max_model_len = max_model_len
        self._reserve = RESERVATIONS[reserve]
        self._arena: Placement = PLACEMENTS[placement](
            num_blocks, max_chunk_blocks=_chunk_blocks(max_chunk_tokens, block_size)
        )
        self._packable: HoleList | None = None
        if compaction:
            if not isinstance(self._arena, HoleList):
                raise ValueError(f"compaction (={compaction}) cannot move placement {placement!r}")
            self._packable = self._arena
        self._held: dict[int, Sequence] = {}
        """Holder of each extent, by its first block."""
        self._copies: list[Copy] = []

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why an empty arena could not hold the request's reservation, or None. Changes nothing."""
        reserved = self._reserve(request, final_kv_tokens + 1, self._max_model_len)
        size = self._arena.round_up(-(-reserved // self.block_size))
        if size <= self._arena.max_extent:
            return None
        return (
            f"reserves {reserved} tokens, an extent of {size} blocks of {self.block_size}; "
            f"the largest that an empty memory gives is {self._arena.max_extent} blocks"
        )

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """Reserve an extent for the sequence's whole life.

        The reservation covers `new_tokens` and `known_tokens`. Refuses, changing nothing, unless
        the extent can be placed and `keep_free` blocks stay free. Changes the free memory, `usage`
        and `sequence.extent`; compaction also replaces the extents of sequences it moves and
        queues copies.
        """
        final_tokens = sequence.final_tokens
        reserved = self._reserve(sequence.request, final_tokens, self._max_model_len)
        if reserved < final_tokens:
            raise AssertionError(f"{sequence!r} needs {final_tokens} tokens, reserves {reserved}")
        arena, block_size = self._arena, self.block_size
        size = arena.round_up(-(-reserved // block_size))
        if arena.free_blocks - size < keep_free:
            return False
        start = arena.place(size)
        if start is None:
            if self._packable is None:
                return False
            self._compact(self._packable, size)
            start = arena.place(size)
            assert start is not None, f"compaction made no hole of {size}: {arena.holes()}"
        extent = Extent(start * block_size, size * block_size, reserved, final_tokens)
        sequence.extent = extent
        self._held[start] = sequence
        _add(self.usage, extent, 1)
        return True

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Nothing to do: the reservation covers it. Changes nothing.

        A length beyond the reservation is a bug of the caller and raises `AssertionError`.
        """
        reserved = sequence.extent.reserved_tokens
        if computed + new_tokens > reserved:
            raise AssertionError(f"{sequence!r}: {computed} + {new_tokens} tokens > {reserved}")
        return True

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """Nothing to do: no sequence ever needs a block after admission. Changes nothing."""
        return True

    def append_period(self) -> int:
        """0: no append needs memory."""
        return 0

    def free_count(self) -> int:
        """Free blocks, in whatever holes."""
        return self._arena.free_blocks

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether the reservation, in blocks before buddy rounding, is at most the free blocks."""
        return self._blocks(sequence) <= self._arena.free_blocks

    def held_up(self, sequence: Sequence) -> bool:
        """Whether the reservation fits the free blocks but can be placed nowhere.

        Never with compaction. Buddy rounding counts as a reason: a request whose chunk is larger
        than every free one is held up as soon as its reservation fits the sum.
        """
        if self._packable is not None:
            return False
        blocks, arena = self._blocks(sequence), self._arena
        return blocks <= arena.free_blocks and arena.round_up(blocks) > arena.largest()

    def largest_free_extent(self) -> int:
        """Slots of the largest extent that can be placed without compaction."""
        return self._arena.largest() * self.block_size

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Free the sequence's extent, if it has one. Changes free memory, `usage`, its extent."""
        extent: Extent | None = sequence.extent
        if extent is None:
            return
        start = extent.start_slot // self.block_size
        if self._held.get(start) is not sequence:
            raise AssertionError(f"{sequence!r} does not hold the extent {extent}")
        del self._held[start]
        sequence.extent = None
        self._arena.release(start, extent.slots // self.block_size)
        _add(self.usage, extent, -1)

    def take_copies(self) -> list[Copy]:
        """Moves compaction asked for since the last call, in order. Forgets them.

        Source and target of one copy may overlap: every move is to a lower address.
        """
        copies, self._copies = self._copies, []
        return copies

    def dump(self) -> dict[str, Any]:
        """Extents and holes in address order, in slots. Buddy holes are its free chunks."""
        extents = []
        for _, sequence in sorted(self._held.items()):
            start, slots, reserved, _ = sequence.extent
            owner = {"request_id": sequence.request.request_id}
            extents.append(owner | {"start": start, "slots": slots, "reserved": reserved})
        unit = self.block_size
        holes = [{"start": a * unit, "slots": size * unit} for a, size in self._arena.holes()]
        return {"capacity_slots": self.capacity_slots, "extents": extents, "holes": holes}

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Raise `AssertionError` unless every slot has one owner and `usage` is the sum of all.

        `sequences` are all those that hold memory.
        """
        self._arena.check()
        given = {row.extent.start_slot // self.block_size: row for row in sequences}
        if given != self._held or len(given) != len(sequences):
            raise AssertionError(f"given to the sequences {given} != held {self._held}")
        dump = self.dump()
        reached = 0
        for piece in sorted(dump["extents"] + dump["holes"], key=lambda piece: piece["start"]):
            if piece["start"] != reached:
                raise AssertionError(f"owned up to slot {reached}, next owner starts at {piece}")
            reached += piece["slots"]
        if reached != self.capacity_slots:
            raise AssertionError(f"owned up to slot {reached} != capacity {self.capacity_slots}")
        expected = Usage()
        for sequence in sequences:
            _add(expected, sequence.extent, 1)
        for name in Usage.__slots__:
            counted, recomputed = getattr(self.usage, name), getattr(expected, name)
            if counted != recomputed:
                raise AssertionError(f"usage.{name} {counted} != recomputed {recomputed}")

    def _blocks(self, sequence: Sequence) -> int:
        reserved = self._reserve(sequence.request, sequence.final_tokens, self._max_model_len)
        return -(-reserved // self.block_size)

    def _compact(self, arena: HoleList, size: int) -> None:
        """Move extents down, lowest first, until a hole of `size` blocks exists.

        Moving in address order keeps the copies safe: a target never reaches into the range of an
        extent that has yet to move.
        """
        starts = sorted(self._held)
        cursor = 0
        for start, following in zip(starts, [*starts[1:], self.num_blocks], strict=True):
            blocks = self._held[start].extent.slots // self.block_size
            if start > cursor:
                self._move(start, cursor)
            cursor += blocks
            if following - cursor >= size:
                arena.pack(cursor, following)
                return
        raise AssertionError(f"{arena.free_blocks} free blocks do not make a hole of {size}")

    def _move(self, source: int, target: int) -> None:
        sequence = self._held.pop(source)
        self._held[target] = sequence
        extent: Extent = sequence.extent
        sequence.extent = extent._replace(start_slot=target * self.block_size)
        live = self._live_tokens(sequence)
        if live:
            self._copies.append(Copy(extent.start_slot, target * self.block_size, live))

    def _live_tokens(self, sequence: Sequence) -> int:
        return self.live_tokens(sequence)


def _add(usage: Usage, extent: Extent, sign: int) -> None:
    usage.allocated += sign * extent.slots
    usage.over_reservation += sign * (extent.reserved_tokens - extent.final_tokens + 1)
    usage.roundup += sign * (extent.slots - extent.reserved_tokens)
    usage.reserved_tokens += sign * extent.reserved_tokens
    usage.final_tokens += sign * extent.final_tokens


def _check_kind(name: str, kind: str, known: dict[str, Any]) -> None:
    if kind not in known:
        raise ValueError(f"{name} (={kind!r}) must be one of {', '.join(known)}")


def _chunk_blocks(max_chunk_tokens: int | None, block_size: int) -> int | None:
    if max_chunk_tokens is None:
        return None
    blocks, rest = divmod(max_chunk_tokens, block_size)
    if rest or blocks < 1 or blocks & (blocks - 1):
        raise ValueError(
            f"max_chunk_tokens (={max_chunk_tokens}) must be block_size (={block_size}) times a "
            f"power of two"
        )
    return blocks
