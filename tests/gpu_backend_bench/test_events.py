"""The events of a scheduler's run: who holds how many tokens when."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu_backend.fragmentation import Admit, Free, Grow, events_of
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler


def scheduler(num_blocks: int = 100, block_size: int = 1, **changes: Any) -> VllmScheduler:
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 40}
    return VllmScheduler(PagedAllocator(num_blocks, block_size), **{**settings, **changes})


def test_the_events_of_one_request() -> None:
    # A prompt of 10 in chunks of 8 and 2, then outputs 2 and 3; the last one gets no KV.
    events = list(events_of([Request("a", 0, 10, 3)], scheduler(), step_s=1.0))
    assert events == [
        Admit("a", 8, 12), Grow("a", 10), Grow("a", 11), Grow("a", 12), Free("a"),
    ]  # fmt: skip


def test_arrivals_meet_the_step_that_their_time_says() -> None:
    requests = [
        Request("a", 0, 2, 4),
        Request("b", 1_500_000_000, 2, 2),
        Request("c", 10**12, 1, 1),
    ]
    events = list(events_of(requests, scheduler(), step_s=1.0))
    assert events == [
        Admit("a", 2, 5), Grow("a", 3),
        Grow("a", 4), Admit("b", 2, 3),
        Grow("a", 5), Grow("b", 3), Free("a"), Free("b"),
        Admit("c", 1, 1), Free("c"),
    ]  # fmt: skip


def test_a_preempted_request_is_freed_and_admitted_anew() -> None:
    # 9 blocks of one token, one of them the null block: not both can have their 7 tokens.
    requests = [Request("a", 0, 3, 5), Request("b", 0, 3, 5)]
    events = list(events_of(requests, scheduler(num_blocks=9), step_s=1.0))
    of_b = [event for event in events if event.request_id == "b"]
    frees = [index for index, event in enumerate(of_b) if isinstance(event, Free)]
    assert len(frees) == 2
    assert frees[-1] == len(of_b) - 1
    again = of_b[frees[0] + 1]
    assert isinstance(again, Admit)
    before = of_b[frees[0] - 1]
    assert isinstance(before, Grow)
    # What was computed before, and the token sampled last, are computed anew.
    assert again.tokens == before.tokens + 1
    assert events.index(of_b[frees[0]]) < events.index(Grow("a", before.tokens + 1))


@pytest.mark.parametrize("seed", range(4))
def test_events_never_hold_more_than_the_scheduler_allocates(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 18, (12, 2), generator=draw).tolist()
    requests = [Request(f"r{n}", n * 10**9, *pair) for n, pair in enumerate(lengths)]
    engine = scheduler(num_blocks=40, block_size=1)
    held: dict[str, int] = {}
    admissions = 0
    for event in events_of(requests, engine, step_s=1.0):
        if isinstance(event, Free):
            del held[event.request_id]
        else:
            admissions += isinstance(event, Admit)
            assert (event.request_id in held) == isinstance(event, Grow)
            assert event.tokens > held.get(event.request_id, 0)
            held[event.request_id] = event.tokens
        assert sum(held.values()) <= 40
    assert held == {}
    assert admissions >= len(requests)


def test_orcas_whole_prompts() -> None:
    memory = ContiguousAllocator(100, 1, max_model_len=40)
    engine = OrcaScheduler(memory, max_num_seqs=4, max_num_batched_tokens=40, max_model_len=40)
    events = list(events_of([Request("a", 0, 10, 3)], engine, step_s=1.0))
    assert events == [Admit("a", 10, 12), Grow("a", 11), Grow("a", 12), Free("a")]


def test_what_can_never_be_served_makes_no_event() -> None:
    requests = [Request("a", 0, 50, 3), Request("b", 0, 30, 9), Request("c", 0, 2, 2)]
    engine = scheduler(num_blocks=20, on_never_fits="block")
    assert {event.request_id for event in events_of(requests, engine, step_s=1.0)} == {"c"}


def test_events_need_a_plain_scheduler_and_a_step() -> None:
    with pytest.raises(ValueError, match="asynchrony"):
        next(events_of([], scheduler(async_scheduling=True), step_s=1.0))
    with pytest.raises(ValueError, match="step_s"):
        next(events_of([], scheduler(), step_s=0.0))
    stuck = scheduler(enable_chunked_prefill=False)
    with pytest.raises(ValueError, match="chunked prefill is off"):
        list(events_of([Request("a", 0, 20, 1)], stuck, step_s=1.0))
