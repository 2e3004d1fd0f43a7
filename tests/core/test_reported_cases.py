"""Situations that operators of real servers reported, run through the engine.

Numbers are those of the reports; the links lead to them.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import FixedClock
from kvsim.results import SummaryRecorder
from kvsim.sim import RunEnd, run_replica

# A shared prefix shorter than a block. https://github.com/vllm-project/vllm/issues/54607


@pytest.mark.parametrize(
    ("block_size", "found", "hit_rate"),
    [pytest.param(784, 0, 0.0, id="block of 784"), pytest.param(16, 240, 0.493, id="block of 16")],
)
def test_a_shared_prefix_of_240_tokens_is_found_only_in_blocks_that_it_fills(
    block_size: int, found: int, hit_rate: float
) -> None:
    """The same prompts of 490 tokens hit never on one engine, and by half on the other."""
    allocator = PagedAllocator(1 + 500_000 // block_size, block_size, eviction=LruOrder())
    scheduler = VllmScheduler(
        allocator, max_num_seqs=4, max_num_batched_tokens=2048, max_model_len=2048
    )
    requests = [
        Request(f"r{index}", 0, 490, 10, segments=(("system", 240), (f"user {index}", 250)))
        for index in range(200)
    ]
    recorder = SummaryRecorder(allocator)
    run_replica(requests, scheduler, FixedClock(0.02), recorder)
    counts = allocator.prefix_counts()
    assert counts is not None
    assert counts["query_tokens"] == 200 * 490
    assert counts["hit_tokens"] == 199 * found
    # what was computed before and is not found is due to the block size, not to eviction
    assert counts["block_rounding_tokens"] == 199 * (240 - found)
    assert counts["evicted_tokens"] == counts["last_token_tokens"] == 0
    rate = counts["hit_tokens"] / counts["query_tokens"]
    assert rate == pytest.approx(hit_rate, abs=0.02 if found else 0)


# A request that outgrows the memory. https://github.com/vllm-project/vllm/pull/52530

UNSERVABLE = Request("unservable", 0, 1000, 24)
SERVABLE_TOKENS = 63 * 16


def engine(**changes: Any) -> VllmScheduler:
    """63 usable blocks of 16 hold 1008 tokens; the model allows 1024."""
    settings: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": 1024,
        "on_never_fits": "block",
        **changes,
    }
    return VllmScheduler(PagedAllocator(64, 16), **settings)


def run(scheduler: VllmScheduler, request: Request) -> tuple[RunEnd, Any]:
    recorder = SummaryRecorder(scheduler.allocator)
    end = run_replica([request], scheduler, FixedClock(0.02), recorder)
    return end, recorder.summary()


@pytest.mark.parametrize("full_isl", [True, False], ids=["full isl", "first chunk"])
@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
def test_a_request_that_outgrows_the_memory_is_reported_with_the_servable_maximum(
    full_isl: bool, ahead: bool
) -> None:
    """The front end lets it pass, it decodes to the wall, and would start again without end."""
    scheduler = engine(reserve_full_isl=full_isl, async_scheduling=ahead)
    end, summary = run(scheduler, UNSERVABLE)
    assert end.stuck is not None
    assert end.stuck.head_request_id == "unservable"
    assert str(SERVABLE_TOKENS) in end.stuck.reason
    assert summary["requests"]["unfinished"] == 1
    # 4 chunks and 8 output tokens, at most twice
    assert end.steps <= 2 * (4 + 8 + 2)


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
def test_a_request_that_outgrows_the_memory_is_refused_at_arrival_if_so_told(ahead: bool) -> None:
    scheduler = engine(on_never_fits="reject", async_scheduling=ahead)
    reason = scheduler.refuse(UNSERVABLE)
    assert reason is not None
    assert reason.startswith("never_fits: ")
    assert "64 blocks of 16" in reason
    assert "63" in reason
    end, summary = run(scheduler, UNSERVABLE)
    assert (end.stuck, end.steps) == (None, 0)
    assert summary["requests"]["rejected"] == 1


@pytest.mark.parametrize("full_isl", [True, False], ids=["full isl", "first chunk"])
@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
def test_the_servable_maximum_is_served(full_isl: bool, ahead: bool) -> None:
    """One token more than the memory holds: the last sampled token needs no slot."""
    largest = Request("largest", 0, 1000, SERVABLE_TOKENS + 1 - 1000)
    for on_never_fits in ("reject", "block"):
        scheduler = engine(
            reserve_full_isl=full_isl, async_scheduling=ahead, on_never_fits=on_never_fits
        )
        end, summary = run(scheduler, largest)
        assert end.stuck is None
        assert (summary["requests"]["finished"], summary["preemptions"]) == (1, 0)
    one_more = largest._replace(output_tokens=largest.output_tokens + 1)
    assert engine(on_never_fits="reject").refuse(one_more) is not None


# Long prompts admitted by their first chunk. https://github.com/vllm-project/vllm/pull/37307


class Thrash:
    """Four prompts of 100,000 tokens hold 90 % of 445,000 slots; a fifth arrives."""

    def __init__(self, *, full_isl: bool) -> None:
        self.allocator = PagedAllocator(1 + 445_000 // 16, 16)
        self.scheduler = VllmScheduler(
            self.allocator,
            max_num_seqs=16,
            max_num_batched_tokens=8192,
            max_model_len=131_072,
            reserve_full_isl=full_isl,
        )
        for index in range(4):
            self.scheduler.add(Request(f"r{index}", 0, 100_000, 400))
        while self.scheduler.calendar.num_decodes < 4:
            self.step()
        self.held_share = self.allocator.usage.allocated / self.allocator.capacity_slots
        self.fifth = self.scheduler.add(Request("fifth", 0, 100_000, 400))

    def step(self) -> tuple[StepPlan, list[Sequence]]:
        plan = self.scheduler.schedule()
        return plan, self.scheduler.complete(plan)


def test_a_prompt_admitted_by_its_first_chunk_is_preempted_again_and_again() -> None:
    """Each time it computes about 45,000 tokens for nothing."""
    server = Thrash(full_isl=False)
    assert server.held_share == pytest.approx(0.9, abs=0.005)
    wasted: list[int] = []
    since_admission = 0
    finished: list[Sequence] = []
    while not finished:
        plan, finished = server.step()
        if server.fifth in plan.preempted:
            wasted.append(since_admission)
            since_admission = 0
        since_admission += plan.prefill_tokens
    assert len(wasted) > 20
    assert server.fifth.preemptions == len(wasted)
    for tokens in wasted:
        assert 45_000 * 0.85 <= tokens <= 50_000 * 1.15


def test_a_prompt_that_must_fit_as_a_whole_waits_until_another_one_finishes() -> None:
    server = Thrash(full_isl=True)
    finished: list[Sequence] = []
    while not finished:
        plan, finished = server.step()
        assert (plan.preempted, plan.prefill_tokens) == ([], 0)
        assert plan.num_waiting == 1
        assert plan.head_short_of_memory
    preemptions = 0
    while server.scheduler.has_work():
        plan, _ = server.step()
        preemptions += len(plan.preempted)
    assert preemptions == server.fifth.preemptions == 0
    assert server.fifth.tokens == 100_400
