"""Placement rules against hand-made pictures, FIELD's closed form 3, and a naive block map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvsim.core.placement import PLACEMENTS, BestFit, Buddy, FirstFit, HoleList, NextFit


def sizes(holes: list[tuple[int, int]]) -> list[int]:
    return [size for _, size in holes]


def picture(kind: str) -> Any:
    """Holes 0..8, 10..14 and 26..32 of 32 blocks; the latest placement ended at block 24."""
    arena = PLACEMENTS[kind](32)
    pieces = (8, 2, 2, 2, 2, 8, 2, 2, 4)
    starts = [arena.place(size) for size in pieces]
    assert starts == [0, 8, 10, 12, 14, 16, 24, 26, 28]
    arena.release(16, 8)
    assert arena.place(8) == 16
    for start, size in ((0, 8), (10, 2), (12, 2), (26, 2), (28, 4)):
        arena.release(start, size)
    return arena


@pytest.mark.parametrize(
    ("kind", "address"), [("first_fit", 0), ("best_fit", 10), ("next_fit", 26), ("buddy", 28)]
)
def test_the_four_rules_choose_four_places_for_four_blocks(kind: str, address: int) -> None:
    arena = picture(kind)
    assert arena.place(4) == address
    arena.check()


def test_only_buddy_keeps_neighbours_apart_that_are_not_buddies() -> None:
    assert picture("first_fit").holes() == [(0, 8), (10, 4), (26, 6)]
    assert picture("buddy").holes() == [(0, 8), (10, 2), (12, 2), (26, 2), (28, 4)]


def test_best_fit_takes_the_lowest_of_equal_holes() -> None:
    arena = BestFit(12)
    for size in (2, 1, 3, 1, 3, 2):
        arena.place(size)
    for start, size in ((0, 2), (3, 3), (7, 3)):
        arena.release(start, size)
    assert [arena.place(3), arena.place(3), arena.place(2)] == [3, 7, 0]


def test_next_fit_goes_on_after_the_latest_placement_and_wraps() -> None:
    arena = NextFit(10)
    assert [arena.place(3), arena.place(3), arena.place(2)] == [0, 3, 6]
    arena.release(0, 3)
    assert arena.place(2) == 8
    assert arena.place(2) == 0


def test_next_fit_uses_a_hole_that_reaches_across_the_latest_placement_from_its_low_end() -> None:
    arena = NextFit(10)
    for size in (2, 2, 2):
        arena.place(size)
    arena.release(0, 2)
    arena.release(4, 2)
    assert arena.holes() == [(0, 2), (4, 6)]
    assert arena.place(2) == 4


def test_holes_join_with_both_neighbours() -> None:
    arena = FirstFit(9)
    for _ in range(3):
        arena.place(3)
    arena.release(0, 3)
    arena.release(6, 3)
    assert arena.holes() == [(0, 3), (6, 3)]
    arena.release(3, 3)
    assert arena.holes() == [(0, 9)]
    assert arena.largest() == 9


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_a_full_arena_hands_out_nothing_and_a_refusal_changes_nothing(kind: str) -> None:
    arena = PLACEMENTS[kind](8)
    assert arena.place(8) == 0
    assert arena.place(1) is None
    assert (arena.free_blocks, arena.largest(), arena.holes()) == (0, 0, [])
    arena.release(0, 8)
    assert (arena.free_blocks, arena.largest(), arena.holes()) == (8, 8, [(0, 8)])


def test_packing_gathers_the_holes_below_a_limit_only() -> None:
    arena = FirstFit(20)
    for size in (2, 3, 4, 5, 6):
        arena.place(size)
    for start, size in ((0, 2), (5, 4), (14, 6)):
        arena.release(start, size)
    arena.pack(3, 9)
    assert arena.holes() == [(3, 6), (14, 6)]
    arena.check()


def test_buddy_starts_as_the_binary_decomposition_of_the_papers_983_blocks() -> None:
    """FIELD section 3, closed form 3: from the largest chunk down."""
    holes = Buddy(983).holes()
    assert sizes(holes) == [512, 256, 128, 64, 16, 4, 2, 1]
    assert [start for start, _ in holes] == [0, 512, 768, 896, 960, 976, 980, 982]


def test_buddy_with_chunks_of_2048_tokens_starts_as_seven_chunks_and_the_rest() -> None:
    arena = Buddy(983, max_chunk_blocks=128)
    assert sizes(arena.holes()) == [128] * 7 + [64, 16, 4, 2, 1]
    assert arena.max_extent == 128


def test_buddy_never_joins_chunks_of_the_limit() -> None:
    arena = Buddy(8, max_chunk_blocks=2)
    for start in [arena.place(2) for _ in range(4)]:
        assert start is not None
        arena.release(start, 2)
    assert arena.holes() == [(0, 2), (2, 2), (4, 2), (6, 2)]


def test_buddy_splits_the_smallest_sufficient_chunk_and_keeps_the_lower_half() -> None:
    arena = Buddy(24)
    assert arena.place(2) == 16
    assert arena.holes() == [(0, 16), (18, 2), (20, 4)]
    assert [arena.place(2), arena.place(8), arena.place(8)] == [18, 0, 8]


def test_buddy_does_not_join_equal_neighbours_that_are_not_buddies() -> None:
    arena = Buddy(8)
    for _ in range(4):
        arena.place(2)
    arena.release(2, 2)
    arena.release(4, 2)
    assert arena.holes() == [(2, 2), (4, 2)]
    assert arena.place(4) is None
    arena.release(0, 2)
    assert arena.holes() == [(0, 4), (4, 2)]


@pytest.mark.parametrize(
    ("blocks", "extent"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (128, 128), (129, 256)]
)
def test_buddy_rounds_up_to_a_power_of_two(blocks: int, extent: int) -> None:
    assert Buddy(512).round_up(blocks) == extent
    assert FirstFit(512).round_up(blocks) == blocks


@given(data=st.data(), capacity=st.integers(1, 300), limit=st.sampled_from([None, 1, 4, 32]))
def test_after_all_frees_the_initial_chunks_return(
    data: st.DataObject, capacity: int, limit: int | None
) -> None:
    """FIELD section 3, closed form 3: free + used = C, and the initial multiset at the end."""
    arena = Buddy(capacity, max_chunk_blocks=limit)
    initial = arena.holes()
    held = []
    for wanted in data.draw(st.lists(st.integers(1, 40), max_size=30)):
        size = arena.round_up(wanted)
        start = arena.place(size)
        if start is not None:
            held.append((start, size))
        assert arena.free_blocks + sum(size for _, size in held) == capacity
    for start, size in data.draw(st.permutations(held)):
        arena.release(start, size)
    assert arena.holes() == initial
    assert arena.free_blocks == capacity


@pytest.mark.parametrize("limit", [0, 3, 6, 96])
def test_a_chunk_limit_that_is_no_power_of_two_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=rf"max_chunk_blocks \(={limit}\) must be a power of two"):
        Buddy(100, max_chunk_blocks=limit)


@pytest.mark.parametrize("kind", ["first_fit", "best_fit", "next_fit"])
def test_a_chunk_limit_without_buddy_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"max_chunk_tokens .* needs placement buddy"):
        PLACEMENTS[kind](100, max_chunk_blocks=4)


class CountingList(list[int]):
    """Counts how many elements a search looks at."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        for value in super().__iter__():
            type(self).looks += 1
            yield value

    def __getitem__(self, index: Any) -> Any:
        type(self).looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", ["first_fit", "best_fit", "next_fit"])
def test_a_blocked_retry_looks_at_no_hole(kind: str) -> None:
    arena = PLACEMENTS[kind](600)
    assert isinstance(arena, HoleList)
    for _ in range(600):
        arena.place(1)
    for start in range(0, 600, 2):
        arena.release(start, 1)
    assert len(arena.holes()) == 300
    CountingList.looks = 0
    arena._lengths = CountingList(arena._lengths)
    arena.place(2)
    after_first = CountingList.looks
    for _ in range(1000):
        assert arena.place(2) is None
    assert CountingList.looks == after_first <= 300
    arena.release(1, 1)
    assert arena.place(2) is not None


def naive_buddy_chunks(free: list[bool], limit: int) -> list[tuple[int, int]]:
    """Maximal free chunks of a pool, found by splitting every initial chunk in halves."""

    def chunks(start: int, size: int) -> list[tuple[int, int]]:
        if all(free[start : start + size]):
            return [(start, size)]
        if size == 1:
            return []
        half = size // 2
        return chunks(start, half) + chunks(start + half, half)

    found, address = [], 0
    while address < len(free):
        size = limit
        while size > len(free) - address:
            size //= 2
        found += chunks(address, size)
        address += size
    return found


def naive_holes(free: list[bool]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for address, is_free in enumerate(free):
        if not is_free:
            continue
        if found and sum(found[-1]) == address:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((address, 1))
    return found


class PlacementMachine(RuleBasedStateMachine):
    """A placement beside a map with one entry per block."""

    kind = "first_fit"
    capacity = 53
    limit: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.arena = PLACEMENTS[self.kind](self.capacity, max_chunk_blocks=self.limit)
        self.free = [True] * self.capacity
        self.held: list[tuple[int, int]] = []
        self.rover = 0

    def expected_holes(self) -> list[tuple[int, int]]:
        if self.kind == "buddy":
            return naive_buddy_chunks(self.free, self.limit or 64)
        return naive_holes(self.free)

    def choose(self, size: int) -> int | None:
        fitting = [hole for hole in self.expected_holes() if hole[1] >= size]
        if not fitting:
            return None
        if self.kind in ("best_fit", "buddy"):
            return min(fitting, key=lambda hole: (hole[1], hole[0]))[0]
        if self.kind == "next_fit":
            fitting.sort(key=lambda hole: (sum(hole) <= self.rover, hole[0]))
        return fitting[0][0]

    @rule(wanted=st.integers(1, 12))
    def place(self, wanted: int) -> None:
        size = self.arena.round_up(wanted)
        expected = self.choose(size)
        assert self.arena.place(size) == expected
        if expected is not None:
            self.free[expected : expected + size] = [False] * size
            self.held.append((expected, size))
            self.rover = expected + size

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        start, size = self.held.pop(index)
        self.arena.release(start, size)
        self.free[start : start + size] = [True] * size

    @invariant()
    def same_as_the_map(self) -> None:
        self.arena.check()
        holes = self.expected_holes()
        assert self.arena.holes() == holes
        assert self.arena.free_blocks == sum(self.free)
        assert self.arena.largest() == max((size for _, size in holes), default=0)


class BestFitMachine(PlacementMachine):
    kind = "best_fit"


class NextFitMachine(PlacementMachine):
    kind = "next_fit"


class BuddyMachine(PlacementMachine):
    kind = "buddy"


class LimitedBuddyMachine(PlacementMachine):
    kind = "buddy"
    limit = 16


TestFirstFit = PlacementMachine.TestCase
TestBestFit = BestFitMachine.TestCase
TestNextFit = NextFitMachine.TestCase
TestBuddy = BuddyMachine.TestCase
TestLimitedBuddy = LimitedBuddyMachine.TestCase
