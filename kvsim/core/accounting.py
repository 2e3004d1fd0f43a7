"""The conservation equation of KV memory, in slots.

`live + reservation + internal + external + usable_free == capacity` after every step, for every
allocator. Definitions are in docs/glossary.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Usage:
    """What an allocator knows about its slots, kept up to date by it. All figures are slots.

    Everything that is linear in these counts may be integrated before it is split into terms.
    """

    __slots__ = (
        "allocated",
        "cached",
        "final_tokens",
        "internal_tail",
        "out_of_window",
        "over_reservation",
        "reserved_tokens",
        "roundup",
        "shared",
        "slots_per_token",
        "state",
    )

    def __init__(self) -> None:
        self.allocated = 0
        """Slots handed out, a block held by several tables counted once."""
        self.internal_tail = 0
        """Slots of last blocks that a finished length leaves empty for ever."""
        self.over_reservation = 0
        """Reserved slots beyond the final KV length."""
        self.roundup = 0
        """Slots of an extent beyond its reservation (buddy sizes, block rounding)."""
        self.shared = 0
        """Live slots counted more than once when every sequence counts its own tokens."""
        self.slots_per_token = 1
        """Slots that a token fills: one per layer group where there are several. A constant."""
        self.out_of_window = 0
        """Slots that computed tokens no longer fill because they left a layer group's window."""
        self.state = 0
        """Slots that requests fill whatever their length: states of linear attention."""
        self.cached = 0
        """Free slots whose content can still be found by the prefix cache."""
        self.reserved_tokens = 0
        """Sum over extents of the reserved length (0 where nothing is reserved)."""
        self.final_tokens = 0
        """Sum over extents of prompt + output (0 where nothing is reserved)."""

    def live_slots(self, tokens: int) -> int:
        """Slots that `tokens` computed tokens fill, shared ones counted for every holder."""
        return tokens * self.slots_per_token - self.out_of_window + self.state


class MemoryTerms(NamedTuple):
    """The five terms and their details, in slots (or any multiple of slots, e.g. slot-seconds)."""

    live: int
    reservation_tail: int
    reservation_ahead: int
    internal_tail: int
    over_reservation: int
    roundup: int
    external: int
    usable_free: int
    cached: int

    @property
    def reservation(self) -> int:
        """Allocated slots, empty now, that their sequence will fill."""
        return self.reservation_tail + self.reservation_ahead

    @property
    def internal(self) -> int:
        """Allocated slots that will never be filled."""
        return self.internal_tail + self.over_reservation + self.roundup

    @property
    def total(self) -> int:
        """Sum of the five terms; equals the capacity."""
        return self.live + self.reservation + self.internal + self.external + self.usable_free


def split(
    usage: Usage, *, live_tokens: int, capacity: int, reserves_ahead: bool, held_up: bool
) -> MemoryTerms:
    """Split `capacity` slots into the terms.

    `live_tokens` counts every sequence's computed tokens; shared slots are subtracted once here.
    `reserves_ahead` names the kind of an allocator's reservation: address space ahead of the
    sequence (contiguous) or the rest of its current last block (paged). `held_up` says that the
    head of the queue fits the free slots but no free extent, which makes them external.
    """
    live = live_tokens - usage.shared
    never_filled = usage.internal_tail + usage.over_reservation + usage.roundup
    reservation = usage.allocated - live - never_filled
    free = capacity - usage.allocated
    return MemoryTerms(
        live=live,
        reservation_tail=0 if reserves_ahead else reservation,
        reservation_ahead=reservation if reserves_ahead else 0,
        internal_tail=usage.internal_tail,
        over_reservation=usage.over_reservation,
        roundup=usage.roundup,
        external=free if held_up else 0,
        usable_free=0 if held_up else free,
        cached=0 if held_up else usage.cached,
    )
