"""One held or cached block pins a page of every tensor; evicting page by page frees whole pages."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.eviction import EVICTION_ORDERS, EvictionOrder, LruOrder
from kvsim.core.page_aware import PageAwareOrder
from kvsim.core.page_pins import PageSets, PinningPool
from kvsim.core.paged import PagedAllocator
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.request import Sequence
from tests.core.decisions import PROMPTS, decisions
from tests.core.shadow_cache import admit, admit_and_release, sequence

ORDERS = ("lru", "page_aware")


def order_of(name: str, pages: PageSets) -> EvictionOrder:
    return PageAwareOrder(pages) if name == "page_aware" else EVICTION_ORDERS[name]()


def allocator_of(
    order: str, blocks: int, per_page: int, *, block_size: int = 4, **more: Any
) -> PagedAllocator:
    pages = PageSets(blocks, per_page)
    eviction = order_of(order, pages)
    return PagedAllocator(blocks, block_size, eviction=eviction, pages=pages, **more)


def pool_of(
    order: str, last_used: dict[int, int], held: set[int], *, blocks: int, per_page: int
) -> PinningPool:
    """A pool in which these blocks are cached, the others held or empty."""
    pages = PageSets(blocks, per_page)
    cache = PrefixCache(order_of(order, pages))
    pool = PinningPool(blocks, null_block=False, cache=cache, pages=pages)
    pool.take(blocks)
    cached = sorted(last_used, key=lambda block: (last_used[block], block))
    cache.seal(cached, cached)
    pool.give_back([block for block in range(blocks) if block not in held | last_used.keys()])
    for block in cached:
        pool.give_back([block], 1)
    pool.check_integrity([sorted(held)])
    return pool


def evicted(pool: PinningPool, count: int) -> tuple[list[int], int]:
    """The blocks that would be evicted next, and the page sets that come back with them."""
    assert pool.cache is not None
    blocks = pool.cache.free.ids()[:count]
    return blocks, pool.pages.freed_by(blocks)


# The reported case (https://github.com/anthony-chaudhary/fak/issues/10721)


def test_whole_pages_free_ten_times_more_than_lru_while_survivors_are_scattered() -> None:
    """Twenty pages of 64 blocks, each filled by one request; the heads of 19 are used again.

    Half of the blocks, evicted by LRU, frees just the one page without a survivor.
    """
    freed = {}
    for order in ORDERS:
        allocator = allocator_of(order, 20 * 64, 64, null_block=False)
        for page in range(20):
            admit_and_release(allocator, sequence(((page, 256),), name=f"r{page}"))
        for page in range(1, 20):
            user = sequence(((page, 5),), name=f"again{page}")
            assert admit(allocator, user) == 4
            allocator.release(user)
        assert isinstance(allocator.pool, PinningPool)
        assert allocator.pool.pages.pinned == 20
        blocks, freed[order] = evicted(allocator.pool, 640)
        assert len(blocks) == 640
    assert freed == {"lru": 1, "page_aware": 10}


def test_what_lru_left_behind_is_freed_page_by_page_block_by_block() -> None:
    """Survivors alone, one per page: each block given up frees a page set."""
    survivors = {page * 64 + 7: page for page in range(10)}
    pool = pool_of("page_aware", survivors, set(), blocks=640, per_page=64)
    assert evicted(pool, 4) == ([7, 71, 135, 199], 4)


def test_a_page_with_a_held_block_is_given_up_last() -> None:
    last_used = {0: 1, 2: 8, 3: 9, 4: 5, 5: 6}
    aware = pool_of("page_aware", last_used, {1}, blocks=6, per_page=2)
    assert evicted(aware, 5) == ([4, 5, 2, 3, 0], 2)
    lru = pool_of("lru", last_used, {1}, blocks=6, per_page=2)
    assert evicted(lru, 1) == ([0], 0)


def test_fewer_cached_blocks_come_before_older_ones() -> None:
    pool = pool_of("page_aware", {0: 1, 1: 2, 4: 50, 8: 40}, set(), blocks=12, per_page=4)
    assert evicted(pool, 3) == ([8, 4, 0], 2)


def test_a_page_set_that_was_begun_is_finished_although_its_blocks_are_held_again() -> None:
    """Otherwise single blocks would be taken from one page set after the other."""
    pool = pool_of(
        "page_aware", {block: block for block in range(12)}, set(), blocks=12, per_page=4
    )
    taken = [pool.take(1)[0] for _ in range(6)]
    assert taken == [0, 1, 2, 3, 4, 5]
    assert (pool.pages.pinned_by_held, pool.pages.pinned_by_cached) == (2, 1)


def test_a_block_of_it_that_was_used_since_is_not_among_them() -> None:
    """Block 2 is found, held and left again: by then its page set has three held blocks."""
    pool = pool_of(
        "page_aware", {block: block for block in range(12)}, set(), blocks=12, per_page=4
    )
    assert pool.take(2) == [0, 1]
    assert pool.hold([2]) == 1
    pool.give_back([2], 1)
    assert pool.take(2) == [3, 4]
    assert evicted(pool, 8)[0] == [5, 6, 7, 8, 9, 10, 11, 2]


# Laws

CACHED = st.dictionaries(st.integers(0, 60), st.integers(0, 100), max_size=40)


@given(cached=CACHED, held=st.sets(st.integers(30, 90)), count=st.integers(0, 45))
def test_page_aware_frees_as_many_page_sets_as_any_order_could(
    cached: dict[int, int], held: set[int], count: int
) -> None:
    """Most whole pages within a number of blocks: the pages with the fewest blocks first."""
    held -= cached.keys()
    pools = {
        order: pool_of(order, cached, held, blocks=91, per_page=4)
        for order in ("lru", "page_aware")
    }
    blocks, freed = evicted(pools["page_aware"], count)
    assert len(set(blocks)) == min(count, len(cached))
    stuck = {block // 4 for block in held}
    left, most = len(blocks), 0
    for size in sorted(
        sum(block // 4 == page for block in cached)
        for page in {block // 4 for block in cached} - stuck
    ):
        left -= size
        most += left >= 0
    assert freed == most
    assert freed >= evicted(pools["lru"], count)[1]
    assert (
        pools["page_aware"].take(91 - len(held))[91 - len(held) - len(cached) :]
        == (evicted(pool_of("page_aware", cached, held, blocks=91, per_page=4), 91)[0])
    )


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("order", ["lru", "fifo", "lfu", "page_aware"])
@given(prompts=PROMPTS, blocks=st.integers(16, 40))
@settings(max_examples=30)
def test_with_one_block_per_page_every_decision_is_as_without_pages(
    order: str, ahead: bool, prompts: list[tuple[str, int, int]], blocks: int
) -> None:
    """Page-aware is then least recently used first."""
    eviction = LruOrder() if order == "page_aware" else EVICTION_ORDERS[order]()
    plain = PagedAllocator(blocks, 4, eviction=eviction, seals_ahead=not ahead)
    paged = allocator_of(order, blocks, 1, seals_ahead=not ahead)
    assert decisions(paged, prompts, ahead=ahead) == decisions(plain, prompts, ahead=ahead)


@pytest.mark.parametrize("per_page", [2, 5, 64])
@given(prompts=PROMPTS, blocks=st.integers(16, 40))
@settings(max_examples=30)
def test_pages_of_any_size_are_only_looked_at_by_the_order_that_asks(
    per_page: int, prompts: list[tuple[str, int, int]], blocks: int
) -> None:
    plain = PagedAllocator(blocks, 4, eviction=LruOrder())
    paged = allocator_of("lru", blocks, per_page)
    assert decisions(paged, prompts, ahead=False) == decisions(plain, prompts, ahead=False)


@given(prompts=PROMPTS, blocks=st.integers(16, 40), per_page=st.integers(1, 9))
@settings(max_examples=30)
def test_without_a_cache_only_held_blocks_pin_pages(
    prompts: list[tuple[str, int, int]], blocks: int, per_page: int
) -> None:
    pages = PageSets(blocks, per_page)
    paged = PagedAllocator(blocks, 4, pages=pages)
    plain = PagedAllocator(blocks, 4)
    assert decisions(paged, prompts, ahead=False) == decisions(plain, prompts, ahead=False)
    assert (pages.pinned, pages.kept_blocks) == (0, 0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks_per_page \(=0\) must be >= 1"):
        PageSets(10, 0)
    with pytest.raises(ValueError, match=r"num_blocks \(=0\) must be >= 1"):
        PageSets(0, 4)


def test_the_orders_memory_does_not_grow_with_what_happened() -> None:
    pool = pool_of(
        "page_aware", {block: block for block in range(12)}, set(), blocks=12, per_page=4
    )
    assert pool.cache is not None
    for turn in range(10_000):
        pool.hold([turn % 12])
        pool.give_back([turn % 12], 1)
    size = len(pickle.dumps(pool.cache.free))
    assert size < 10_000


# Any order of events


class PagesMachine(RuleBasedStateMachine):
    """Requests come, grow and go in a memory of pages."""

    order = "lru"

    @initialize(blocks=st.integers(6, 40), per_page=st.integers(1, 8))
    def build(self, blocks: int, per_page: int) -> None:
        self.allocator = allocator_of(self.order, blocks, per_page, null_block=False)
        self.held: list[Sequence] = []
        self.count = 0

    @rule(stream=st.sampled_from("aabc"), shared=st.integers(1, 30), own=st.integers(1, 8))
    def admit(self, stream: str, shared: int, own: int) -> None:
        self.count += 1
        one = sequence(((stream, shared), (self.count, own)), output=12, name=f"r{self.count}")
        hit = self.allocator.lookup(one)
        if self.allocator.admit(one, hit, one.tokens - hit.tokens, one.tokens, 0):
            one.admissions += 1
            one.computed = one.tokens
            self.held.append(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        if one.tokens < one.final_tokens - 1 and self.allocator.append(
            one, one.computed, 1, one.tokens + 1
        ):
            one.tokens += 1
            one.computed += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        self.held.remove(one)
        self.allocator.release(one)

    @invariant()
    def the_account_is_what_tables_and_cache_say(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.check_integrity(self.held)

    @invariant()
    def blocks_leave_in_the_order_that_is_told(self) -> None:
        if not hasattr(self, "allocator"):
            return
        cache = self.allocator.cache
        assert cache is not None
        told = cache.free.ids()
        assert len(told) == len(set(told)) == len(cache.free)
        assert copy.deepcopy(cache.free).pop(len(told)) == told
        assert all(block in cache.free for block in told)


def machine(order: str) -> Any:
    test: Any = type(f"{order.title()}Machine", (PagesMachine,), {"order": order})
    test.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
    return test.TestCase


TestLru = machine("lru")
TestPageAware = machine("page_aware")
