"""The paged allocator: tails, queue order, and a state machine that loses no block."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.block_pool import BlockPool
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence


def sequence(prompt: int, output: int = 1) -> Sequence:
    return Sequence(Request("r", 0, prompt, output), max_model_len=10_000)


@pytest.mark.parametrize("block_size", [1, 2, 7, 16, 128])
def test_mean_empty_tail_over_any_block_size_consecutive_lengths_is_half_of_one_less(
    block_size: int,
) -> None:
    """Closed form 1: exactly (B-1)/2, not B/2."""
    for first in (1, 5, 40):
        empty = 0
        for length in range(first, first + block_size):
            allocator = PagedAllocator(5000, block_size)
            held = sequence(length)
            assert allocator.admit(held, NO_HIT, length, length, 0)
            empty += allocator.usage.allocated - length
        assert empty * 2 == block_size * (block_size - 1)


def test_at_most_one_partial_block_per_sequence_and_no_external_fragmentation() -> None:
    """The brief's claim for paging, over interleaved growth of many sequences."""
    allocator = PagedAllocator(2000, 16)
    held = [sequence(length, output=40) for length in range(1, 60)]
    for one in held:
        assert allocator.admit(one, NO_HIT, one.request.prompt_tokens, 0, 0)
    for extra in range(1, 40):
        for one in held:
            computed = one.request.prompt_tokens + extra - 1
            assert allocator.append(one, computed, 1, computed + 1)
            assert len(one.table) * 16 - (computed + 1) < 16
            assert not allocator.held_up(one)
    assert allocator.largest_free_extent() == allocator.free_count() * 16


def test_freed_blocks_are_reused_last_first() -> None:
    """vllm/SPEC.md section 4: un-hashed blocks go to the front in reverse table order."""
    allocator = PagedAllocator(9, 4)
    first, second = sequence(9), sequence(4)
    assert allocator.admit(first, NO_HIT, 9, 0, 0)
    assert allocator.admit(second, NO_HIT, 4, 0, 0)
    assert (first.table, second.table) == ([1, 2, 3], [4])
    allocator.release(first)
    assert allocator.pool.free_ids() == [3, 2, 1, 5, 6, 7, 8]


def test_the_watermark_and_the_full_sequence_gate_refuse_and_change_nothing() -> None:
    allocator = PagedAllocator(11, 4)
    one = sequence(30)
    assert not allocator.admit(one, NO_HIT, 8, 41, 0)
    assert not allocator.admit(one, NO_HIT, 8, 40, 1)
    assert (one.table, allocator.free_count(), allocator.usage.allocated) == ([], 10, 0)
    assert allocator.admit(one, NO_HIT, 8, 40, 0)
    assert one.table == [1, 2]


def test_without_a_null_block_every_block_is_usable() -> None:
    assert PagedAllocator(983, 16, null_block=False).capacity_slots == 983 * 16
    assert PagedAllocator(983, 16).capacity_slots == 982 * 16


def test_a_block_is_free_only_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(6, null_block=True)
    table = pool.take(3)
    pool.hold(table[:2])
    pool.hold(table[:1])
    assert [pool.ref_cnt(block) for block in table] == [3, 2, 1]
    assert pool.give_back(table) == 1
    assert pool.free_ids() == [3, 4, 5]
    assert pool.give_back(table[:2]) == 1
    assert pool.give_back(table[:1]) == 1
    assert pool.free_ids() == [1, 2, 3, 4, 5]


def test_a_block_held_twice_is_noticed_by_the_integrity_check() -> None:
    allocator = PagedAllocator(6, 4)
    one, two = sequence(8), sequence(4)
    allocator.admit(one, NO_HIT, 8, 0, 0)
    allocator.admit(two, NO_HIT, 4, 0, 0)
    two.table = [1]
    with pytest.raises(AssertionError, match="lost block 3"):
        allocator.check_integrity([one, two])


class PagedMachine(RuleBasedStateMachine):
    """Random admissions, growth and releases against plain counting."""

    @initialize(blocks=st.integers(2, 40), block_size=st.sampled_from([1, 3, 16]))
    def build(self, blocks: int, block_size: int) -> None:
        self.allocator = PagedAllocator(blocks, block_size)
        self.held: dict[int, Sequence] = {}
        self.computed: dict[int, int] = {}
        self.next = 0

    @rule(prompt=st.integers(1, 60), output=st.integers(1, 40), keep=st.integers(0, 3))
    def admit(self, prompt: int, output: int, keep: int) -> None:
        one = sequence(prompt, output)
        blocks = -(-prompt // self.allocator.block_size)
        fits = blocks + keep <= self.allocator.free_count()
        assert self.allocator.fits_sum(one) == (blocks <= self.allocator.free_count())
        assert self.allocator.admit(one, NO_HIT, prompt, prompt, keep) == fits
        if fits:
            self.held[self.next] = one
            self.computed[self.next] = prompt
            self.next += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        one = self.held[key]
        if self.computed[key] >= one.final_kv_tokens:
            return
        before = self.allocator.free_count()
        needs = self.computed[key] % self.allocator.block_size == 0
        if self.allocator.append(one, self.computed[key], 1, self.computed[key] + 1):
            self.computed[key] += 1
            assert before - self.allocator.free_count() == needs
        else:
            assert needs
            assert before == self.allocator.free_count() == 0

    @precondition(lambda self: self.held)
    @rule()
    def grow_all_that_cross(self) -> None:
        crossing = [
            key
            for key, one in self.held.items()
            if self.computed[key] % self.allocator.block_size == 0
            and self.computed[key] < one.final_kv_tokens
        ]
        fits = len(crossing) <= self.allocator.free_count()
        assert self.allocator.append_bulk([self.held[key] for key in crossing]) == fits
        if fits:
            for key in crossing:
                self.computed[key] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.allocator.release(self.held.pop(key))
        del self.computed[key]

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        self.allocator.check_integrity(list(self.held.values()))
        terms = split(
            self.allocator.usage,
            live_tokens=sum(self.computed.values()),
            capacity=self.allocator.capacity_slots,
            reserves_ahead=False,
            held_up=False,
        )
        assert terms.total == self.allocator.capacity_slots
        assert min(terms) >= 0
        assert terms.usable_free == self.allocator.free_count() * self.allocator.block_size


PagedMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPagedMachine = PagedMachine.TestCase
