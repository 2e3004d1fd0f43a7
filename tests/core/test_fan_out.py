"""Samples of one prompt as requests of their own, given back as one request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.branches import BranchingAllocator
from kvsim.core.eviction import LruOrder
from kvsim.core.fan_out import FanOutScheduler, samples_of
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Branching, Request, Sequence, State
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import FixedClock
from kvsim.results import RequestsRecorder, SummaryRecorder, Tee
from kvsim.sim.replica import run_replica

BLOCK = 4


def server(
    blocks: int = 100, *, caches: bool = True, is_async: bool = False, seqs: int = 16
) -> tuple[PagedAllocator, FanOutScheduler]:
    allocator = PagedAllocator(
        blocks,
        BLOCK,
        null_block=False,
        eviction=LruOrder() if caches else None,
        seals_ahead=not is_async,
    )
    inner = VllmScheduler(
        allocator,
        max_num_seqs=seqs,
        max_num_batched_tokens=64,
        max_model_len=64,
        async_scheduling=is_async,
    )
    return allocator, FanOutScheduler(inner)


def parallel(name: str, n: int, prompt: int = 10, output: int = 3) -> Request:
    return Request(name, 0, prompt, output, branches=Branching("parallel", n))


def test_the_samples_have_one_prompt_and_names_of_their_own() -> None:
    """A prompt of nobody else becomes one that they share; one of them goes on being repeated."""
    first, second = samples_of(parallel("r", 2)._replace(output_stream="answer"))
    assert (first.request_id, second.request_id) == ("r#0", "r#1")
    assert first.segments == second.segments == ((("prompt of", "r"), 10),)
    assert (first.output_stream, second.output_stream) == ("answer", None)
    kept = samples_of(parallel("r", 2)._replace(segments=((7, 4), (8, 6))))
    assert kept[1].segments == ((7, 4), (8, 6))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_is_recorded_once_and_ends_with_its_last_sample(is_async: bool) -> None:
    """Two samples run at a time, so the third starts when the first two end."""
    allocator, scheduler = server(is_async=is_async, seqs=2)
    requests = RequestsRecorder()
    summary = SummaryRecorder(allocator)
    recorder = Tee(summary, requests)
    end = run_replica([parallel("r", 3)], scheduler, FixedClock(1.0), recorder)
    columns = requests.columns()
    assert list(columns["request_id"]) == ["r"]
    assert list(columns["outcome"]) == ["finished"]
    assert list(columns["output_tokens"]) == [3]
    assert list(columns["first_token_s"]) == [1.0]
    assert columns["finish_s"][0] == end.duration_ns / 1e9 == 6.0
    # The third sample finds the two whole blocks of its prompt; the first two ran together, the
    # second one behind the first in the same step.
    assert list(columns["cached_tokens"]) == [16]
    assert summary.summary()["measured"]["prompt_tokens"] == 10
    assert summary.summary()["measured"]["output_tokens"] == 9
    allocator.check_integrity([])


def test_samples_share_the_whole_blocks_that_an_earlier_one_has_computed() -> None:
    """3 samples of 10 tokens: floor(10 / 4) blocks once and one block each, nothing copied."""
    allocator, scheduler = server()
    scheduler.add(parallel("r", 3))
    plan = scheduler.schedule()
    assert plan.hits == [0, 8, 8]
    assert allocator.usage.allocated == (2 + 3) * BLOCK
    assert allocator.further_holders() == 4
    assert not plan.copies


def test_without_a_cache_every_sample_computes_and_holds_its_prompt() -> None:
    """As n requests would."""
    allocator, scheduler = server(caches=False)
    scheduler.add(parallel("r", 3))
    assert scheduler.schedule().prefill_tokens == 30
    assert allocator.usage.allocated == 3 * 3 * BLOCK


def test_what_is_left_is_told_by_request() -> None:
    """A request of which a sample runs is running, whatever waits."""
    _, scheduler = server(seqs=2)
    for name in ("a", "b"):
        scheduler.add(parallel(name, 3))
    scheduler.add(Request("c", 0, 4, 4))
    plan = scheduler.schedule()
    assert (plan.num_running, plan.further_branches, plan.num_waiting) == (1, 1, 3)
    waiting, running = scheduler.unfinished()
    assert [whole.request.request_id for whole in running] == ["a"]
    assert [whole.request.request_id for whole in waiting] == ["b", "c"]
    assert running[0].state is State.DECODING
    scheduler.complete(plan)
    assert [whole.tokens for whole in scheduler.unfinished()[1]] == [10 + 2 // 3]


@given(
    n=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    blocks=st.integers(6, 40),
    is_async=st.booleans(),
)
def test_requests_are_counted_once_however_their_samples_come_and_go(
    n: list[int], blocks: int, is_async: bool
) -> None:
    """Through preemptions too: counts equal those of the samples' requests, looked up anew."""
    allocator, scheduler = server(blocks, is_async=is_async, seqs=5)
    whole = [scheduler.add(parallel(f"r{i}", width)) for i, width in enumerate(n)]
    plans: list[StepPlan] = []
    finished: list[Sequence] = []
    for _ in range(500):
        if not scheduler.has_work():
            break
        plan = scheduler.schedule()
        waiting, running = scheduler.inner.unfinished()
        names = [{s.request.request_id.split("#")[0] for s in part} for part in (running, waiting)]
        assert (plan.num_running, plan.num_waiting) == (len(names[0]), len(names[1]))
        assert plan.num_running + plan.further_branches == len(running)
        allocator.check_integrity(scheduler.running())
        if plan.scheduled_tokens:
            plans.append(plan)
        while len(plans) > is_async or (plans and not plan.scheduled_tokens):
            finished += scheduler.complete(plans.pop(0))
    assert sorted(map(id, finished)) == sorted(map(id, whole))


@given(n=st.lists(st.integers(1, 4), min_size=2, max_size=8), host_blocks=st.integers(0, 30))
def test_samples_that_come_back_from_the_host_run_again(n: list[int], host_blocks: int) -> None:
    """Requests are counted as without swapping."""
    allocator = BranchingAllocator(8, BLOCK, null_block=False, host_blocks=host_blocks)
    scheduler = FanOutScheduler(
        GroupScheduler(
            allocator,
            max_num_seqs=16,
            max_num_batched_tokens=64,
            max_model_len=64,
            preemption="swap",
        )
    )
    whole = [scheduler.add(parallel(f"r{i}", width, 4, 20)) for i, width in enumerate(n)]
    finished: list[Sequence] = []
    while scheduler.has_work():
        plan = scheduler.schedule()
        waiting, running = scheduler.inner.unfinished()
        names = [{s.request.request_id.split("#")[0] for s in part} for part in (running, waiting)]
        assert (plan.num_running, plan.num_waiting) == (len(names[0]), len(names[1]))
        assert plan.num_running + plan.further_branches == len(running)
        if plan.scheduled_tokens:
            finished += scheduler.complete(plan)
    assert sorted(map(id, finished)) == sorted(map(id, whole))


def test_an_abort_cancels_all_samples() -> None:
    """Running ones and waiting ones; nothing is held any more."""
    allocator, scheduler = server(seqs=2)
    scheduler.add(parallel("a", 3))
    scheduler.schedule()
    whole = scheduler.abort("a")
    assert whole is not None
    assert whole.state is State.ABORTED
    assert not scheduler.has_work()
    assert scheduler.abort("a") is None
    allocator.check_integrity([])
    assert allocator.usage.allocated == 0


def test_one_sample_is_the_request_itself_and_beams_are_refused() -> None:
    """n = 1 changes nothing; beams depend on each other."""
    _, scheduler = server()
    assert scheduler.add(parallel("r", 1)).request == Request("r", 0, 10, 3)
    with pytest.raises(ValueError, match="beams cannot be requests of their own"):
        scheduler.add(Request("r", 0, 10, 3, branches=Branching("beam", 2)))


def test_a_sample_that_can_never_fit_refuses_the_request() -> None:
    """At arrival, as any request."""
    _, scheduler = server(2)
    reason = scheduler.refuse(parallel("r", 3))
    assert reason is not None
    assert reason.startswith("never_fits")
