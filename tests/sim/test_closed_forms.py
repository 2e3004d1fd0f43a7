"""The engine agrees with results that are known in closed form (FIELD.md section 3)."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.sim import run_replica

STEP_S = 0.01
STEP_NS = 10_000_000


class Fixed:
    def step_seconds(self, plan: StepPlan) -> float:
        return STEP_S


class Varying:
    def step_seconds(self, plan: StepPlan) -> float:
        return 0.001 + 1e-6 * plan.decode_context_tokens + 1e-5 * plan.prefill_tokens


class Integrals:
    """Adds up what the closed forms speak about, exactly, in integers."""

    def __init__(self) -> None:
        self.running_ns = 0
        self.live_slot_ns = 0
        self.padded = 0
        self.steps = 0
        self.max_batch = 0
        self.ended: list[tuple[Sequence, str]] = []
        self.refused: list[tuple[Request, str]] = []
        self.idle_ns = 0

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        self.running_ns += plan.num_running * duration_ns
        self.live_slot_ns += plan.live_tokens * duration_ns
        self.padded += plan.padded_decodes
        self.steps += 1
        self.max_batch = max(self.max_batch, plan.num_running)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        self.idle_ns += duration_ns

    def request(self, sequence: Sequence, outcome: str) -> None:
        self.ended.append((sequence, outcome))

    def rejected(self, request: Request, reason: str) -> None:
        self.refused.append((request, reason))


def scheduler(allocator: Allocator, max_num_seqs: int = 10_000) -> VllmScheduler:
    return VllmScheduler(
        allocator, max_num_seqs=max_num_seqs, max_num_batched_tokens=10**7, max_model_len=4096
    )


def poisson(rate: float, count: int, seed: int) -> Iterable[tuple[int, random.Random]]:
    generator = random.Random(seed)
    now = 0.0
    for _ in range(count):
        now += generator.expovariate(rate)
        yield round(now * 1e9), generator


def lengths(count: int, rate: float, seed: int = 1) -> list[Request]:
    return [
        Request(f"r{index}", at, generator.randint(1, 300), generator.randint(1, 120))
        for index, (at, generator) in enumerate(poisson(rate, count, seed))
    ]


def token_steps(prompt: int, output: int) -> int:
    """Closed form 2: sum of KV lengths over a request's iterations."""
    return prompt * output + output * (output - 1) // 2


def test_live_slots_over_time_equal_the_token_steps_of_all_requests() -> None:
    requests = lengths(400, rate=20)
    recorder = Integrals()
    run_replica(requests, scheduler(PagedAllocator(100_000, 16)), Fixed(), recorder)
    expected = sum(token_steps(r.prompt_tokens, r.output_tokens) for r in requests)
    assert recorder.live_slot_ns == expected * STEP_NS


@pytest.mark.parametrize("clock", [Fixed(), Varying()])
def test_time_integral_of_the_batch_equals_the_sum_of_residences(clock: Fixed | Varying) -> None:
    """Closed form 7, exact for any step time."""
    requests = lengths(500, rate=15)
    recorder = Integrals()
    run_replica(requests, scheduler(PagedAllocator(100_000, 16)), clock, recorder)
    residences = sum(s.finished_ns - s.first_scheduled_ns for s, _ in recorder.ended)
    assert recorder.running_ns == residences
    assert len(recorder.ended) == 500


def test_little_mean_batch_is_rate_times_step_time_times_mean_output() -> None:
    """Closed form 7 in the long run: E[batch] = lambda * T * E[O]; sampling error below 2 %."""
    rate, count = 5.0, 20_000
    requests = lengths(count, rate=rate)
    recorder = Integrals()
    end = run_replica(requests, scheduler(PagedAllocator(100_000, 16)), Fixed(), recorder)
    mean_output = sum(r.output_tokens for r in requests) / count
    assert recorder.running_ns / end.duration_ns == pytest.approx(
        rate * STEP_S * mean_output, rel=0.02
    )


def test_ttft_of_one_server_with_constant_service_is_md1() -> None:
    """Closed form 11: D + R*D^2 / (2(1 - R*D)); sampling error below 2 % at 200,000 requests."""
    rate, count = 60.0, 200_000
    requests = [Request(f"r{i}", at, 1, 1) for i, (at, _) in enumerate(poisson(rate, count, 7))]
    recorder = Integrals()
    run_replica(requests, scheduler(PagedAllocator(100, 16), max_num_seqs=1), Fixed(), recorder)
    mean_ttft = sum(s.first_token_ns - s.arrived_ns for s, _ in recorder.ended) / count / 1e9
    expected = STEP_S + rate * STEP_S**2 / (2 * (1 - rate * STEP_S))
    assert mean_ttft == pytest.approx(expected, rel=0.02)


def test_contiguous_max_never_runs_more_than_the_pool_holds_reservations() -> None:
    """Closed form 8: batch <= floor(C / (max_len / B)), and it is reached; 983 // 128 = 7."""
    requests = [Request(f"r{i}", 0, 100, 50) for i in range(40)]
    allocator = ContiguousAllocator(983, 16, max_model_len=2048, reserve="max", placement="buddy")
    recorder = Integrals()
    vllm = VllmScheduler(
        allocator, max_num_seqs=256, max_num_batched_tokens=2560, max_model_len=2048
    )
    run_replica(requests, vllm, Fixed(), recorder)
    assert recorder.max_batch == 7
    assert len(recorder.ended) == 40


def test_static_batch_wastes_the_token_steps_behind_each_shorter_member() -> None:
    """Closed form 12: sum(max O - O_i) per batch."""
    generator = random.Random(3)
    requests = [Request(f"r{i}", 0, 10, generator.randint(1, 90)) for i in range(24)]
    allocator = ContiguousAllocator(4096, 16, max_model_len=2048, reserve="oracle")
    recorder = Integrals()
    static = StaticScheduler(allocator, max_num_seqs=8, max_model_len=2048)
    run_replica(requests, static, Fixed(), recorder)
    batches = [requests[start : start + 8] for start in range(0, 24, 8)]
    longest = [max(r.output_tokens for r in batch) for batch in batches]
    assert recorder.padded == sum(
        most - r.output_tokens for batch, most in zip(batches, longest, strict=True) for r in batch
    )
    assert recorder.steps == sum(longest)


@pytest.mark.parametrize(
    "allocator",
    [
        ContiguousAllocator(200, 16, max_model_len=4096, reserve="oracle"),
        PagedAllocator(200, 16, null_block=False),
    ],
)
def test_throughput_is_utilization_times_slots_over_step_time_and_token_steps(
    allocator: Allocator,
) -> None:
    """Closed form 8 with equality: lambda = u*N / (T*E[S]) at the utilization u that is reached.

    A preempted request computes its tokens again in the step that samples its next one, so with a
    constant step time its token-steps stay the same.
    """
    requests = [r._replace(arrival_ns=0) for r in lengths(600, rate=1)]
    mean_s = sum(token_steps(r.prompt_tokens, r.output_tokens) for r in requests) / len(requests)
    recorder = Integrals()
    end = run_replica(requests, scheduler(allocator), Fixed(), recorder)
    preempted = sum(s.preemptions for s, _ in recorder.ended)
    assert (preempted > 0) == isinstance(allocator, PagedAllocator)
    utilization = recorder.live_slot_ns / (end.duration_ns * allocator.capacity_slots)
    throughput = len(requests) / (end.duration_ns / 1e9)
    assert throughput == pytest.approx(
        utilization * allocator.capacity_slots / (STEP_S * mean_s), rel=1e-12
    )
