"""The naive baseline: padding, growth by copy, and both tensors held at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvsim.core.accounting import MemoryTerms, split
from kvsim.core.grow import GrowAllocator
from kvsim.core.plan import Copy
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence


def sequence(prompt: int, output: int = 8, name: str = "r") -> Sequence:
    return Sequence(Request(name, 0, prompt, output), 2048)


def admit(allocator: GrowAllocator, row: Sequence, keep_free: int = 0) -> bool:
    return allocator.admit(row, NO_HIT, row.tokens, 0, keep_free)


def terms(allocator: GrowAllocator, live: int) -> MemoryTerms:
    return split(
        allocator.usage,
        live_tokens=live,
        capacity=allocator.capacity_slots,
        reserves_ahead=allocator.reserves_ahead,
        held_up=False,
    )


def state(allocator: GrowAllocator) -> Any:
    usage = allocator.usage
    return allocator.dump(), [getattr(usage, name) for name in usage.__slots__]


def test_a_batch_is_padded_to_its_longest_prompt() -> None:
    """Prompts 5, 9, 2: 27 cells in 7 blocks of 4, 16 of them real."""
    allocator = GrowAllocator(20, 4)
    rows = [sequence(5), sequence(9), sequence(2)]
    for row in rows:
        assert admit(allocator, row)
    usage = allocator.usage
    assert (usage.allocated, usage.over_reservation, usage.roundup) == (28, 11, 1)
    assert (usage.reserved_tokens, usage.final_tokens) == (0, 0)
    assert terms(allocator, live=16).reservation == 0
    assert (allocator.free_count(), allocator.largest_free_extent()) == (13, 52)
    assert [row.extent for row in rows] == [0, 1, 2]
    assert allocator.take_copies() == []
    allocator.check_integrity(rows)


def test_a_growth_copies_the_whole_tensor_to_the_other_end_and_back() -> None:
    """3 rows: 27 cells (7 blocks), then 30 (8 blocks at 12..20), then 33 (9 blocks at 0)."""
    allocator = GrowAllocator(20, 4)
    rows = [sequence(5), sequence(9), sequence(2)]
    for row in rows:
        assert admit(allocator, row)
    assert allocator.append_period() == 1
    assert allocator.append_bulk(rows)
    assert allocator.append_bulk(rows[:2])
    assert allocator.take_copies() == [Copy(0, 48, 27), Copy(48, 0, 30)]
    assert allocator.take_copies() == []
    usage = allocator.usage
    assert (usage.allocated, usage.over_reservation, usage.roundup) == (36, 33 - 16 - 5, 3)
    assert terms(allocator, live=21).reservation == 0


def test_a_growth_needs_room_for_both_tensors_and_a_refusal_changes_nothing() -> None:
    """8 + 8 blocks fit 16; the next growth wants 8 + 9."""
    allocator = GrowAllocator(16, 4)
    row = sequence(31)
    assert admit(allocator, row)
    assert allocator.append_bulk([row])
    before = state(allocator)
    assert not allocator.append_bulk([row])
    assert state(allocator) == before
    assert len(allocator.take_copies()) == 1


def test_rows_join_only_while_nothing_is_computed() -> None:
    allocator = GrowAllocator(20, 4)
    first, late = sequence(5), sequence(5)
    assert admit(allocator, first)
    assert allocator.append_bulk([first])
    assert not admit(allocator, late)
    allocator.release(first)
    assert admit(allocator, late)


def test_a_chunk_of_the_prompt_fits_the_width_and_closes_the_batch() -> None:
    allocator = GrowAllocator(20, 4)
    row = sequence(10)
    assert admit(allocator, row)
    assert not allocator.append(row, 6, 5, 6 + 5)
    assert admit(allocator, sequence(3))
    assert allocator.append(row, 6, 4, 6 + 4)
    assert not admit(allocator, sequence(3))


def test_an_admission_that_does_not_fit_leaves_the_batch_as_it_was() -> None:
    """A prompt of 20 would widen both rows: 40 cells, 10 blocks."""
    allocator = GrowAllocator(10, 4)
    assert admit(allocator, sequence(5))
    before = state(allocator)
    wide = sequence(20)
    assert allocator.fits_sum(wide)
    assert not admit(allocator, wide, keep_free=1)
    too_wide = sequence(21)
    assert not allocator.fits_sum(too_wide)
    assert not admit(allocator, too_wide)
    assert state(allocator) == before
    assert too_wide.extent is None
    assert not allocator.held_up(too_wide)
    assert admit(allocator, wide)


def test_rows_that_leave_are_padding_until_the_last_one_frees_the_tensor() -> None:
    allocator = GrowAllocator(20, 4)
    rows = [sequence(5), sequence(9)]
    for row in rows:
        assert admit(allocator, row)
    assert allocator.append_bulk(rows)
    allocator.release(rows[0])
    assert rows[0].extent is None
    assert (allocator.usage.allocated, allocator.usage.over_reservation) == (20, 10)
    allocator.check_integrity(rows[1:])
    allocator.release(rows[1])
    allocator.check_integrity([])
    assert allocator.free_count() == 20
    assert allocator.usage.allocated == allocator.usage.over_reservation == 0


def test_releasing_a_row_of_another_batch_is_a_bug() -> None:
    allocator = GrowAllocator(20, 4)
    stranger = sequence(5)
    allocator.release(stranger)
    stranger.extent = 0
    with pytest.raises(AssertionError, match="has no row of this batch"):
        allocator.release(stranger)


def test_a_row_of_a_lost_batch_returns_with_the_tokens_it_had_sampled() -> None:
    allocator = GrowAllocator(20, 4)
    row = sequence(5)
    row.tokens = 9
    assert admit(allocator, row)
    assert (allocator.dump()["width"], allocator.usage.over_reservation) == (9, 0)


@pytest.mark.parametrize(
    ("num_blocks", "prompt", "final", "fits"),
    [
        (3, 5, 8, False),  # 2 blocks old (7 tokens), 2 new
        (4, 5, 8, True),
        (5, 5, 9, True),  # 2 old (8 tokens), 3 new
        (4, 5, 9, False),
        (3, 9, 9, True),  # never grows
        (2, 9, 9, False),
    ],
)
def test_a_lone_request_needs_room_for_its_last_growth(
    num_blocks: int, prompt: int, final: int, fits: bool
) -> None:
    allocator = GrowAllocator(num_blocks, 4)
    reason = allocator.never_fits(Request("r", 0, prompt, final + 1 - prompt), final)
    assert (reason is None) == fits
    if reason:
        assert f"the memory has {num_blocks} blocks of 4" in reason


@pytest.mark.parametrize("prompt", [1, 5, 8])
@pytest.mark.parametrize("num_blocks", range(2, 12))
def test_a_lone_request_that_may_fit_reaches_its_last_growth(num_blocks: int, prompt: int) -> None:
    """No fragmentation of its own: what `never_fits` lets pass never gets stuck."""
    allocator = GrowAllocator(num_blocks, 4)
    final = prompt
    while allocator.never_fits(Request("r", 0, prompt, final + 2 - prompt), final + 1) is None:
        final += 1
    if allocator.never_fits(Request("r", 0, prompt, 1), prompt) is not None:
        return
    row = sequence(prompt)
    assert admit(allocator, row)
    for _ in range(final - prompt):
        assert allocator.append_bulk([row])
    assert not allocator.append_bulk([row])


@pytest.mark.parametrize("name", ["num_blocks", "block_size"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} \(=0\) must be >= 1"):
        GrowAllocator(**({"num_blocks": 4, "block_size": 4} | {name: 0}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a, rows: rows.pop(), r"rows of the sequences \[0\] != rows held \[0, 1\]"),
        (lambda a, rows: setattr(a, "_start", 18), "tensor ends at block 23 > 20 blocks"),
        (lambda a, rows: setattr(a, "_blocks", 6), "18 cells need 5 != 6"),
        (lambda a, rows: setattr(a.usage, "over_reservation", 5), "over_reservation 5 != recom"),
        (lambda a, rows: setattr(a, "_rows", 1), r"rows held \[0, 1\] are not distinct rows of 1"),
    ],
)
def test_the_integrity_check_names_both_sides_of_what_is_wrong(damage: Any, message: str) -> None:
    allocator = GrowAllocator(20, 4)
    rows = [sequence(5), sequence(9)]
    for row in rows:
        assert admit(allocator, row)
    allocator.check_integrity(rows)
    damage(allocator, rows)
    with pytest.raises(AssertionError, match=message):
        allocator.check_integrity(rows)


class GrowMachine(RuleBasedStateMachine):
    """Batches in a small memory; every cell of a row is either its own token or padding."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = GrowAllocator(30, 4)
        self.rows: list[Sequence] = []
        self.width = 0
        self.height = 0
        self.runs = False

    @rule(prompt=st.integers(1, 30), keep_free=st.sampled_from([0, 0, 2]))
    def admit(self, prompt: int, keep_free: int) -> None:
        row = sequence(prompt)
        width, height = max(self.width, prompt), self.height + 1
        blocks = -(-width * height // 4)
        before = state(self.allocator)
        assert self.allocator.fits_sum(row) == (blocks <= 30)
        admitted = admit(self.allocator, row, keep_free)
        assert admitted == (not self.runs and blocks + keep_free <= 30)
        if admitted:
            row.computed = prompt
            self.width, self.height = width, height
            self.rows.append(row)
        else:
            assert state(self.allocator) == before

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        growing = data.draw(st.lists(st.sampled_from(self.rows), unique=True))
        old, new = -(-self.width * self.height // 4), -(-(self.width + 1) * self.height // 4)
        start = self.allocator.dump()["start"]
        grown = self.allocator.append_bulk(growing)
        assert grown == (old + new <= 30)
        copies = self.allocator.take_copies()
        if grown:
            target = self.allocator.dump()["start"]
            assert copies == [Copy(start, target, self.width * self.height)]
            assert target >= start + 4 * old or target + 4 * new <= start
            self.width += 1
            self.runs = True
            for row in growing:
                row.computed += 1
        else:
            assert copies == []

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        self.rows.remove(row)
        self.allocator.release(row)
        if not self.rows:
            self.width = self.height = 0
            self.runs = False

    @invariant()
    def slots_are_real_padding_or_free(self) -> None:
        self.allocator.check_integrity(self.rows)
        live = sum(row.computed for row in self.rows)
        found = terms(self.allocator, live)
        assert found.total == 120
        assert (found.live, found.reservation) == (live, 0)
        assert found.over_reservation == self.width * self.height - live
        assert found.roundup == -(self.width * self.height) % 4


TestGrow = GrowMachine.TestCase
