"""What the engine does with requests that cannot run, ties, and limited clients."""

from __future__ import annotations

import pytest

from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import FixedClock
from kvsim.errors import InputError
from kvsim.sim import RunEnd, run_replica
from tests.sim.test_closed_forms import STEP_NS, Fixed, Integrals


def vllm(allocator: PagedAllocator, **changes: object) -> VllmScheduler:
    settings: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_model_len": 1024,
    }
    return VllmScheduler(allocator, **{**settings, **changes})  # type: ignore[arg-type]


def run(
    scheduler: VllmScheduler, requests: list[Request], **options: int
) -> tuple[Integrals, RunEnd]:
    recorder = Integrals()
    end = run_replica(requests, scheduler, Fixed(), recorder, **options)
    return recorder, end


def test_a_request_that_can_never_fit_is_rejected_at_arrival_with_its_reason() -> None:
    requests = [Request("whale", 0, 900, 5), Request("small", 0, 20, 3)]
    recorder, end = run(vllm(PagedAllocator(40, 16)), requests)
    assert [(r.request_id, why) for r, why in recorder.refused] == [
        ("whale", "never_fits: needs 57 blocks of 16, the pool has 39 (at most 624 tokens)")
    ]
    assert [s.request.request_id for s, _ in recorder.ended] == ["small"]
    assert end.stuck is None


def test_a_prompt_as_long_as_the_model_allows_is_refused() -> None:
    recorder, _ = run(vllm(PagedAllocator(400, 16)), [Request("a", 0, 1024, 1)])
    assert [why for _, why in recorder.refused] == ["prompt_too_long"]


def test_a_blocked_queue_ends_the_run_with_a_report_instead_of_spinning() -> None:
    requests = [Request("whale", 0, 900, 5), Request("small", 0, 20, 3)]
    recorder, end = run(vllm(PagedAllocator(40, 16), on_never_fits="block"), requests)
    assert end.stuck is not None
    assert (end.stuck.head_request_id, end.stuck.waiting, end.steps) == ("whale", 2, 0)
    assert [outcome for _, outcome in recorder.ended] == ["unfinished", "unfinished"]


def test_a_lone_request_that_outgrows_the_memory_again_and_again_is_reported_as_stuck() -> None:
    """Without the full-sequence gate it is admitted chunk by chunk, and evicts itself again."""
    scheduler = vllm(PagedAllocator(33, 16), on_never_fits="block", reserve_full_isl=False)
    recorder, end = run(scheduler, [Request("a", 0, 500, 300)])
    assert end.stuck is not None
    assert "request a outgrew the whole memory" in end.stuck.reason
    assert [outcome for _, outcome in recorder.ended] == ["unfinished"]
    assert end.steps < 50


def test_a_long_recomputation_is_not_called_stuck() -> None:
    """One preempted request computes 24,000 tokens again, two per step, alone."""
    scheduler = VllmScheduler(
        PagedAllocator(2951, 16), max_num_seqs=2, max_num_batched_tokens=2, max_model_len=30_000
    )
    requests = [Request("first", 0, 10, 24_000), Request("long", 0, 23_990, 20)]
    recorder, end = run(scheduler, requests)
    assert end.stuck is None
    assert {s.request.request_id: s.preemptions for s, _ in recorder.ended} == {
        "first": 0,
        "long": 1,
    }
    assert [outcome for _, outcome in recorder.ended] == ["finished", "finished"]


def test_a_whole_prompt_beyond_the_budget_is_named_as_the_reason() -> None:
    scheduler = vllm(PagedAllocator(400, 16), enable_chunked_prefill=False)
    _, end = run(scheduler, [Request("a", 0, 200, 3)])
    assert end.stuck is not None
    assert "200 tokens, more than max_num_batched_tokens (=128)" in end.stuck.reason


def test_an_arrival_at_the_instant_a_step_ends_is_seen_by_the_next_step() -> None:
    requests = [Request("a", 0, 10, 5), Request("b", 2 * STEP_NS, 10, 1)]
    recorder, _ = run(vllm(PagedAllocator(40, 16)), requests)
    scheduled = {s.request.request_id: s.first_scheduled_ns for s, _ in recorder.ended}
    assert scheduled == {"a": 0, "b": 2 * STEP_NS}


def test_idle_time_between_requests_is_reported() -> None:
    requests = [Request("a", 0, 10, 2), Request("b", 10 * STEP_NS, 10, 1)]
    recorder, end = run(vllm(PagedAllocator(40, 16)), requests)
    assert recorder.idle_ns == 8 * STEP_NS
    assert end.duration_ns == 11 * STEP_NS


def test_limited_clients_send_the_next_request_when_one_leaves_and_it_arrives_then() -> None:
    requests = [Request(f"r{i}", 0, 10, 3) for i in range(5)]
    recorder, end = run(vllm(PagedAllocator(40, 16)), requests, max_concurrency=2)
    assert recorder.max_batch == 2
    assert [s.arrived_ns // STEP_NS for s, _ in recorder.ended] == [0, 0, 3, 3, 6]
    assert end.duration_ns == 9 * STEP_NS


def test_a_replacement_is_in_the_very_next_step_when_members_end_at_different_times() -> None:
    requests = [Request(f"r{i}", 0, 10, 3 + 2 * (i % 2)) for i in range(6)]
    recorder, end = run(vllm(PagedAllocator(40, 16)), requests, max_concurrency=2)
    assert all(s.first_scheduled_ns == s.arrived_ns for s, _ in recorder.ended)
    assert recorder.running_ns == sum(r.output_tokens for r in requests) * STEP_NS
    assert end.duration_ns == 14 * STEP_NS


@pytest.mark.parametrize(("step_s", "outputs"), [(1e300, 1), (2e9, 5)])
def test_a_step_that_ends_after_292_years_is_refused(step_s: float, outputs: int) -> None:
    """Times are 64-bit nanoseconds, 9.22e9 s: four steps of 2e9 s fit, a fifth does not."""
    recorder = Integrals()
    requests = [Request("a", 0, 10, outputs)]
    with pytest.raises(InputError, match=f"step {outputs} would end after 292 years") as error:
        run_replica(requests, vllm(PagedAllocator(40, 16)), FixedClock(step_s), recorder)
    assert error.value.where == "clock"
    assert error.value.fix
    run_replica([Request("a", 0, 10, 4)], vllm(PagedAllocator(40, 16)), FixedClock(2e9), recorder)


def test_limited_clients_keep_to_the_times_of_later_requests() -> None:
    requests = [Request("a", 0, 10, 2), Request("b", 0, 10, 2), Request("c", 9 * STEP_NS, 10, 1)]
    recorder, _ = run(vllm(PagedAllocator(40, 16)), requests, max_concurrency=1)
    assert [s.arrived_ns // STEP_NS for s, _ in recorder.ended] == [0, 2, 9]


def test_a_rejected_request_makes_room_for_the_next_client() -> None:
    requests = [Request("whale", 0, 900, 5), Request("small", 0, 20, 3)]
    recorder, _ = run(vllm(PagedAllocator(40, 16)), requests, max_concurrency=1)
    assert [s.request.request_id for s, _ in recorder.ended] == ["small"]


def test_requests_that_a_blocked_server_never_got_are_accounted_for() -> None:
    requests = [Request("whale", 0, 900, 5), *(Request(f"r{i}", 0, 20, 3) for i in range(3))]
    scheduler = vllm(PagedAllocator(40, 16), on_never_fits="block")
    recorder, end = run(scheduler, requests, max_concurrency=2)
    assert end.stuck is not None
    assert [(s.request.request_id, s.state.value, outcome) for s, outcome in recorder.ended] == [
        ("whale", "waiting", "unfinished"),
        ("r0", "waiting", "unfinished"),
        ("r1", "not_sent", "unfinished"),
        ("r2", "not_sent", "unfinished"),
    ]
