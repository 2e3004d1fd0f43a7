"""A step costs what changes in it: executed lines are counted, not seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
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


def decoding(allocator: Allocator, batch: int) -> VllmScheduler:
    """`batch` sequences that all decode, spread over the residues of the block size."""
    scheduler = VllmScheduler(
        allocator, max_num_seqs=4096, max_num_batched_tokens=10**6, max_model_len=4096
    )
    for index in range(batch):
        scheduler.add(Request(f"r{index}", 0, 64 + index % 16, 2000))
    scheduler.complete(scheduler.schedule())
    return scheduler


def lines_per_step(scheduler: VllmScheduler, steps: int) -> float:
    def run() -> None:
        for _ in range(steps):
            scheduler.complete(scheduler.schedule())

    return count_lines(run) / steps


def test_lines_per_step_of_reserved_memory_do_not_depend_on_the_batch() -> None:
    def lines(batch: int) -> float:
        allocator = ContiguousAllocator(
            2048 * 256, 16, max_model_len=4096, reserve="max", placement="first_fit"
        )
        return lines_per_step(decoding(allocator, batch), 64)

    assert lines(16) == lines(2048)
    assert lines(2048) < 120


def test_lines_per_step_of_paged_memory_grow_with_the_crossings_only() -> None:
    """1/16 of the batch crosses a block boundary in a step; each crossing costs a few lines."""

    def lines(batch: int) -> float:
        return lines_per_step(decoding(PagedAllocator(2048 * 256, 16), batch), 64)

    per_crossing = (lines(2048) - lines(1024)) / (1024 / 16)
    assert per_crossing < 12
    assert lines(2048) - per_crossing * 2048 / 16 < 120


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
    for allocator in (
        PagedAllocator(400, 16),
        ContiguousAllocator(400, 16, max_model_len=256, reserve="pow2"),
    ):
        scheduler = VllmScheduler(
            allocator, max_num_seqs=64, max_num_batched_tokens=256, max_model_len=256
        )
        scheduler.calendar.members = NoPass()
        recorder = SummaryRecorder(allocator)
        run_replica(requests, scheduler, FixedClock(0.02), recorder)
        summary: Any = recorder.summary()
        assert summary["requests"]["finished"] == 300
        assert summary["batch"]["max"] > 20
