"""A step costs what changes in it: executed lines are counted, not seconds."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import FixedClock
from kvsim.results import SummaryRecorder
from kvsim.sim import run_replica


def count_lines(work: Callable[[], object]) -> int:
    """Executed Python lines, loop iterations of comprehensions included."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    previous = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(previous)
        gc.enable()
    return lines


def paged(*, cached: bool = False, ahead: bool = False) -> PagedAllocator:
    eviction = LruOrder() if cached else None
    return PagedAllocator(2048 * 256, 16, eviction=eviction, seals_ahead=not ahead)


def decoding(allocator: Allocator, batch: int, *, ahead: bool = False) -> VllmScheduler:
    """`batch` sequences that all decode, spread over the residues of the block size.

    `ahead` schedules asynchronously, one step before the outputs of the latest one are known.
    """
    scheduler = VllmScheduler(
        allocator,
        max_num_seqs=4096,
        max_num_batched_tokens=10**6,
        max_model_len=4096,
        async_scheduling=ahead,
    )
    for index in range(batch):
        scheduler.add(Request(f"r{index}", 0, 64 + index % 16, 2000))
    run_steps(scheduler, 2)
    return scheduler


def run_steps(scheduler: VllmScheduler, steps: int) -> None:
    in_flight: deque[StepPlan] = deque()
    for _ in range(steps):
        in_flight.append(scheduler.schedule())
        if len(in_flight) == (2 if scheduler.is_async else 1):
            scheduler.complete(in_flight.popleft())
    for plan in in_flight:
        scheduler.complete(plan)


def lines_per_step(scheduler: VllmScheduler, steps: int) -> float:
    return count_lines(lambda: run_steps(scheduler, steps)) / steps


def test_lines_per_step_of_reserved_memory_do_not_depend_on_the_batch() -> None:
    def lines(batch: int) -> float:
        allocator = ContiguousAllocator(
            2048 * 256, 16, max_model_len=4096, reserve="max", placement="first_fit"
        )
        return lines_per_step(decoding(allocator, batch), 64)

    assert lines(16) == lines(2048)
    assert lines(2048) < 90


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize(("cached", "most"), [(False, 9), (True, 18)], ids=["uncached", "cached"])
def test_lines_per_step_of_paged_memory_grow_with_the_crossings_only(
    cached: bool, most: int, ahead: bool
) -> None:
    """1/16 of the batch crosses a block boundary in a step; each crossing costs a few lines.

    With a prefix cache the block that is full gets its content too, though nobody shares it.
    """

    def lines(batch: int) -> float:
        allocator = paged(cached=cached, ahead=ahead)
        return lines_per_step(decoding(allocator, batch, ahead=ahead), 64)

    few, many = lines(1024), lines(2048)
    per_crossing = (many - few) / (1024 / 16)
    assert per_crossing < most
    assert many - per_crossing * 2048 / 16 < 150
    assert few - per_crossing * 1024 / 16 == many - per_crossing * 2048 / 16


def test_a_blocked_queue_costs_nothing_per_waiting_request() -> None:
    def lines(waiting: int) -> float:
        scheduler = decoding(PagedAllocator(600, 16), 64)
        for index in range(waiting):
            scheduler.add(Request(f"w{index}", 0, 4000, 10))
        return lines_per_step(scheduler, 16)

    assert lines(2000) == lines(2)


class NoPass(dict[int, Sequence]):
    """The running set, which a step may look up, extend and shorten, but never walk through."""

    def __iter__(self) -> Iterator[int]:
        if self:
            raise AssertionError("a step walked through the running set")
        return iter(())

    keys = values = items = __iter__  # type: ignore[assignment]


def test_no_step_walks_through_the_running_set_from_the_engine_to_the_recorder() -> None:
    """Lines do not show a pass made inside a built-in such as `sum`."""
    requests = [Request(f"r{index}", index * 10**7, 40, 30 + index % 50) for index in range(300)]
    reserved = ContiguousAllocator(400, 16, max_model_len=256, reserve="pow2")
    for allocator in (PagedAllocator(400, 16), reserved):
        run_without_a_pass(allocator, requests)


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("shared", [False, True], ids=["own prompts", "shared prompts"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_neither_caching_nor_asynchronous_scheduling_walks_through_the_running_set(
    policy: str, shared: bool, ahead: bool
) -> None:
    """In a memory so small that sequences are preempted and blocks are evicted."""
    requests = [
        Request(
            f"r{index}",
            index * 10**7,
            40,
            30 + index % 50,
            priority=index % 3,
            segments=(("system", 35), (index, 5)) if shared else None,
        )
        for index in range(300)
    ]
    allocator = PagedAllocator(120, 16, eviction=LruOrder(), seals_ahead=not ahead)
    summary = run_without_a_pass(allocator, requests, async_scheduling=ahead, policy=policy)
    counts = allocator.prefix_counts()
    assert counts is not None
    assert (counts["hit_tokens"] > 0) == shared
    assert counts["evicted_blocks"] > 0
    assert summary["preemptions"] > 0


def run_without_a_pass(allocator: Allocator, requests: list[Request], **settings: Any) -> Any:
    scheduler = VllmScheduler(
        allocator, max_num_seqs=64, max_num_batched_tokens=256, max_model_len=256, **settings
    )
    scheduler.calendar.members = NoPass()
    recorder = SummaryRecorder(allocator)
    run_replica(requests, scheduler, FixedClock(0.02), recorder)
    summary: Any = recorder.summary()
    assert summary["requests"]["finished"] == 300
    assert summary["batch"]["max"] > 20
    return summary
