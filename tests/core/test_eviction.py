"""Eviction orders against plain lists, and the best possible order against all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.eviction import (
    EVICTION_ORDERS,
    BeladyOrder,
    EvictionOrder,
    FifoOrder,
    LfuOrder,
    LruOrder,
    NextUses,
)
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request, Sequence
from kvsim.scenario.foresight import ForesightAllocator

NUM_BLOCKS = 12
NEXT_USE = {key: key * 7 % 5 for key in range(200)}
"""Of a content, for `belady`: many ties."""

ORDERS: dict[str, Callable[[], EvictionOrder]] = {
    **EVICTION_ORDERS,
    "belady": lambda: BeladyOrder(NEXT_USE.__getitem__),
}


# Examples


def chain(order: EvictionOrder, blocks: list[int], keys: list[int]) -> None:
    """A sequence fills the blocks and ends: its last block is freed first."""
    order.sealed(blocks, keys)
    order.add(reversed(blocks))


def test_the_least_recently_freed_block_is_given_up_first() -> None:
    order = LruOrder()
    chain(order, [1, 2], [10, 11])
    chain(order, [3], [12])
    order.reuse(2)
    order.add([2])
    assert order.pop(3) == [1, 3, 2]


def test_the_oldest_content_is_given_up_first_however_recently_it_was_used() -> None:
    order = FifoOrder()
    chain(order, [1], [10])
    chain(order, [2], [11])
    order.reuse(1)
    order.hit([1])
    order.add([1])
    assert order.pop(2) == [1, 2]


def test_the_least_often_found_content_is_given_up_first() -> None:
    order = LfuOrder()
    chain(order, [1], [10])
    chain(order, [2], [11])
    for _ in range(2):
        order.reuse(1)
        order.hit([1])
        order.add([1])
    assert order.pop(2) == [2, 1]


def test_the_content_that_is_wanted_last_is_given_up_first() -> None:
    uses = NextUses([[10], [11], [12], [11]])
    order = BeladyOrder(uses)
    for block, key in enumerate([10, 11, 12, 13]):
        chain(order, [block], [key])
    assert order.pop(4) == [3, 2, 1, 0]


def test_next_uses_go_by_as_requests_are_served() -> None:
    uses = NextUses([[7, 8], [8], [7]])
    assert (uses(7), uses(8), uses(9)) == (0, 0, NextUses.NEVER)
    uses.served([7, 8])
    assert (uses(7), uses(8)) == (2, 1)
    uses.served([8])
    assert (uses(7), uses(8)) == (2, NextUses.NEVER)


@pytest.mark.parametrize("name", ORDERS)
def test_the_tail_of_a_chain_is_given_up_before_its_head(name: str) -> None:
    """Wanted at the same time, filled at the same time, used as often: a head is worth more."""
    order = ORDERS[name]()
    chain(order, [4, 2, 9], [5, 10, 15])
    assert order.pop(3) == [9, 2, 4]


def test_a_run_of_private_blocks_is_cut_from_its_end() -> None:
    order = LruOrder()
    order.add([1])
    order.add_run([2, 3, 4])
    order.add([5])
    assert order.ids() == [1, 4, 3, 2, 5]
    assert order.pop(2) == [1, 4]
    assert order.ids() == [3, 2, 5]
    assert order.pop(3) == [3, 2, 5]
    assert len(order) == 0


# Everything at random


class OrderMachine(RuleBasedStateMachine):
    """The free blocks as a list in the order in which they were freed."""

    @initialize(name=st.sampled_from(sorted(ORDERS)))
    def build(self, name: str) -> None:
        self.name = name
        self.order = ORDERS[name]()
        self.empty = list(range(NUM_BLOCKS))
        self.held: list[int] = []
        self.free: list[int] = []
        self.runs: list[int] = []
        """Free blocks that nothing can find, so that they are never used again."""
        self.filled: list[int] = []
        """Blocks in the order of their contents' age; the latest place of a block counts."""
        self.uses: dict[int, int] = {}
        self.key: dict[int, int] = {}

    def rank(self, block: int) -> Any:
        ranks = {
            "lru": 0,
            "fifo": len(self.filled) - self.filled[::-1].index(block),
            "lfu": self.uses[block],
            "belady": -NEXT_USE[self.key[block]],
        }
        return ranks[self.name]

    def in_order(self) -> list[int]:
        return sorted(self.free, key=self.rank)

    @precondition(lambda self: self.empty)
    @rule(data=st.data(), first_key=st.integers(0, 190))
    def seal(self, data: st.DataObject, first_key: int) -> None:
        count = data.draw(st.integers(1, min(4, len(self.empty))))
        blocks = [self.empty.pop() for _ in range(count)]
        keys = range(first_key, first_key + count)
        self.order.sealed(blocks, keys)
        self.held += blocks
        self.filled += reversed(blocks)
        for block, key in zip(blocks, keys, strict=True):
            self.uses[block] = 0
            self.key[block] = key

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        self.order.add(blocks)
        self.free += blocks
        self.held = [block for block in self.held if block not in blocks]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back_a_private_run(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        self.order.add_run(list(blocks))
        self.free += reversed(blocks)
        self.runs += blocks
        self.held = [block for block in self.held if block not in blocks]

    def findable(self) -> list[int]:
        return [block for block in [*self.free, *self.held] if block not in self.runs]

    @precondition(lambda self: bool(self.findable()))
    @rule(data=st.data())
    def use_again(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.findable()))
        if block in self.free:
            assert block in self.order
            self.order.reuse(block)
            self.free.remove(block)
            self.held.append(block)
        self.order.hit([block])
        self.uses[block] += 1

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.free)))
        expected = self.in_order()[:count]
        assert self.order.pop(count) == expected
        self.free = [block for block in self.free if block not in expected]
        self.runs = [block for block in self.runs if block not in expected]
        self.empty += expected

    @invariant()
    def the_order_is_that_of_the_list(self) -> None:
        assert self.order.ids() == self.in_order()
        assert len(self.order) == len(self.free)
        for block in range(NUM_BLOCKS):
            expected = block in self.free
            # a run of an LRU queue is one entry: its blocks are not looked for
            if block not in self.runs:
                assert (block in self.order) == expected


OrderMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestOrderMachine = OrderMachine.TestCase


# Which order finds most

Trace = list[tuple[str, int]]
"""Per request the stream and the number of whole blocks of its prompt, one token more."""


def hit_blocks(trace: Trace, num_blocks: int, eviction: EvictionOrder | None) -> int:
    """Blocks found by the requests, one after the other; `None` knows the future."""
    requests = [
        Request(str(index), index, blocks + 1, 1, segments=((stream, blocks), (object(), 1)))
        for index, (stream, blocks) in enumerate(trace)
    ]
    if eviction is None:
        foresight = ForesightAllocator(num_blocks, 1)
        foresight.expect(requests, 100)
        allocator: PagedAllocator = foresight
    else:
        allocator = PagedAllocator(num_blocks, 1, eviction=eviction)
    found = 0
    for request in requests:
        one = Sequence(request, 100)
        hit = allocator.lookup(one)
        found += hit.tokens
        assert allocator.admit(one, hit, one.tokens - hit.tokens, one.tokens, 0)
        one.computed = one.tokens
        allocator.release(one)
        allocator.check_integrity([])
    return found


def most_hit_blocks(trace: Trace, num_usable: int) -> int:
    """Tries every set of blocks that could be kept after each request."""
    prompts = [[(stream, index) for index in range(blocks)] for stream, blocks in trace]

    @cache
    def best(turn: int, kept: frozenset[tuple[str, int]]) -> int:
        if turn == len(prompts):
            return 0
        prompt = prompts[turn]
        hits = 0
        while hits < len(prompt) and prompt[hits] in kept:
            hits += 1
        # the prompt's blocks, and one that holds its last token and is no use to anybody
        others = sorted(kept - set(prompt))
        room = num_usable - len(prompt) - 1
        choices = [others] if len(others) <= room else [*combinations(others, room)]
        after = max(best(turn + 1, frozenset([*prompt, *choice])) for choice in choices)
        return hits + after

    return best(0, frozenset())


TRACES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), min_size=2, max_size=12)


@settings(max_examples=120)
@given(trace=TRACES, num_usable=st.integers(4, 8))
def test_no_order_finds_more_than_the_one_that_knows_the_future(
    trace: Trace, num_usable: int
) -> None:
    """One request in flight, by brute force over everything that could have been kept."""
    most = most_hit_blocks(trace, num_usable)
    assert hit_blocks(trace, num_usable + 1, None) == most
    for build in EVICTION_ORDERS.values():
        assert hit_blocks(trace, num_usable + 1, build()) <= most


@settings(max_examples=60)
@given(trace=TRACES)
def test_a_larger_memory_never_finds_less_under_lru(trace: Trace) -> None:
    """FIELD.md section 3.6: LRU obeys inclusion, with one request in flight."""
    hits = [hit_blocks(trace, blocks, LruOrder()) for blocks in range(5, 12)]
    assert hits == sorted(hits)
