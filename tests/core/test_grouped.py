"""Layer groups over one pool: bounds, hits, retention, order of the free queue, and horizons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import MemoryTerms, split
from kvsim.core.eviction import LruOrder
from kvsim.core.group import LayerGroup, group_kinds
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.request import Request, Sequence

FULL = LayerGroup("full", 4)
SLIDING = LayerGroup("sliding", 4, window=8)


def memory(groups: list[LayerGroup], blocks: int = 100, **changes: Any) -> GroupedAllocator:
    """Synchronous and uncached unless told otherwise; `cached` switches the prefix cache on."""
    arguments: dict[str, Any] = {
        "max_model_len": 10_000,
        "max_num_batched_tokens": 10_000,
        "async_scheduling": False,
    }
    if changes.pop("cached", False):
        arguments["eviction"] = LruOrder()
    return GroupedAllocator(blocks, groups, **{**arguments, **changes})


def sequence(prompt: int, output: int = 1, stream: str | None = None, shared: int = 0) -> Sequence:
    """The first `shared` tokens (all: 0) are those of `stream`, the others its own."""
    segments = None
    if stream is not None:
        first = shared or prompt
        segments = ((stream, first), (object(), prompt - first))
    return Sequence(Request("r", 0, prompt, output, segments=segments), max_model_len=10_000)


def admit(allocator: GroupedAllocator, one: Sequence) -> int:
    """Admit the whole prompt in one chunk; return the hit tokens."""
    hit = allocator.lookup(one)
    assert allocator.admit(one, hit, one.tokens - hit.tokens, one.tokens, 0)
    return hit.tokens


def terms_of(allocator: GroupedAllocator, computed: int) -> MemoryTerms:
    """What becomes of each slot while all sequences together have `computed` tokens."""
    return split(
        allocator.usage,
        live_tokens=allocator.usage.live_slots(computed),
        capacity=allocator.capacity_slots,
        reserves_ahead=allocator.reserves_ahead,
        held_up=False,
    )


# What a group holds


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("window", [1, 2, 16, 17, 33])
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_a_sliding_group_holds_the_window_and_one_chunk_at_most(
    block_size: int, window: int, chunk: int
) -> None:
    """FIELD.md section 2: at most ceil(min(W - 1 + T, len) / B) + 1 blocks."""
    allocator = memory([LayerGroup("sliding", block_size, window)], blocks=400)
    one = sequence(200, output=60)
    assert allocator.admit(one, allocator.lookup(one), chunk, 0, 0)
    computed, most = chunk, 0
    while computed < one.final_kv_tokens:
        new = min(chunk, 200 - computed) if computed < 200 else 1
        assert allocator.append(one, computed, new, max(200, computed + 1))
        computed += new
        held = len(one.tables[0]) - one.null_blocks[0]
        most = max(most, held)
        assert held <= -(-min(window - 1 + chunk, computed) // block_size) + 1
        # no block is held longer than a later token needs it, but for the current step's chunk
        first_needed = max(computed - new - window + 1, 0)
        assert held == -(-computed // block_size) - first_needed // block_size
    assert most >= -(-min(window - 1 + chunk, 200) // block_size) - 1


def test_asynchronous_frees_wait_for_the_tokens_in_flight() -> None:
    """vllm/SPEC.md section 6: only processed tokens move the window."""
    allocator = memory([SLIDING], async_scheduling=True)
    one = sequence(16, output=9)
    admit(allocator, one)
    assert allocator.append(one, 16, 1, known=16, in_flight=16)
    assert one.null_blocks == [0]
    assert allocator.append(one, 17, 1, known=17, in_flight=1)
    assert one.null_blocks == [2]


@pytest.mark.parametrize(
    ("window", "max_tokens", "max_in_flight", "blocks"),
    [
        pytest.param(1024, 4096, 8192, 257, id="Gemma-3-27B, log C091"),
        pytest.param(512, 2048, 16384, 129, id="Gemma-3-1B, log C092"),
        pytest.param(1024, 49152, 2048, 193, id="Gemma-4-26B, log C093"),
        pytest.param(64, 512, 128, 13, id="recording i1"),
        pytest.param(64, 512, 256, 21, id="recording k4, asynchronous"),
    ],
)
def test_the_gate_wants_as_many_sliding_blocks_as_real_servers(
    window: int, max_tokens: int, max_in_flight: int, blocks: int
) -> None:
    """FIELD.md section 2, blocks per request; the recordings' `admission_cap_blocks`."""
    (kind,) = group_kinds(
        [LayerGroup("sliding", 16, window)],
        retention=0,
        max_tokens=max_tokens,
        max_in_flight=max_in_flight,
    )
    assert kind.gate_blocks(100_000) == blocks
    assert kind.gate_blocks(100) == 7


@pytest.mark.parametrize(("scheduled_ahead", "blocks"), [(False, 3072 + 13), (True, 3072 + 21)])
def test_a_request_that_the_gate_would_never_let_pass_never_fits(
    scheduled_ahead: bool, blocks: int
) -> None:
    groups = [LayerGroup("full", 16), LayerGroup("sliding", 16, 64)]
    for usable, fits in ((blocks, True), (blocks - 1, False)):
        allocator = memory(
            groups,
            usable + 1,
            max_model_len=49152,
            max_num_batched_tokens=128,
            async_scheduling=scheduled_ahead,
        )
        assert (allocator.never_fits(Request("r", 0, 1, 1), 49152) is None) == fits


def test_groups_take_blocks_one_after_the_other() -> None:
    allocator = memory([FULL, SLIDING, LayerGroup("full", 8)])
    one = sequence(10)
    admit(allocator, one)
    assert one.tables == [[1, 2, 3], [4, 5, 6], [7, 8]]


def test_a_block_has_the_common_multiple_of_slots() -> None:
    """10 tokens fill 3 x 8 - 4 slots in blocks of 4 and 2 x 8 - 6 in blocks of 8: 20 and 10."""
    allocator = memory([FULL, LayerGroup("full", 8)], blocks=11)
    one = sequence(10, output=4)
    admit(allocator, one)
    usage = allocator.usage
    assert (allocator.block_size, allocator.capacity_slots, usage.slots_per_token) == (8, 80, 3)
    assert (usage.allocated, usage.internal_tail) == (5 * 8, 0 + 3)
    terms = terms_of(allocator, 10)
    assert (terms.live, terms.reservation, terms.internal, terms.usable_free) == (30, 7, 3, 40)


def test_tokens_out_of_the_window_are_not_live() -> None:
    allocator = memory([FULL, SLIDING], blocks=30)
    one = sequence(16, output=5)
    admit(allocator, one)
    assert allocator.append(one, 16, 1, known=17)
    assert one.tables[1][:2] == [0, 0]
    usage = allocator.usage
    assert (usage.allocated, usage.out_of_window) == (8 * 4, 2 * 4)
    terms = terms_of(allocator, 17)
    assert (terms.live, terms.reservation, terms.internal) == (17 + 9, 6, 0)


# The free queue


def test_released_groups_go_to_the_front_one_after_the_other() -> None:
    """vllm/SPEC.md section 4: within a group the last block is reused first."""
    allocator = memory([FULL, SLIDING], blocks=9)
    one = sequence(9)
    admit(allocator, one)
    assert one.tables == [[1, 2, 3], [4, 5, 6]]
    allocator.release(one)
    assert allocator.pool.free_ids() == [6, 5, 4, 3, 2, 1, 7, 8]
    assert allocator.usage.allocated == 0


def test_blocks_leave_the_window_last_first() -> None:
    """vllm/SPEC.md section 6: walked from high to low index."""
    allocator = memory([SLIDING], blocks=9)
    one = sequence(16, output=9)
    admit(allocator, one)
    assert allocator.append(one, 16, 1, known=17)
    assert one.tables == [[0, 0, 3, 4, 2]]
    assert allocator.pool.free_ids() == [1, 5, 6, 7, 8]


def test_a_refused_append_has_given_back_what_left_the_window() -> None:
    """vllm/SPEC.md section 3, step 2; asking again changes nothing more."""
    allocator = memory([FULL, SLIDING, SLIDING], blocks=13)
    one = sequence(32)
    assert allocator.admit(one, allocator.lookup(one), 16, 0, 0)
    assert allocator.free_count() == 0
    for _ in range(2):
        assert not allocator.append(one, 16, 16, known=32)
        assert [len(table) for table in one.tables] == [4, 4, 4]
        assert one.null_blocks == [0, 2, 2]
        assert allocator.pool.free_ids() == [10, 9, 6, 5]
        allocator.check_integrity([one])
    assert allocator.append(one, 16, 4, known=32)
    assert allocator.pool.free_ids() == [5]


def test_contents_are_evicted_last_and_other_blocks_are_reused_first() -> None:
    """Retention 0 caches the window before token 12 of the prompt: the second and third block."""
    allocator = memory([SLIDING], blocks=9, cached=True)
    one = sequence(16, stream="a")
    admit(allocator, one)
    allocator.release(one)
    assert allocator.pool.free_ids() == [4, 1, 5, 6, 7, 8, 3, 2]


# The gate and the watermark


def test_the_gate_and_the_watermark_refuse_and_change_nothing() -> None:
    """Of 40 known tokens the gate wants 10 blocks of one group and 5 of the other."""
    allocator = memory([FULL, SLIDING], blocks=16, max_num_batched_tokens=8)
    one = sequence(40)
    no_hit = allocator.lookup(one)
    assert not allocator.admit(one, no_hit, 8, 44, 0)
    assert not allocator.admit(one, no_hit, 8, 40, 1)
    assert not allocator.admit(one, no_hit, 32, 0, 0)
    assert (one.tables, allocator.free_count(), allocator.usage.allocated) == ([], 15, 0)
    assert allocator.fits_sum(one)
    assert allocator.admit(one, no_hit, 8, 40, 0)
    assert one.tables == [[1, 2], [3, 4]]


def test_hit_blocks_that_nobody_holds_count_as_used_up() -> None:
    """vllm/SPEC.md section 3: touching them takes them out of the free queue."""
    allocator = memory([FULL, SLIDING], blocks=9, cached=True)
    one, two = sequence(16, stream="a"), sequence(16, stream="a")
    admit(allocator, one)
    allocator.release(one)
    hit = allocator.lookup(two)
    assert (hit.tokens, hit.free_blocks) == (12, 5)
    assert not allocator.admit(two, hit, 4, 16, 2)
    assert allocator.admit(two, hit, 4, 16, 1)
    assert allocator.free_count() == 1
    allocator.check_integrity([two])


# Look-ups (vllm/SPEC.md section 6)


def test_a_hit_holds_nothing_below_the_window() -> None:
    allocator = memory([FULL, SLIDING], cached=True)
    one, two = sequence(16, stream="a"), sequence(16, stream="a")
    admit(allocator, one)
    assert one.tables == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert allocator.cache is not None
    assert allocator.cache.num_keys() == 4 + 2
    assert admit(allocator, two) == 12
    assert two.tables == [[1, 2, 3, 9], [0, 6, 7, 10]]
    assert (allocator.usage.shared, allocator.usage.out_of_window) == (5 * 4, 4)
    allocator.check_integrity([one, two])


def test_a_junction_makes_the_next_hit_possible() -> None:
    """The full group hits further than the sliding one: its window there is kept from then on."""
    allocator = memory([FULL, SLIDING], cached=True)
    one = sequence(16, stream="a")
    two, three = (sequence(16, stream="a", shared=8) for _ in range(2))
    admit(allocator, one)
    assert admit(allocator, two) == 0
    assert two.junction == 8
    assert two.tables == [[9, 10, 11, 12], [13, 14, 15, 16]]
    assert admit(allocator, three) == 8
    assert three.junction == 0
    # equal blocks coexist, the one that got its content first is found
    assert [table[:2] for table in three.tables] == [[1, 2], [13, 6]]
    allocator.check_integrity([one, two, three])


def test_a_short_run_counts_if_it_begins_with_the_sequence() -> None:
    allocator = memory([LayerGroup("sliding", 4, window=20)], cached=True)
    one, two = sequence(9, stream="a"), sequence(9, stream="a")
    admit(allocator, one)
    assert admit(allocator, two) == 8
    assert two.tables == [[1, 2, 4]]


def test_groups_of_one_specification_must_all_have_a_block() -> None:
    """The first group's contents are evicted first; what the second still has is of no use."""
    allocator = memory([SLIDING, SLIDING], blocks=9, cached=True)
    one = sequence(12, stream="a")
    admit(allocator, one)
    allocator.release(one)
    assert allocator.pool.free_ids() == [6, 3, 7, 8, 2, 1, 5, 4]
    assert allocator.lookup(sequence(12, stream="a")).tokens == 8
    other = sequence(12, stream="b")
    admit(allocator, other)
    assert other.tables == [[6, 3, 7], [8, 2, 1]]
    assert allocator.cache is not None
    assert [block in allocator.cache for block in (5, 4)] == [True, True]
    assert allocator.lookup(sequence(12, stream="a")).tokens == 0


def test_hits_end_where_blocks_of_all_groups_end() -> None:
    """24 tokens have 3 blocks of 8 and one of 16: the common multiple counts."""
    allocator = memory([LayerGroup("full", 8), LayerGroup("sliding", 16, 17)], cached=True)
    admit(allocator, sequence(24, stream="a"))
    assert admit(allocator, sequence(25, stream="a")) == 16
    assert allocator.block_size == 16


def test_kinds_of_sliding_groups_limit_each_other_until_nothing_changes() -> None:
    """Each kind keeps its own window; only what fills both windows is a hit."""
    wide = LayerGroup("sliding", 4, window=13)
    allocator = memory([FULL, wide, SLIDING], cached=True)
    one = sequence(24, stream="a")
    admit(allocator, one)
    two = sequence(24, stream="a")
    assert admit(allocator, two) == 20
    assert two.null_blocks == [0, 2, 3]
    assert two.tables[1][:5] == [0, 0, *one.tables[1][2:5]]
    assert two.tables[2][:5] == [0, 0, 0, *one.tables[2][3:5]]


@pytest.mark.parametrize(
    ("retention", "kept"),
    [(0, [8]), (None, list(range(10))), (16, [3, 7, 8]), (12, [2, 5, 8]), (8, [1, 3, 5, 7, 8, 9])],
)
def test_retention_says_which_sliding_blocks_are_cached(
    retention: int | None, kept: list[int]
) -> None:
    """A window of 5 tokens needs one block of 4; the prompt's reusable end is token 36 of 40."""
    allocator = memory(
        [LayerGroup("sliding", 4, window=5)], cached=True, retention_interval=retention
    )
    one = sequence(40, stream="a")
    admit(allocator, one)
    assert allocator.cache is not None
    named = [index for index, block in enumerate(one.tables[0]) if block in allocator.cache]
    assert named == kept


def test_without_a_prefix_cache_nothing_is_found() -> None:
    allocator = memory([FULL, SLIDING])
    assert admit(allocator, sequence(16, stream="a")) == 0
    assert admit(allocator, sequence(16, stream="a")) == 0
    assert allocator.cache is None


# Arguments


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "at least one"),
        ([FULL, LayerGroup("full", 0)], r"groups\[1\]\.block_size \(=0\)"),
        ([LayerGroup("full", 4, 8)], r"groups\[0\]\.window \(=8\) must be None"),
        ([LayerGroup("sliding", 4)], r"groups\[0\]\.window \(=None\) must be >= 1"),
        ([LayerGroup("mamba", 4)], r"groups\[0\]\.kind \(='mamba'\)"),
    ],
)
def test_impossible_groups_are_named(groups: list[LayerGroup], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        memory(groups)


def test_a_block_held_twice_is_noticed_by_the_integrity_check() -> None:
    allocator = memory([FULL, SLIDING], blocks=9)
    one = sequence(8)
    admit(allocator, one)
    one.tables[1][0] = one.tables[0][0]
    with pytest.raises(AssertionError, match="lost block 3"):
        allocator.check_integrity([one])


# Everything at random

GROUPS = [
    [LayerGroup("full", 4), LayerGroup("sliding", 4, 8)],
    [LayerGroup("sliding", 4, 7), LayerGroup("full", 4), LayerGroup("sliding", 4, 7)],
    [LayerGroup("sliding", 3, 5)],
    [LayerGroup("full", 2), LayerGroup("sliding", 2, 3), LayerGroup("sliding", 2, 12)],
    [LayerGroup("full", 4), LayerGroup("sliding", 8, 9)],
    [LayerGroup("full", 8), LayerGroup("sliding", 2, 6), LayerGroup("sliding", 4, 1)],
]
PROMPTS = st.tuples(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20)), max_size=2), st.integers(1, 30)
)


class GroupedMachine(RuleBasedStateMachine):
    """Admissions, chunks, decodes and releases in any order; every state is recomputed."""

    @initialize(
        groups=st.sampled_from(GROUPS),
        blocks=st.integers(4, 60),
        cached=st.booleans(),
        retention=st.sampled_from([0, None, 8, 24]),
        ahead=st.booleans(),
        lookahead=st.sampled_from([0, 0, 3]),
    )
    def build(
        self,
        groups: list[LayerGroup],
        blocks: int,
        cached: bool,
        retention: int | None,
        ahead: bool,
        lookahead: int,
    ) -> None:
        self.allocator = memory(
            groups,
            blocks,
            cached=cached,
            retention_interval=retention,
            async_scheduling=ahead,
            lookahead_tokens=lookahead,
            max_num_batched_tokens=16,
        )
        self.ahead = ahead
        self.held: list[Sequence] = []

    def snapshot(self) -> tuple[object, ...]:
        usage, cache = self.allocator.usage, self.allocator.cache
        return (
            self.allocator.dump(),
            [[list(table) for table in one.tables] for one in self.held],
            [getattr(usage, name) for name in usage.__slots__],
            0 if cache is None else cache.num_keys(),
        )

    @rule(prompt=PROMPTS, output=st.integers(1, 40), keep=st.integers(0, 3), gate=st.booleans())
    def admit(
        self, prompt: tuple[list[tuple[str, int]], int], output: int, keep: int, gate: bool
    ) -> None:
        segments = (*prompt[0], (object(), prompt[1]))
        tokens = sum(length for _, length in segments)
        one = Sequence(Request("r", 0, tokens, output, segments=segments), max_model_len=200)
        hit = self.allocator.lookup(one)
        assert hit.tokens < tokens
        assert hit.tokens % self.allocator.block_size == 0
        before = self.snapshot()
        new = min(16, tokens - hit.tokens)
        if self.allocator.admit(one, hit, new, tokens if gate else 0, keep):
            one.computed = hit.tokens + new
            one.chunk_tokens = new
            self.held.append(one)
            assert self.allocator.free_count() >= keep
        else:
            assert before == self.snapshot()
            assert one.tables == []

    def append(self, one: Sequence, new: int) -> bool:
        prompt = one.request.prompt_tokens
        known = max(prompt, one.computed + (0 if self.ahead else 1))
        in_flight = one.chunk_tokens if self.ahead else 0
        if not self.allocator.append(one, one.computed, new, known, in_flight):
            return False
        one.computed += new
        one.chunk_tokens = new
        return True

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        prompt = one.request.prompt_tokens
        new = min(16, prompt - one.computed) if one.computed < prompt else 1
        if one.computed + new > one.final_kv_tokens:
            return
        before = self.allocator.usage.allocated
        lengths = [len(table) for table in one.tables]
        if not self.append(one, new):
            assert lengths == [len(table) for table in one.tables]
            assert self.allocator.usage.allocated <= before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def decode_up_to_the_horizon(self, data: st.DataObject) -> None:
        """Nothing changes before it; at it something does."""
        one = data.draw(st.sampled_from(self.held))
        if one.computed < one.request.prompt_tokens:
            return
        ahead = self.allocator.horizon(one, one.computed)
        left = one.final_kv_tokens - one.computed
        before = self.snapshot()
        one.computed += min(ahead, left)
        if data.draw(st.booleans()):
            one.computed -= min(ahead, left)
            for _ in range(min(ahead, left)):
                assert self.append(one, 1)
        assert before == self.snapshot()
        if left > ahead and one.chunk_tokens == 1:
            appended = self.append(one, 1)
            assert not appended or before != self.snapshot()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if self.ahead and data.draw(st.booleans()):
            self.allocator.seal(one, one.computed)
        self.allocator.release(one)
        assert (one.tables, one.null_blocks) == ([], [])

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        self.allocator.check_integrity(self.held)
        terms = terms_of(self.allocator, sum(one.computed for one in self.held))
        assert terms.total == self.allocator.capacity_slots
        assert min(terms) >= 0
        assert terms.usable_free == self.allocator.free_count() * self.allocator.block_size


GroupedMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestGroupedMachine = GroupedMachine.TestCase
