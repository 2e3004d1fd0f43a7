"""Padding layers and tokens out of every window, as shares of the capacity over time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.eviction import LruOrder
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.results.layers import LimitedType, PaddedType, PaddingRecorder, UnneededRecorder

PLAN = StepPlan(0, {})


def _sequence(prompt: int, stream: str | None = None) -> Sequence:
    segments = None if stream is None else ((stream, prompt),)
    return Sequence(Request("r", 0, prompt, 1, segments=segments), max_model_len=1 << 20)


def _admit(memory: PagedAllocator | GroupedAllocator, one: Sequence) -> Sequence:
    hit = memory.lookup(one)
    assert memory.admit(one, hit, one.tokens - hit.tokens, one.tokens, 0)
    one.computed = one.tokens
    return one


@pytest.mark.parametrize(
    ("kind", "limit", "tokens", "unneeded"),
    [
        ("sliding", 8, 8, 0),
        ("sliding", 8, 9, 1),
        ("sliding", 8, 100, 92),
        ("chunked", 8, 8, 0),
        ("chunked", 8, 9, 8),
        ("chunked", 8, 16, 8),
        ("chunked", 8, 0, 0),
    ],
)
def test_the_last_token_needs_its_window_or_its_chunk(
    kind: str, limit: int, tokens: int, unneeded: int
) -> None:
    assert LimitedType(kind, 1, limit).unneeded(tokens) == unneeded


def _padded() -> tuple[GroupedAllocator, PaddingRecorder]:
    """Gemma-3-27B: 52 layers in six groups of 10, 10 in one; 20 usable blocks."""
    groups = [LayerGroup("sliding", 4, 1024)] * 6 + [LayerGroup("full", 4)]
    memory = GroupedAllocator(
        21, groups, max_model_len=9999, max_num_batched_tokens=9999, async_scheduling=False
    )
    types = [PaddedType(tuple(range(6)), 8, 60), PaddedType((6,), 0, 10)]
    return memory, PaddingRecorder(memory, types)


def test_eight_of_sixty_sliding_layers_are_padding() -> None:
    """Seven blocks for 2 s, six of them sliding; then fourteen for 1 s, then nothing for 1 s."""
    memory, recorder = _padded()
    one, two = _admit(memory, _sequence(4)), _sequence(3)
    recorder.step(PLAN, 0, 2)
    _admit(memory, two)
    recorder.step(PLAN, 2, 1)
    memory.release(one)
    memory.release(two)
    recorder.idle(3, 1)
    assert recorder.share() == pytest.approx((6 * 2 + 12) * 8 / 60 / (20 * 4), abs=1e-15)


def test_only_the_measured_time_counts() -> None:
    memory, _ = _padded()
    types = [PaddedType(tuple(range(6)), 8, 60)]
    recorder = PaddingRecorder(memory, types, window=(5, 8))
    assert recorder.share() is None
    _admit(memory, _sequence(4))
    recorder.step(PLAN, 0, 6)
    recorder.step(PLAN, 6, 100)
    assert recorder.share() == pytest.approx(6 * 8 / 60 / 20, abs=1e-15)


@pytest.mark.parametrize(
    ("layers", "window", "tokens", "share"),
    [((21, 21), 4096, 8192, 0.25), ((9, 27), 32_768, 131_072, 0.5625)],
    ids=["Gemma 2", "Ministral"],
)
def test_a_request_that_fills_a_unified_memory_wastes_what_was_reported(
    layers: tuple[int, int], window: int, tokens: int, share: float
) -> None:
    """vllm issue 11382: 25 % and 56.25 %."""
    memory = PagedAllocator(tokens // 16 + 1, 16)
    running = [_admit(memory, _sequence(tokens))]
    limited = [LimitedType("sliding", layers[1], window)]
    recorder = UnneededRecorder(memory, lambda: running, limited, layers=sum(layers))
    recorder.step(PLAN, 0, 7)
    assert recorder.share() == share
    recorder.idle(7, 7)
    assert recorder.share() == share / 2


def test_a_block_of_two_sequences_is_needed_as_long_as_one_needs_it() -> None:
    """A window of 4: 16 tokens need none of their first 12, 8 of these none of their first 4."""
    memory = PagedAllocator(20, 4, eviction=LruOrder())
    long = _admit(memory, _sequence(16, "a"))
    limited = [LimitedType("sliding", 1, 4)]
    running = [long]
    recorder = UnneededRecorder(memory, lambda: running, limited, layers=1)
    assert recorder.unneeded() == 12
    short = _sequence(9, "a")
    assert memory.lookup(short).tokens == 8
    running.append(_admit(memory, short))
    assert long.table[:2] == short.table[:2]
    # of `short` 5 tokens are unneeded: block 0, and one token of block 1, both held by `long` too
    assert recorder.unneeded() == 4 + 1 + 4
    memory.release(running.pop(0))
    assert recorder.unneeded() == 5


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    size=st.integers(1, 6),
    limit=st.integers(1, 12),
    kind=st.sampled_from(["sliding", "chunked"]),
)
def test_shared_slots_are_counted_as_if_each_token_were_looked_at(
    lengths: list[int], size: int, limit: int, kind: str
) -> None:
    memory = PagedAllocator(300, size, eviction=LruOrder())
    running = [_admit(memory, _sequence(length, "a")) for length in lengths]
    one = LimitedType(kind, 3, limit)
    recorder = UnneededRecorder(memory, lambda: running, [one], layers=5)
    assert recorder.unneeded() == 3 * _slots_nobody_needs(running, one, size)


class _Counted(list[int]):
    """A block table that counts the entries that are looked at."""

    looked = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.looked += len(found) if isinstance(place, slice) else 1
        return found


def test_a_step_that_changes_nothing_looks_at_one_entry_of_a_shared_table_at_most() -> None:
    memory = PagedAllocator(300, 4, eviction=LruOrder())
    running = [_admit(memory, _sequence(length, "a")) for length in (402, 401)]
    recorder = UnneededRecorder(memory, lambda: running, [LimitedType("sliding", 1, 4)], layers=1)
    tables = [_Counted(one.table) for one in running]
    for one, table in zip(running, tables, strict=True):
        one.table = table
    # 99 blocks and 2 or 1 slots of another one, shared too, that only the shorter one bounds
    assert recorder.unneeded() == 99 * 4 + 1
    for table in tables:
        table.looked = 0
    assert recorder.unneeded() == 99 * 4 + 1
    assert [table.looked for table in tables] == [1, 1]


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["admit", "grow", "release", "preempt"]), st.integers(0, 30)),
        max_size=40,
    ),
    size=st.integers(1, 5),
    limit=st.integers(1, 9),
    kind=st.sampled_from(["sliding", "chunked"]),
)
def test_tokens_out_of_windows_are_followed_as_sequences_grow_come_and_go(
    actions: list[tuple[str, int]], size: int, limit: int, kind: str
) -> None:
    memory = PagedAllocator(2000, size, eviction=LruOrder())
    running: list[Sequence] = []
    one = LimitedType(kind, 1, limit)
    recorder = UnneededRecorder(memory, lambda: running, [one], layers=1)
    for action, number in actions:
        if action == "admit":
            running.append(_admit(memory, _sequence(number + 1, "ab"[number % 2])))
        elif running and action == "grow":
            grown = running[number % len(running)]
            assert memory.append(grown, grown.computed, 1, grown.computed + 1)
            grown.computed += 1
            grown.tokens = grown.computed
        elif running:
            left = running.pop(number % len(running))
            memory.release(left, resumes=action == "preempt")
            if action == "preempt":
                running.insert(0, _admit(memory, left))
        assert recorder.unneeded() == _slots_nobody_needs(running, one, size)


def _slots_nobody_needs(running: list[Sequence], one: LimitedType, size: int) -> int:
    needed: dict[tuple[int, int], bool] = {}
    for sequence in running:
        for token in range(sequence.computed):
            slot = (sequence.table[token // size], token % size)
            reached = token >= one.unneeded(sequence.computed)
            needed[slot] = needed.get(slot, False) or reached
    return sum(not any_needs for any_needs in needed.values())
