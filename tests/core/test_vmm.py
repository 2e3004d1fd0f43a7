"""Memory over virtual addresses: what it maps, and where every slot and page is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.protocols import NO_HIT, Allocator
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.core.vmm import VmmAllocator

MODEL_LEN = 96


def sequence(prompt: int, output: int = 1) -> Sequence:
    return Sequence(Request("r", 0, prompt, output), max_model_len=10_000)


def admitted(allocator: VmmAllocator, prompt: int, output: int = 1) -> Sequence:
    one = sequence(prompt, output)
    assert allocator.admit(one, NO_HIT, prompt, prompt, 0)
    return one


def scheduler(allocator: Allocator, **changed: Any) -> VllmScheduler:
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": 40, "max_model_len": MODEL_LEN}
    return VllmScheduler(allocator, **{**limits, **changed})


def mapped_by(engine: VllmScheduler, requests: list[Request]) -> int:
    """Page sets that the plans of a whole run say were mapped, every request sent at the start."""
    for request in requests:
        assert engine.refuse(request) is None
        engine.add(request)
    mapped = 0
    while engine.has_work():
        plan = engine.schedule()
        mapped += plan.mapped_pages
        engine.complete(plan)
    return mapped


# Mappings


def test_a_sequence_maps_a_page_set_whenever_the_last_one_is_full() -> None:
    allocator = VmmAllocator(10, 4)
    one = admitted(allocator, 6, output=20)
    assert (len(one.table), allocator.take_mapped_pages(), allocator.take_mapped_pages()) == (
        2,
        2,
        0,
    )
    assert allocator.append(one, 6, 2, 8)
    assert allocator.take_mapped_pages() == 0
    assert allocator.append_bulk([one])
    assert (len(one.table), allocator.take_mapped_pages()) == (3, 1)


def test_kept_pages_are_taken_over_by_the_next_sequence_and_are_free_memory() -> None:
    allocator = VmmAllocator(10, 4)
    allocator.release(admitted(allocator, 24))
    assert allocator.free_count() == 10
    two = admitted(allocator, 8, output=40)
    assert allocator.mapping_counts() == {"mapped_page_sets": 6, "reused_page_sets": 2}
    assert allocator.append(two, 8, 16, 24)
    assert allocator.mapping_counts() == {"mapped_page_sets": 6, "reused_page_sets": 6}
    assert allocator.append(two, 24, 1, 25)
    assert allocator.mapping_counts() == {"mapped_page_sets": 7, "reused_page_sets": 6}


def test_a_range_is_kept_with_what_was_mapped_behind_its_last_sequence() -> None:
    allocator = VmmAllocator(10, 4)
    allocator.release(admitted(allocator, 20))
    allocator.release(admitted(allocator, 4))
    admitted(allocator, 20)
    assert allocator.mapping_counts() == {"mapped_page_sets": 5, "reused_page_sets": 6}


@pytest.mark.parametrize(
    ("prompt", "left"), [(4, [5, 3]), (5, [5, 1]), (12, [5, 1]), (13, [1, 3]), (24, [1, 3])]
)
def test_the_shortest_range_that_holds_the_prompt_is_taken_over_else_the_longest(
    prompt: int, left: list[int]
) -> None:
    """As `alloc_new_batch_idx` of vAttention looks for the best fit."""
    allocator = VmmAllocator(20, 4)
    ranges = [admitted(allocator, 4 * pages) for pages in (5, 1, 3)]
    for one in ranges:
        allocator.release(one)
    admitted(allocator, prompt)
    assert allocator.dump()["kept"] == left


def test_the_range_is_chosen_by_the_whole_prompt_not_by_its_first_chunk() -> None:
    allocator = VmmAllocator(20, 4)
    for one in [admitted(allocator, 4), admitted(allocator, 20)]:
        allocator.release(one)
    assert allocator.admit(sequence(20), NO_HIT, 3, 0, 0)
    assert allocator.dump()["kept"] == [1]


def test_kept_pages_are_mapped_elsewhere_the_range_left_first_before_others() -> None:
    """Ten page sets: 3 and 5 kept, 2 unmapped. A long sequence takes over the 5 and needs 8."""
    allocator = VmmAllocator(10, 4)
    first, second = admitted(allocator, 12), admitted(allocator, 20)
    allocator.release(first)
    allocator.release(second)
    admitted(allocator, 32)
    assert allocator.mapping_counts() == {"mapped_page_sets": 8 + 3, "reused_page_sets": 5}
    assert allocator.dump() == {
        "block_size": 4,
        "free": allocator.pool.free_ids(),
        "unmapped": 0,
        "kept": [2],
        "ahead": 0,
    }


def test_pages_behind_a_running_sequence_serve_others_when_nothing_else_is_left() -> None:
    allocator = VmmAllocator(10, 4)
    allocator.release(admitted(allocator, 40))
    short = admitted(allocator, 4, output=30)
    assert allocator.dump()["ahead"] == 9
    other = admitted(allocator, 28)
    assert allocator.mapping_counts() == {"mapped_page_sets": 10 + 7, "reused_page_sets": 1}
    allocator.check_integrity([short, other])
    assert allocator.append(short, 4, 8, 12)
    assert allocator.mapping_counts() == {"mapped_page_sets": 17, "reused_page_sets": 3}
    allocator.check_integrity([short, other])


def test_without_keeping_every_page_set_is_mapped_anew() -> None:
    allocator = VmmAllocator(10, 4, keep_mapped_pages=False)
    for _ in range(3):
        allocator.release(admitted(allocator, 20))
    assert allocator.mapping_counts() == {"mapped_page_sets": 15, "reused_page_sets": 0}


LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 36)), min_size=1, max_size=15)


@settings(max_examples=60)
@given(lengths=LENGTHS, tokens_per_page=st.sampled_from([1, 3, 16, 64]), keep=st.booleans())
def test_each_request_maps_what_its_final_length_needs_or_finds_it_mapped(
    lengths: list[tuple[int, int]], tokens_per_page: int, keep: bool
) -> None:
    """ceil((P + O - 1) / tokens per page) page sets in a memory that never preempts."""
    requests = [Request(f"r{i}", 0, *length) for i, length in enumerate(lengths)]
    allocator = VmmAllocator(2000, tokens_per_page, keep_mapped_pages=keep)
    needed = [-(-(prompt + output - 1) // tokens_per_page) for prompt, output in lengths]
    mapped = mapped_by(scheduler(allocator, max_num_seqs=3), requests)
    counts = allocator.mapping_counts()
    assert counts["mapped_page_sets"] == mapped
    assert mapped + counts["reused_page_sets"] == sum(needed)
    if keep:
        assert mapped <= 3 * max(needed)
    else:
        assert counts["reused_page_sets"] == 0
    if len(lengths) <= 3:
        event("no range is free when a request is admitted" if keep else "nothing kept")


def test_one_after_another_equal_requests_map_once() -> None:
    requests = [Request(f"r{i}", 0, 30, 11) for i in range(5)]
    engine = scheduler(VmmAllocator(100, 8), max_num_seqs=1)
    assert mapped_by(engine, requests) == 5
    engine = scheduler(VmmAllocator(100, 8, keep_mapped_pages=False), max_num_seqs=1)
    assert mapped_by(engine, requests) == 25


# Random operations


class VmmMachine(RuleBasedStateMachine):
    """Random admissions, growth and releases; mappings are counted page set by page set."""

    @initialize(
        page_sets=st.integers(1, 30), tokens=st.sampled_from([1, 3, 16]), keep=st.booleans()
    )
    def build(self, page_sets: int, tokens: int, keep: bool) -> None:
        self.allocator = VmmAllocator(page_sets, tokens, keep_mapped_pages=keep)
        self.computed: dict[Sequence, int] = {}
        self.ahead: dict[Sequence, int] = {}
        self.left: list[int] = []
        self.unmapped = page_sets
        self.mapped = 0

    def maps(self, one: Sequence, page_sets: int) -> None:
        for _ in range(page_sets):
            if self.ahead[one]:
                self.ahead[one] -= 1
                continue
            if not self.unmapped:
                self.unmap_one()
            self.unmapped -= 1
            self.mapped += 1

    def unmap_one(self) -> None:
        self.unmapped += 1
        if self.left:
            self.left[0] -= 1
            self.left = [pages for pages in self.left if pages]
        else:
            self.ahead[next(one for one, pages in self.ahead.items() if pages)] -= 1

    @rule(prompt=st.integers(1, 60), output=st.integers(1, 40), keep_free=st.integers(0, 3))
    def admit(self, prompt: int, output: int, keep_free: int) -> None:
        one = sequence(prompt, output)
        need = -(-prompt // self.allocator.block_size)
        before = (self.allocator.dump(), self.allocator.mapping_counts())
        fits = need + keep_free <= self.allocator.free_count()
        assert self.allocator.admit(one, NO_HIT, prompt, prompt, keep_free) == fits
        if not fits:
            assert (self.allocator.dump(), self.allocator.mapping_counts()) == before
            return
        self.computed[one] = prompt
        self.ahead[one] = 0
        if self.left:
            fitting = sorted(pages for pages in self.left if pages >= need)
            self.ahead[one] = fitting[0] if fitting else sorted(self.left)[-1]
            self.left.remove(self.ahead[one])
        self.maps(one, need)

    @precondition(lambda self: self.computed)
    @rule(data=st.data(), tokens=st.integers(1, 40))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        one = data.draw(st.sampled_from(list(self.computed)))
        tokens = min(tokens, one.final_kv_tokens - self.computed[one])
        if tokens < 1:
            return
        end = self.computed[one] + tokens
        need = max(0, -(-end // self.allocator.block_size) - len(one.table))
        fits = need <= self.allocator.free_count()
        assert self.allocator.append(one, self.computed[one], tokens, end) == fits
        if fits:
            self.computed[one] = end
            self.maps(one, need)

    @precondition(lambda self: self.computed)
    @rule()
    def grow_all_that_cross(self) -> None:
        size = self.allocator.block_size
        crossing = [
            one
            for one, computed in self.computed.items()
            if computed % size == 0 and computed < one.final_kv_tokens
        ]
        fits = len(crossing) <= self.allocator.free_count()
        before = self.allocator.mapping_counts()
        assert self.allocator.append_bulk(crossing) == fits
        if fits:
            for one in crossing:
                self.computed[one] += 1
                self.maps(one, 1)
        else:
            assert self.allocator.mapping_counts() == before

    @precondition(lambda self: self.computed)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.computed)))
        pages = len(one.table) + self.ahead.pop(one)
        self.allocator.release(one)
        assert one.table == []
        del self.computed[one]
        if self.allocator.keep_mapped_pages:
            self.left.append(pages)
        else:
            self.unmapped += pages

    @invariant()
    def every_slot_and_every_page_is_accounted_for(self) -> None:
        allocator = self.allocator
        allocator.check_integrity(list(self.computed))
        live = sum(self.computed.values())
        terms = split(
            allocator.usage,
            live_tokens=live,
            capacity=allocator.capacity_slots,
            reserves_ahead=False,
            held_up=False,
        )
        assert terms.total == allocator.capacity_slots
        assert min(terms) >= 0
        assert (terms.live, terms.over_reservation, terms.roundup) == (live, 0, 0)
        size = allocator.block_size
        finals = [max(0, len(s.table) * size - s.final_kv_tokens) for s in self.computed]
        assert terms.internal_tail == sum(finals)
        assert terms.usable_free == allocator.free_count() * size
        dump = allocator.dump()
        assert dump["kept"] == self.left
        assert (dump["ahead"], dump["unmapped"]) == (sum(self.ahead.values()), self.unmapped)
        assert allocator.mapping_counts()["mapped_page_sets"] == self.mapped


VmmMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestVmmMachine = VmmMachine.TestCase


# Refusals


def test_a_request_that_no_empty_memory_could_hold_is_named_in_page_sets() -> None:
    allocator = VmmAllocator(3, 1024)
    assert allocator.never_fits(Request("r", 0, 3072, 1), 3072) is None
    reason = allocator.never_fits(Request("r", 0, 3072, 2), 3073)
    assert reason == "needs 4 page sets of 1024 tokens, the memory has 3 (at most 3072 tokens)"


@pytest.mark.parametrize(
    ("page_sets", "tokens", "message"),
    [(0, 16, r"num_page_sets \(=0\)"), (4, 0, r"tokens_per_page \(=0\) must be >= 1 token")],
)
def test_sizes_below_one_are_refused(page_sets: int, tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VmmAllocator(page_sets, tokens)


def test_a_page_that_is_mapped_twice_is_noticed_by_the_integrity_check() -> None:
    allocator = VmmAllocator(10, 4)
    allocator.release(admitted(allocator, 8))
    allocator._kept[0] += 1
    with pytest.raises(AssertionError, match=r"unmapped \(8\) \+ kept \(3\) \+ ahead \(0\)"):
        allocator.check_integrity([])
