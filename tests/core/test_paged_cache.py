"""The paged allocator with a prefix cache, against explicit tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.eviction import BeladyOrder, EvictionOrder, FifoOrder, LfuOrder, LruOrder
from kvsim.core.hit_ledger import HitCounts
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Hit
from kvsim.core.request import Sequence, State
from tests.core.shadow_cache import (
    Shadow,
    admit,
    admit_and_release,
    cached,
    counts_of,
    known_blocks,
    sequence,
    snapshot,
)

# Sharing


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("prefix", [0, 3, 16, 50])
@pytest.mark.parametrize("requests", [1, 2, 7])
def test_a_shared_prefix_saves_its_whole_blocks_for_all_requests_but_one(
    block_size: int, prefix: int, requests: int
) -> None:
    """FIELD.md section 3.6: (m - 1) * floor(p / B) blocks."""
    allocator = cached(1000, block_size)
    held = [sequence((("system", prefix), (user, 21))) for user in range(requests)]
    for one in held:
        admit(allocator, one)
    logical = requests * -(-(prefix + 21) // block_size)
    saved = (requests - 1) * (prefix // block_size)
    assert allocator.usage.allocated == (logical - saved) * block_size
    assert allocator.usage.shared == saved * block_size
    assert allocator.free_count() == 1000 - logical + saved


def test_a_fully_cached_prompt_of_whole_blocks_computes_its_last_block_again() -> None:
    """vllm/SPEC.md section 5: the last known token is always computed, and with it its block."""
    allocator = cached()
    admit(allocator, sequence((("a", 16),)))
    two = sequence((("a", 16),))
    assert admit(allocator, two) == 12
    assert two.table == [1, 2, 3, 5]


def admit_together(allocator: PagedAllocator, sequences: list[Sequence]) -> None:
    """All look for their prompts before any of them is computed."""
    hits = [allocator.lookup(one) for one in sequences]
    for one, hit in zip(sequences, hits, strict=True):
        assert allocator.admit(one, hit, one.tokens, one.tokens, 0)


def test_equal_blocks_coexist_and_the_oldest_is_found() -> None:
    allocator = cached()
    one, two, three = (sequence((("a", 8), (name, 1))) for name in "xyz")
    admit_together(allocator, [one, two])
    assert (one.table, two.table) == ([1, 2, 3], [4, 5, 6])
    assert allocator.cache is not None
    assert len(known_blocks(allocator)) == 4
    assert allocator.cache.num_keys() == 2
    admit(allocator, three)
    assert three.table[:2] == [1, 2]
    allocator.check_integrity([one, two, three])


def test_the_second_oldest_is_found_once_the_oldest_is_evicted() -> None:
    allocator = cached(6)
    one, two = sequence((("a", 8),)), sequence((("a", 8),))
    admit_together(allocator, [one, two])
    allocator.release(one)
    other = sequence(13)
    admit(allocator, other)
    assert sorted(other.table) == [1, 2, 5, 6]
    assert allocator.lookup(sequence((("a", 9),))).blocks == two.table


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    """vllm/SPEC.md section 4: so what is left of a chain can still be found."""
    for blocks_left in (4, 3, 2, 1, 0):
        allocator = cached(5)
        admit_and_release(allocator, sequence((("a", 16),)))
        admit(allocator, sequence(4 * (5 - blocks_left)))
        assert allocator.lookup(sequence((("a", 16), ("b", 1)))).tokens == 4 * blocks_left


def test_a_failed_admission_changes_nothing() -> None:
    """vllm/SPEC.md section 5: no touch, no move in the queue, no count."""
    allocator = cached(6)
    admit_and_release(allocator, sequence((("a", 12),)))
    assert allocator.pool.free_ids() == [4, 5, 6, 3, 2, 1]
    one = sequence((("a", 10), ("b", 14)))
    hit = allocator.lookup(one)
    assert (hit.tokens, hit.blocks, hit.free_blocks) == (8, [1, 2], 2)
    before = snapshot(allocator)
    assert not allocator.admit(one, hit, 20, 0, 0)
    assert not allocator.admit(one, hit, 4, 25, 0)
    assert not allocator.admit(one, hit, 4, 12, 4)
    assert snapshot(allocator) == before
    assert (one.table, one.sealed) == ([], 0)
    assert allocator.admit(one, hit, 4, 12, 3)
    assert one.table == [1, 2, 4]


def test_blocks_that_hit_are_not_evicted_by_the_request_that_uses_them() -> None:
    """They leave the queue before anything is taken from it (vllm/SPEC.md section 3, step 4)."""
    allocator = cached(4)
    admit_and_release(allocator, sequence((("a", 9),)))
    assert allocator.pool.free_ids() == [3, 4, 2, 1]
    one = sequence((("a", 9), ("b", 7)))
    assert admit(allocator, one) == 8
    assert one.table == [1, 2, 3, 4]


def test_a_block_is_found_by_a_later_request_of_the_same_step() -> None:
    """vllm/SPEC.md section 3, step 5: contents are known at schedule time."""
    allocator = cached()
    one = sequence((("a", 10),))
    assert allocator.admit(one, allocator.lookup(one), 6, 10, 0)
    assert allocator.lookup(sequence((("a", 10),))).tokens == 4


def test_the_output_of_a_request_is_found_by_the_next_turn_of_the_conversation() -> None:
    allocator = cached()
    one = sequence((("system", 6),), output=7, output_stream="answer")
    admit(allocator, one)
    for computed in range(6, 12):
        assert allocator.append(one, computed, 1, computed + 1)
    one.computed = one.tokens = 12
    allocator.release(one)
    assert allocator.lookup(sequence((("system", 6), ("answer", 7), ("user", 3)))).tokens == 12
    assert allocator.lookup(sequence((("system", 6), ("answer", 5), ("user", 3)))).tokens == 8
    assert allocator.lookup(sequence((("system", 5), ("answer", 7), ("user", 3)))).tokens == 4


def test_a_preempted_request_finds_its_own_output_again_though_nobody_else_could() -> None:
    allocator = cached()
    one = sequence(6, output=20)
    admit(allocator, one)
    for computed in range(6, 13):
        assert allocator.append(one, computed, 1, computed + 1)
    assert allocator.cache is not None
    assert (known_blocks(allocator), allocator.cache.num_keys()) == ([], 3)
    one.computed, one.tokens = 13, 14
    allocator.release(one, resumes=True)
    assert allocator.cache.num_keys() == 3
    assert admit(allocator, one) == 12
    counts = allocator.prefix_counts()
    assert counts is not None
    assert (counts["query_tokens"], counts["resumed_hit_tokens"]) == (6, 12)


def test_asynchronous_contents_are_known_one_step_later() -> None:
    """The token that fills a block is sampled after the step is scheduled."""
    ahead, behind = cached(), cached(seals_ahead=False)
    for allocator, known, sealed in ((ahead, 4, 1), (behind, 3, 0)):
        one = sequence(3, output=9)
        admit(allocator, one)
        assert allocator.append(one, 3, 1, known)
        assert one.sealed == sealed
    assert behind.append(one, 4, 1, 4)
    assert one.sealed == 1


def test_a_draft_that_may_be_wrong_gives_no_block_a_content() -> None:
    allocator = cached()
    one = sequence((("a", 6),), output=20, output_stream="out")
    admit(allocator, one)
    assert allocator.append(one, 6, 4, known=7)
    assert one.sealed == 1
    one.tokens = 9
    allocator.seal(one, 8)
    assert one.sealed == 2


def test_slots_for_drafts_beyond_the_end_are_never_filled_and_counted_once() -> None:
    allocator = cached(block_size=1, lookahead_tokens=2)
    one = sequence(3, output=2)
    assert allocator.admit(one, allocator.lookup(one), 3, 0, 0)
    assert allocator.append(one, 3, 1, known=4)
    assert len(one.table) == 6
    assert allocator.usage.internal_tail == 2
    allocator.check_integrity([one])


# Everything at random


def far_away(key: int) -> int:
    """A next use for `belady`, with many ties."""
    return key * 7 % 5


ORDERS: dict[str, Callable[[], EvictionOrder]] = {
    "lru": LruOrder,
    "fifo": FifoOrder,
    "lfu": LfuOrder,
    "belady": lambda: BeladyOrder(far_away),
}
PROMPTS = st.one_of(
    st.integers(1, 30),
    st.tuples(
        st.lists(st.tuples(st.sampled_from("aab"), st.integers(1, 20)), min_size=1, max_size=2),
        st.integers(0, 12),
    ),
)
"""A length that nobody shares, or segments of two streams followed by tokens of its own."""


class CacheMachine(RuleBasedStateMachine):
    """Admissions, chunks, decodes, verified drafts and releases in any order."""

    order = "lru"

    @initialize(
        blocks=st.integers(3, 30),
        block_size=st.sampled_from([1, 2, 3, 4]),
        mode=st.sampled_from(["synchronous", "asynchronous", "drafts", "eagle"]),
    )
    def build(self, blocks: int, block_size: int, mode: str) -> None:
        self.mode = mode
        speculates = mode in ("drafts", "eagle")
        self.allocator = PagedAllocator(
            blocks + 1,
            block_size,
            eviction=ORDERS[self.order](),
            seals_ahead=mode != "asynchronous",
            hash_lookahead=1 if mode == "eagle" else 0,
            lookahead_tokens=2 if speculates else 0,
        )
        self.shadow = Shadow(blocks + 1, block_size, 1 if mode == "eagle" else 0)
        self.held: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.count = 0
        self.terms = HitCounts()

    # Admission

    def new(
        self, prompt: int | tuple[list[tuple[str, int]], int], output: int, names: bool
    ) -> Sequence:
        self.count += 1
        name = f"r{self.count}"
        if isinstance(prompt, tuple):
            shared, own = prompt
            return sequence((*shared, (name, own)), output, name, f"o{name}" if names else None)
        return sequence(prompt, output, name)

    @rule(prompt=PROMPTS, output=st.integers(1, 20), names=st.booleans(), data=st.data())
    def admit_new(
        self,
        prompt: int | tuple[list[tuple[str, int]], int],
        output: int,
        names: bool,
        data: st.DataObject,
    ) -> None:
        one = self.new(prompt, output, names)
        if not self.admit(one, data):
            self.waiting.append(one)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        one = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        if not self.admit(one, data):
            self.waiting.append(one)

    @precondition(lambda self: self.held)
    @rule(
        output=st.integers(1, 9), repeated=st.integers(1, 12), own=st.integers(1, 4), data=st.data()
    )
    def admit_the_next_turn(
        self, output: int, repeated: int, own: int, data: st.DataObject
    ) -> None:
        """A conversation goes on: the prompt repeats an earlier one and some of its answer."""
        before = data.draw(st.sampled_from(self.held)).request
        if before.segments is None or before.output_stream is None:
            return
        self.count += 1
        name = f"r{self.count}"
        prompt = (*before.segments, (before.output_stream, repeated), (name, own))
        if sum(length for _, length in prompt) < 90:
            self.admit(sequence(prompt, output, name, f"o{name}"), data)

    def admit(self, one: Sequence, data: st.DataObject) -> bool:
        allocator, shadow = self.allocator, self.shadow
        before = snapshot(allocator)
        hit = allocator.lookup(one)
        assert snapshot(allocator) == before
        assert list(hit.blocks) == shadow.hit(one)
        free = [block for block in hit.blocks if not shadow.holders[block]]
        assert (hit.tokens, hit.free_blocks) == (
            len(hit.blocks) * allocator.block_size,
            len(free),
        )
        new = self.chunk(one.tokens - hit.tokens, data)
        keep = data.draw(st.sampled_from([0, 0, 2]))
        gate = one.tokens if data.draw(st.booleans()) else 0
        end = hit.tokens + new
        fits = self.needed(max(self.slots(end), gate), hit, free) + keep <= len(shadow.free)
        assert allocator.fits_sum(one) == (self.needed(one.tokens, hit, free) <= len(shadow.free))
        seen = shadow.seen_tokens(one)
        assert allocator.admit(one, hit, new, gate, keep) == fits
        if not fits:
            assert snapshot(allocator) == before
            assert (one.table, one.sealed) == ([], 0)
            return False
        shadow.extend([], one.table, list(hit.blocks))
        if not one.admissions:
            self.book(one, hit.tokens, max(seen, hit.tokens))
        shadow.seal(one, end)
        shadow.book(one, end)
        one.admissions += 1
        one.state = State.PREFILLING
        self.advance(one, end)
        self.held.append(one)
        return True

    def chunk(self, most: int, data: st.DataObject) -> int:
        return data.draw(st.just(most) | st.integers(1, most))

    def needed(self, tokens: int, hit: Hit, free: list[int]) -> int:
        return -(-tokens // self.allocator.block_size) - len(hit.blocks) + len(free)

    def slots(self, end: int) -> int:
        return end + (2 if self.mode in ("drafts", "eagle") else 0)

    def book(self, one: Sequence, hit: int, seen: int) -> None:
        """The causes, as the fields of HitCounts define them."""
        prompt, size = one.request.prompt_tokens, self.allocator.block_size
        # a block of EAGLE's is seen when the token behind it is, and that token is the prompt's
        beyond = self.shadow.hash_lookahead
        whole = max((seen - beyond) // size * size if seen < prompt else seen // size * size, hit)
        reachable = max(min(whole, (prompt - 1) // size * size), hit)
        terms = (prompt, hit, prompt - seen, reachable - hit, seen - whole, whole - reachable)
        self.terms = HitCounts(*(old + new for old, new in zip(self.terms, terms, strict=True)))

    # Growth

    def append(self, one: Sequence, new: int, known: int) -> bool:
        allocator, shadow = self.allocator, self.shadow
        table, before = list(one.table), snapshot(allocator)
        slots = self.slots(one.computed + new)
        missing = -(-slots // allocator.block_size) - len(table)
        fits = missing <= len(shadow.free)
        assert allocator.append(one, one.computed, new, known) == fits
        if not fits:
            assert snapshot(allocator) == before
            assert one.table == table
            return False
        shadow.extend(table, one.table, [])
        upto = min(one.computed + new, known)
        shadow.seal(one, upto)
        shadow.book(one, upto)
        return True

    def prefilling(self) -> list[Sequence]:
        return [one for one in self.held if one.state is State.PREFILLING]

    def advance(self, one: Sequence, computed: int) -> None:
        one.computed = computed
        if computed == one.tokens:
            one.state = State.DECODING

    @precondition(lambda self: self.prefilling())
    @rule(data=st.data())
    def compute_a_chunk(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.prefilling()))
        new = self.chunk(one.tokens - one.computed, data)
        if self.append(one, new, one.tokens):
            self.advance(one, one.computed + new)

    def growing(self) -> list[Sequence]:
        return [
            one
            for one in self.held
            if one.state is State.DECODING and one.computed < one.final_kv_tokens
        ]

    def sample(self, one: Sequence) -> None:
        """Between steps: the token behind the computed ones becomes known (not if it lags)."""
        if self.mode != "asynchronous":
            one.tokens = max(one.tokens, one.computed + 1)

    @precondition(lambda self: self.growing())
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.growing()))
        self.sample(one)
        if self.append(one, 1, one.tokens):
            one.computed += 1
            one.tokens = max(one.tokens, one.computed)

    @precondition(lambda self: self.mode in ("drafts", "eagle") and self.growing())
    @rule(data=st.data(), drafts=st.integers(1, 3), accepted=st.integers(0, 3))
    def verify_drafts(self, data: st.DataObject, drafts: int, accepted: int) -> None:
        one = data.draw(st.sampled_from(self.growing()))
        self.sample(one)
        if not self.append(one, 1 + drafts, one.tokens):
            return
        delivered = min(1 + min(accepted, drafts), one.final_tokens - one.tokens)
        one.computed += delivered
        one.tokens += delivered
        self.allocator.seal(one, one.computed)
        self.shadow.seal(one, one.computed)

    @precondition(lambda self: self.mode in ("synchronous", "asynchronous") and self.growing())
    @rule(steps=st.integers(1, 6))
    def decode_all(self, steps: int) -> None:
        for _ in range(steps):
            self.decode_step()

    def decode_step(self) -> None:
        """As the calendar does it: only those whose memory or content changes are touched."""
        allocator, shadow, size = self.allocator, self.shadow, self.allocator.block_size
        growing = self.growing()
        for one in growing:
            self.sample(one)
        due = [one for one in growing if one.computed % size == 0]
        tables = [list(one.table) for one in due]
        before = snapshot(allocator)
        fits = len(due) <= len(shadow.free)
        assert allocator.append_bulk(due) == fits
        if not fits:
            assert snapshot(allocator) == before
            return
        for one, table in zip(due, tables, strict=True):
            shadow.extend(table, one.table, [])
        if allocator.seals_ahead:
            filling = [one for one in growing if (one.computed + 1) % size == 0]
            allocator.seal_bulk(filling)
        else:
            filling = due
        for one in growing:
            one.computed += 1
            one.tokens = max(one.tokens, one.computed)
        for one in filling:
            upto = one.computed if allocator.seals_ahead else one.computed - 1
            shadow.seal(one, upto)
            shadow.book(one, upto)

    # Release

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["finish", "abort", "preempt"]))
    def release(self, data: st.DataObject, how: str) -> None:
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if one.computed == one.final_kv_tokens:
            how = "finish"
        if how == "finish" and self.mode == "asynchronous":
            self.allocator.seal(one, one.computed)
            self.shadow.seal(one, one.computed)
        elif how == "preempt" and one.state is State.DECODING:
            self.sample(one)
        table = list(one.table)
        self.allocator.release(one, resumes=how == "preempt")
        assert (one.table, one.sealed) == ([], 0)
        self.shadow.release(table)
        self.shadow.book(one, one.computed)
        if how == "preempt":
            one.computed = 0
            self.waiting.append(one)

    # What always holds

    @invariant()
    def every_block_is_held_as_often_as_counted(self) -> None:
        self.allocator.check_integrity(self.held)
        pool, shadow = self.allocator.pool, self.shadow
        assert sorted(pool.free_ids()) == sorted(shadow.free)
        assert self.allocator.free_count() == len(shadow.free)
        entries = Counter(block for one in self.held for block in one.table)
        assert entries == +shadow.holders
        for block in range(1, self.allocator.num_blocks):
            assert pool.ref_cnt(block) == entries[block]
        if self.order == "lru":
            assert pool.free_ids() == shadow.free

    @invariant()
    def contents_are_those_of_the_blocks(self) -> None:
        cache, shadow = self.allocator.cache, self.shadow
        assert cache is not None
        assert cache.num_keys() == len(set(shadow.content.values()))
        assert set(known_blocks(self.allocator)) <= set(shadow.content)
        assert cache.evicted == shadow.evicted
        assert set(cache.free.ids()) == set(shadow.free) & set(shadow.content)

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        allocator, size = self.allocator, self.allocator.block_size
        filled: dict[int, int] = {}
        never = 0
        for one in self.held:
            for index, block in enumerate(one.table):
                tokens = min(max(one.computed - index * size, 0), size)
                filled[block] = max(filled.get(block, 0), tokens)
            never += max(0, len(one.table) * size - one.final_kv_tokens)
        live = sum(filled.values())
        terms = split(
            allocator.usage,
            live_tokens=allocator.usage.live_slots(sum(one.computed for one in self.held)),
            capacity=allocator.capacity_slots,
            reserves_ahead=False,
            held_up=False,
        )
        assert (terms.live, terms.internal_tail) == (live, never)
        assert terms.reservation_tail == len(filled) * size - live - never >= 0
        assert terms.usable_free == len(self.shadow.free) * size
        assert terms.cached == len(set(self.shadow.free) & set(self.shadow.content)) * size
        assert terms.total == allocator.capacity_slots

    @invariant()
    def every_prompt_token_is_found_or_has_a_cause(self) -> None:
        counts = counts_of(self.allocator)
        assert counts.query_tokens == sum(counts[1:])
        assert counts == self.terms


def machine(order: str) -> Any:
    name = f"{order.capitalize()}Machine"
    test: Any = type(name, (CacheMachine,), {"order": order})
    test.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
    return test.TestCase


TestLru = machine("lru")
TestFifo = machine("fifo")
TestLfu = machine("lfu")
TestBelady = machine("belady")
