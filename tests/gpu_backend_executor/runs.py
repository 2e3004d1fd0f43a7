"""Small workloads on the executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_backend.executor import Executor, ModelShape, build_executor
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.sim import run_replica

SHAPE = ModelShape(hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=997)

Memory = PagedAllocator | ContiguousAllocator
Case = Callable[[], tuple[Memory, VllmScheduler, list[Request]]]


class Steps:
    """Records what the plans did."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.copies = self.preempted = self.hit_tokens = self.chunks_with_prior = 0
        self.durations_ns: list[int] = []
        self.outcomes: list[str] = []

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        self.steps.append((plan.step, plan.num_decodes, plan.prefill_tokens))
        self.durations_ns.append(duration_ns)
        self.copies += len(plan.copies)
        self.preempted += len(plan.preempted)
        self.hit_tokens += sum(plan.hits)
        self.chunks_with_prior += sum(chunk.prior_tokens > 0 for chunk in plan.chunks)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        pass

    def request(self, sequence: Sequence, outcome: str) -> None:
        self.outcomes.append(outcome)

    def rejected(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)


def scheduler(memory: Memory, **changes: Any) -> VllmScheduler:
    settings = {"max_num_seqs": 6, "max_num_batched_tokens": 64, "max_model_len": 128}
    return VllmScheduler(memory, **{**settings, **changes})


def tight() -> tuple[Memory, VllmScheduler, list[Request]]:
    """Preemptions, chunks and blocks of a size that is no power of two."""
    memory = PagedAllocator(23, 5)
    requests = [Request(f"r{i}", 0, 9 + 7 * i % 23, 12 + 5 * i % 17) for i in range(8)]
    return memory, scheduler(memory, max_num_batched_tokens=20), requests


def shared() -> tuple[Memory, VllmScheduler, list[Request]]:
    """A system prompt that all share, conversations that repeat an output, and evictions."""
    memory = PagedAllocator(24, 4, eviction=LruOrder())
    requests = []
    for i in range(6):
        prompt = (("system", 17), (f"question {i % 3}", 6))
        requests.append(Request(f"a{i}", 0, 23, 8, segments=prompt, output_stream=f"answer {i}"))
        again = (*prompt, (f"answer {i}", 8), (f"more {i}", 3))
        requests.append(Request(f"b{i}", 0, 34, 5, segments=again))
    return memory, scheduler(memory), requests


def extents() -> tuple[Memory, VllmScheduler, list[Request]]:
    """An arena whose compaction moves what runs."""
    memory = ContiguousAllocator(
        40, 4, max_model_len=128, reserve="oracle", placement="first_fit", compaction=True
    )
    requests = [Request(f"r{i}", 0, 5 + 11 * i % 29, 2 + 13 * i % 31) for i in range(16)]
    return memory, scheduler(memory), requests


CASES: dict[str, Case] = {"tight": tight, "shared": shared, "extents": extents}


def run(
    case: Case, *, prepare: Callable[[Executor], None] = lambda executor: None, **changes: Any
) -> tuple[Executor, Steps]:
    """Run a case on an executor that `prepare` may tamper with."""
    memory, engine, requests = case()
    settings = {"layers": 2, "num_threads": 1, "check_every": 1}
    executor = build_executor(memory, engine, SHAPE, **{**settings, **changes})
    prepare(executor)
    return executor, replay(executor, engine, requests)


def replay(executor: Executor, engine: VllmScheduler, requests: list[Request]) -> Steps:
    """Run all requests to their end."""
    steps = Steps()
    end = run_replica(requests, engine, executor, steps)
    assert end.stuck is None
    assert steps.outcomes == ["finished"] * len(requests)
    return steps
