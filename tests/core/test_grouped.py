"""Layer groups over one pool: bounds, hits, retention, order of the free queue, and horizons."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import MemoryTerms, split
from kvsim.core.eviction import LruOrder
from kvsim.core.group import LayerGroup, group_kinds
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.protocols import Hit
from kvsim.core.request import Request, Sequence

FULL = LayerGroup("full", 4)
SLIDING = LayerGroup("sliding", 4, window=8)


GROUPS = [
    [LayerGroup("full", 4), LayerGroup("sliding", 4, 8)],
    [LayerGroup("sliding", 4, 7), LayerGroup("full", 4), LayerGroup("sliding", 4, 7)],
    [LayerGroup("sliding", 3, 5)],
    [LayerGroup("full", 2), LayerGroup("sliding", 2, 3), LayerGroup("sliding", 2, 12)],
    [LayerGroup("full", 4), LayerGroup("sliding", 8, 9)],
    [LayerGroup("full", 8), LayerGroup("sliding", 2, 12)],
    [LayerGroup("full", 8), LayerGroup("sliding", 2, 6), LayerGroup("sliding", 4, 1)],
]


UNCACHED_GROUPS = [
    [LayerGroup("chunked", 4, chunk=12), LayerGroup("full", 4)],
    [LayerGroup("chunked", 4, chunk=10), LayerGroup("sliding", 4, 7)],
    [LayerGroup("chunked", 3, chunk=2)],
    [LayerGroup("state", 4, state_tokens=3), LayerGroup("full", 4)],
    [
        LayerGroup("full", 2),
        LayerGroup("state", 8, state_tokens=8),
        LayerGroup("state", 4, None, None, 1),
    ],
    [LayerGroup("state", 4, state_tokens=4), LayerGroup("chunked", 2, chunk=9)],
]
"""Groups of kinds that the prefix cache does not cover."""


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


def junction(hit: Hit) -> int:
    return hit.blocks.junction if hit.blocks else 0


def longest_hit(allocator: GroupedAllocator, one: Sequence) -> tuple[int, int]:
    """The longest prefix whose window every group has cached; the longest of the first kind.

    The first kind is the first full-attention group's, where there is one.
    """
    if allocator.cache is None:
        return 0, 0
    lengths = range(0, one.tokens, allocator.block_size)
    groups = range(len(allocator.groups))
    hit = max(n for n in lengths if all(has_window(allocator, one, n, g) for g in groups))
    leading = min(groups, key=lambda group: allocator.groups[group].kind != "full")
    kind = [g for g in groups if allocator.groups[g] == allocator.groups[leading]]
    longest = max(n for n in lengths if all(has_window(allocator, one, n, g) for g in kind))
    return hit, longest if longest > hit else 0


def has_window(allocator: GroupedAllocator, one: Sequence, length: int, group: int) -> bool:
    """Whether the blocks that the token at `length` attends to are cached."""
    _, size, window, *_ = allocator.groups[group]
    stop = length // size
    # a window of one token needs no earlier block, but then none is cached either
    blocks = stop if window is None else min(stop, max(1, -(-(window - 1) // size)))
    keys = allocator.keys(one, stop - blocks, stop, group)
    return all(allocator.cache.find(key) is not None for key in keys)


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
    one = sequence(24, output=9)
    assert allocator.admit(one, allocator.lookup(one), 16, 0, 0)
    assert allocator.append(one, 16, 8, known=24, in_flight=16)
    assert one.null_blocks == [0]
    assert allocator.append(one, 24, 1, known=24, in_flight=8)
    assert one.null_blocks == [2]
    assert allocator.append(one, 25, 1, known=25, in_flight=1)
    assert one.null_blocks == [4]


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


@given(
    block_size=st.integers(1, 5),
    window=st.integers(1, 30),
    other=st.integers(1, 4),
    retention=st.none() | st.integers(0, 50),
    first=st.integers(0, 30),
    count=st.integers(0, 30),
    places=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_kept_blocks_end_within_a_window_of_a_retained_place(
    block_size: int,
    window: int,
    other: int,
    retention: int | None,
    first: int,
    count: int,
    places: tuple[int, int],
) -> None:
    """vllm/SPEC.md section 6, block by block."""
    groups = [LayerGroup("sliding", block_size, window), LayerGroup("full", block_size * other)]
    (_, kind) = group_kinds(groups, retention=retention, max_tokens=500, max_in_flight=8)
    aligned = block_size * other
    ends = (places[0] * aligned, places[1] * aligned)
    segment = aligned if retention is None else retention
    span = -(-(window - 1) // block_size) * block_size

    def retained(index: int) -> bool:
        end = (index + 1) * block_size
        return segment > 0 and -(-end // segment) * segment - end < span

    def kept(index: int) -> bool:
        return retained(index) or any(0 <= end - (index + 1) * block_size < span for end in ends)

    ranges = kind.kept(first, first + count, ends)
    listed = [index for low, high in ranges for index in range(low, high)]
    assert listed == [index for index in range(first, first + count) if kept(index)]
    expected = next((index for index in range(first, first + 100) if retained(index)), None)
    assert kind.next_kept(first) == expected


@settings(max_examples=300)
@given(groups=st.sampled_from(GROUPS), tokens=st.integers(1, 60), data=st.data())
def test_a_hit_is_the_longest_prefix_whose_window_every_group_has(
    groups: list[LayerGroup], tokens: int, data: st.DataObject
) -> None:
    """Whatever happens to be cached, in any group, at any place."""
    allocator = memory(groups, blocks=500, cached=True)
    one = sequence(tokens, stream="a")
    block = 0
    assert allocator.cache is not None
    for index, group in enumerate(groups):
        count = tokens // group.block_size
        missing = data.draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=3))
        keys = allocator.keys(one, 0, count, index)
        for key in (key for place, key in enumerate(keys) if place not in missing):
            block += 1
            allocator.cache.seal([block], [key])
    hit = allocator.lookup(one)
    assert (hit.tokens, junction(hit)) == longest_hit(allocator, one)
    if hit.tokens:
        for table, group in zip(hit.blocks.tables, groups, strict=True):
            first_needed = 0 if group.window is None else max(0, hit.tokens - group.window + 1)
            nulls = first_needed // group.block_size
            assert [block > 0 for block in table] == [
                index >= nulls for index in range(hit.tokens // group.block_size)
            ]


def test_a_block_that_left_the_window_before_its_turn_gets_no_content() -> None:
    """Blocks of 2 are considered when a block of 8 is full; by then the window has left some."""
    groups = [LayerGroup("full", 8), LayerGroup("sliding", 2, window=6)]
    allocator = memory(groups, cached=True, retention_interval=5)
    one = sequence(1, output=20, stream="a")
    admit(allocator, one)
    for computed in range(1, 17):
        assert allocator.append(one, computed, 1, known=computed + 1)
        allocator.check_integrity([one])
    assert allocator.cache is not None
    assert 0 not in allocator.cache
    # one block of 8 tokens each time, and three of the four blocks of 2
    assert allocator.cache.num_keys() == 2 * (1 + 3)


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
        ([LayerGroup("chunked", 4)], r"groups\[0\]\.chunk \(=None\) must be >= 1"),
        ([LayerGroup("chunked", 4, 8, 8)], r"groups\[0\]\.window \(=8\) must be None"),
        ([LayerGroup("full", 4, chunk=8)], r"groups\[0\]\.chunk \(=8\) must be None"),
        ([LayerGroup("state", 4)], r"groups\[0\]\.state_tokens \(=None\) must be >= 1"),
        ([LayerGroup("state", 4, state_tokens=5)], r"state_tokens \(=5\) must be <= block_size"),
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

PROMPTS = st.tuples(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20)), max_size=2), st.integers(1, 30)
)


MODEL_LEN = 200


class Named:
    """Least recently freed first, but not `LruOrder`: then every content is found by name."""

    def __init__(self) -> None:
        self._order = LruOrder()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._order, name)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, block: object) -> bool:
        return block in self._order


class GroupedMachine(RuleBasedStateMachine):
    """Admissions, chunks, decodes, preemptions and releases in any order, twice.

    Every state is recomputed. One memory has nothing filed that nobody else can ask for, the other
    files everything: no difference may be seen.
    """

    @initialize(
        groups=st.sampled_from(GROUPS + UNCACHED_GROUPS),
        blocks=st.integers(8, 80),
        cached=st.booleans(),
        retention=st.sampled_from([0, None, 8, 24, 5]),
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
        cached = cached and groups in GROUPS
        self.twins = [
            memory(
                groups,
                blocks,
                eviction=order() if cached else None,
                retention_interval=retention,
                async_scheduling=ahead,
                lookahead_tokens=lookahead,
                max_num_batched_tokens=16,
                max_model_len=MODEL_LEN,
            )
            for order in (LruOrder, Named)
        ]
        self.ahead = ahead
        self.waiting: list[list[Sequence]] = []
        self.held: list[list[Sequence]] = []
        """The same sequence in both memories."""

    def snapshots(self) -> list[tuple[object, ...]]:
        return [
            (
                allocator.dump(),
                [(pair[twin].tables, pair[twin].null_blocks) for pair in self.held],
                [getattr(allocator.usage, name) for name in allocator.usage.__slots__],
                0 if allocator.cache is None else allocator.cache.num_keys(),
                allocator.prefix_counts(),
            )
            for twin, allocator in enumerate(self.twins)
        ]

    def state(self) -> object:
        return copy.deepcopy(self.snapshots()[0])

    @rule(
        prompt=PROMPTS,
        output=st.integers(1, 60),
        continued=st.booleans(),
        keep=st.sampled_from([0, 0, 0, 2]),
        gate=st.booleans(),
        whole=st.booleans(),
    )
    def arrive(
        self,
        prompt: tuple[list[tuple[str, int]], int],
        output: int,
        continued: bool,
        keep: int,
        gate: bool,
        whole: bool,
    ) -> None:
        segments = (*prompt[0], (object(), prompt[1])) if prompt[0] else None
        tokens = sum(length for _, length in prompt[0]) + prompt[1]
        stream = "out" if continued else None
        request = Request("r", 0, tokens, output, segments=segments, output_stream=stream)
        pair = [Sequence(request, max_model_len=MODEL_LEN) for _ in self.twins]
        if not self.admit(pair, keep, gate):
            self.waiting.append(pair)
        while whole and 0 < pair[0].computed < tokens:
            if not self.append(pair, min(16, tokens - pair[0].computed)):
                break

    @precondition(lambda self: self.waiting)
    @rule(gate=st.booleans())
    def admit_again(self, gate: bool) -> None:
        if self.admit(self.waiting[-1], 0, gate):
            self.waiting.pop()

    def admit(self, pair: list[Sequence], keep: int, gate: bool) -> bool:
        tokens = pair[0].tokens
        before = self.state()
        answers = []
        for allocator, one in zip(self.twins, pair, strict=True):
            hit = allocator.lookup(one)
            if allocator is self.twins[1]:
                assert (hit.tokens, junction(hit)) == longest_hit(allocator, one)
            new = min(16, tokens - hit.tokens)
            answers.append(allocator.admit(one, hit, new, tokens if gate else 0, keep))
            if answers[0]:
                one.computed = hit.tokens + new
                one.chunk_tokens = new
                one.admissions += 1
                assert allocator.free_count() >= keep
        assert answers[0] == answers[1]
        if answers[0]:
            self.held.append(pair)
        else:
            assert before == self.state()
        return answers[0]

    def append(self, pair: list[Sequence], new: int) -> bool:
        answers = []
        for allocator, one in zip(self.twins, pair, strict=True):
            known = max(one.tokens, one.computed + (0 if self.ahead else 1))
            in_flight = one.chunk_tokens if self.ahead else 0
            answers.append(allocator.append(one, one.computed, new, known, in_flight))
            if answers[0]:
                one.computed += new
                one.chunk_tokens = new
        assert answers[0] == answers[1]
        return answers[0]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.held))
        one = pair[0]
        new = min(16, one.tokens - one.computed) if one.computed < one.tokens else 1
        if one.computed + new > one.final_kv_tokens:
            return
        before = self.twins[0].usage.allocated
        lengths = [len(table) for table in one.tables]
        if not self.append(pair, new):
            assert lengths == [len(table) for table in one.tables]
            assert self.twins[0].usage.allocated <= before

    @precondition(lambda self: self.held)
    @rule(data=st.data(), asked=st.booleans(), times=st.integers(1, 6))
    def decode(self, data: st.DataObject, asked: bool, times: int) -> None:
        pair = data.draw(st.sampled_from(self.held))
        if pair[0].computed >= pair[0].tokens:
            for _ in range(times):
                self.decode_up_to_the_horizon(pair, asked)

    def decode_up_to_the_horizon(self, pair: list[Sequence], asked: bool) -> None:
        """Nothing changes before it, whether the memory is `asked` or not; at it something does."""
        one = pair[0]
        ahead = self.twins[0].horizon(one, one.computed)
        left = one.final_kv_tokens - one.computed
        before = self.state()
        for _ in range(min(ahead, left)):
            if asked:
                assert self.append(pair, 1)
            else:
                for twin in pair:
                    twin.computed += 1
                    twin.chunk_tokens = 1
        assert before == self.state()
        if left > ahead and one.chunk_tokens == 1:
            assert not self.append(pair, 1) or before != self.state()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), resumes=st.booleans())
    def release(self, data: st.DataObject, resumes: bool) -> None:
        pair = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        for allocator, one in zip(self.twins, pair, strict=True):
            if self.ahead and not resumes:
                allocator.seal(one, one.computed)
            allocator.release(one, resumes=resumes)
            assert (one.tables, one.null_blocks) == ([], [])
            known = max(one.tokens, one.computed + (0 if self.ahead else 1))
            one.tokens = min(known, one.final_kv_tokens)
            one.computed = 0
        if resumes:
            self.waiting.append(pair)

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        for twin, allocator in enumerate(self.twins):
            held = [pair[twin] for pair in self.held]
            allocator.check_integrity(held)
            terms = terms_of(allocator, sum(one.computed for one in held))
            assert terms.total == allocator.capacity_slots
            assert min(terms) >= 0
            assert terms.usable_free == allocator.free_count() * allocator.block_size

    @invariant()
    def what_nobody_else_can_ask_for_needs_no_name(self) -> None:
        first, second = self.snapshots()
        assert first == second


GroupedMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestGroupedMachine = GroupedMachine.TestCase
