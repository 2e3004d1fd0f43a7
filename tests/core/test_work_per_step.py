"""A step costs what changes in it: executed lines are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler


def count_lines(work: Callable[[], object]) -> int:
    """Executed Python lines, loop iterations of comprehensions included."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(previous)
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
    assert lines(2048) < 80


def test_lines_per_step_of_paged_memory_grow_with_the_crossings_only() -> None:
    """1/16 of the batch crosses a block boundary in a step; each crossing costs a few lines."""

    def lines(batch: int) -> float:
        return lines_per_step(decoding(PagedAllocator(2048 * 256, 16), batch), 64)

    per_crossing = (lines(2048) - lines(1024)) / (1024 / 16)
    assert per_crossing < 12
    assert lines(2048) < 80 + per_crossing * 2048 / 16


def test_a_blocked_queue_costs_nothing_per_waiting_request() -> None:
    def lines(waiting: int) -> float:
        scheduler = decoding(PagedAllocator(600, 16), 64)
        for index in range(waiting):
            scheduler.add(Request(f"w{index}", 0, 4000, 10))
        return lines_per_step(scheduler, 16)

    assert lines(2000) == lines(2)
