from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpu_backend.fragmentation import (
    Admit,
    Event,
    Free,
    Grow,
    Policy,
    run_events,
)
from gpu_backend.kv_memories import Arena, KvShape
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence

SHAPE = KvShape(layers=1, kv_heads=2, head_dim=4, element_bytes=2)
UNIT = 2 * 4 * 2  # bytes of one token in K, or in V
EVERY, WHOLE = Policy(whole=False), Policy(whole=True)


def simulate(
    events: Iterable[Event], policy: Policy = EVERY, capacity: int = 100, where: str = "first_fit"
) -> dict[str, Any]:
    return run_events(events, SHAPE, policy, Arena(SHAPE, capacity, where))


def test_one_growth_by_hand() -> None:
    # K at 0-4 and V at 4-8. Growing to 5, K goes to 8-13 and frees 0-4, which is too small for
    # V: 13-18. Reserved are 18 slots, and 13 + 5 were held at once.
    found = simulate([Admit("a", 4, 9), Grow("a", 5)])
    assert found == {
        "peak_allocated_bytes": (5 + 4 + 5) * UNIT,
        "peak_reserved_bytes": 18 * UNIT,
        "retries": 0,
        "mean_allocated_bytes": (8 + 10) / 2 * UNIT,
        "mean_reserved_bytes": (8 + 18) / 2 * UNIT,
        "mean_split_bytes": 8 / 2 * UNIT,
        "peak_split_bytes": 8 * UNIT,
        "mean_idle_share": (0 + 8 / 18) / 2,
        "refused": 0,
    }


def test_the_whole_length_at_once_never_moves() -> None:
    found = simulate([Admit("a", 4, 9), *(Grow("a", n) for n in range(5, 10)), Free("a")], WHOLE)
    assert found["peak_allocated_bytes"] == found["peak_reserved_bytes"] == 18 * UNIT
    assert found["mean_allocated_bytes"] == pytest.approx(6 / 7 * 18 * UNIT)
    assert found["mean_idle_share"] == pytest.approx(1 / 7)  # after the end, all that is reserved
    assert found["peak_split_bytes"] == 0


def test_what_was_reserved_stays_reserved() -> None:
    # c fits the hole that a leaves at 0-8: nothing new is reserved, 16 slots stay so.
    found = simulate([Admit("a", 4, 4), Admit("b", 4, 4), Free("a"), Admit("c", 2, 2), Free("b")])
    assert found["mean_reserved_bytes"] == (8 + 16 + 16 + 16 + 16) / 5 * UNIT
    assert found["peak_reserved_bytes"] == 16 * UNIT
    assert found["mean_split_bytes"] == (0 + 0 + 8 + 4 + 12) / 5 * UNIT


def test_growth_in_strides_is_rare() -> None:
    strides = Policy(whole=False, grow_every=8)
    assert [strides.length(n, 99) for n in (1, 8, 9)] == [8, 8, 16]
    found = simulate([Admit("a", 4, 9), *(Grow("a", n) for n in range(5, 9))], strides)
    assert found["peak_reserved_bytes"] == 16 * UNIT
    assert found["mean_split_bytes"] == 0


def test_buddies_are_allocated_whole() -> None:
    found = simulate([Admit("a", 5, 5)], where="buddy", capacity=64)
    assert found["peak_allocated_bytes"] == 2 * 8 * UNIT


def test_a_request_that_does_not_fit_is_given_up_and_may_come_back() -> None:
    events = [Admit("a", 4, 9), Admit("b", 7, 9), Grow("b", 8), Free("a"), Admit("b", 7, 9)]
    found = simulate(events, capacity=10)
    assert found["refused"] == 1
    # K of b fitted, V did not: K was given back.
    assert found["mean_allocated_bytes"] == (8 + 8 + 8 + 0 + 14) / 5 * UNIT


def test_a_request_that_cannot_grow_is_given_up_whole() -> None:
    found = simulate([Admit("a", 4, 9), Grow("a", 5), Grow("a", 6), Free("a")], capacity=6)
    assert found["refused"] == 1
    assert found["mean_allocated_bytes"] == 8 / 4 * UNIT


def test_whole_lengths_lie_where_the_contiguous_allocator_puts_them() -> None:
    # Reserve `oracle` takes prompt + output; one tensor of the arena is the allocator's memory.
    memory = ContiguousAllocator(200, 1, max_model_len=60, reserve="oracle", placement="best_fit")
    arena = Arena(SHAPE, 100, "best_fit")  # K and V: 200 slots
    held: dict[str, Any] = {}
    for name, tokens in (("a", 20), ("b", 30), ("c", 25), ("-b", 0), ("d", 28), ("e", 50)):
        if name.startswith("-"):
            sequence, extent = held.pop(name[1:])
            memory.release(sequence)
            arena.free(extent)
            continue
        sequence = Sequence(Request(name, 0, 5, tokens - 5), 60)
        assert memory.admit(sequence, NO_HIT, 5, 0, 0)
        extent = arena.take(tokens)
        assert extent == (sequence.extent.start_slot, sequence.extent.slots)
        held[name] = (sequence, extent)


@pytest.mark.parametrize(("capacity", "where"), [(0, "best_fit"), (5, "anywhere")])
def test_an_arena_is_checked(capacity: int, where: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        Arena(SHAPE, capacity, where)


def test_a_request_admitted_twice_is_a_fault() -> None:
    with pytest.raises(ValueError, match="twice"):
        simulate([Admit("a", 1, 2), Admit("a", 1, 2)])
