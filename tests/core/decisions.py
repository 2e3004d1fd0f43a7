"""What a scheduler decides on an allocator, to compare allocators that must decide alike."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler

PROMPTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 40), st.integers(1, 9)),
    min_size=1,
    max_size=30,
)
"""Stream of the prompt's beginning, its tokens, output tokens."""


def decisions(
    allocator: PagedAllocator, prompts: list[tuple[str, int, int]], *, ahead: bool
) -> list[Any]:
    """Steps, hits, block tables and the free queue, step by step; `ahead` is asynchronous."""
    scheduler = VllmScheduler(
        allocator,
        max_num_seqs=5,
        max_num_batched_tokens=24,
        max_model_len=60,
        async_scheduling=ahead,
    )
    for index, (stream, tokens, output) in enumerate(prompts):
        segments = ((stream, tokens), (index, 2))
        output_stream = ("out", index) if index % 2 else None
        scheduler.add(
            Request(
                f"r{index}", 0, tokens + 2, output, segments=segments, output_stream=output_stream
            )
        )
    decided: list[Any] = []
    in_flight: list[StepPlan] = []
    while scheduler.has_work() or in_flight:
        if scheduler.has_work() and len(in_flight) <= ahead:
            plan = scheduler.schedule()
            tables = [sequence.table[:] for sequence in scheduler.running()]
            decided.append((plan.scheduled_tokens, plan.hits, len(plan.preempted), tables))
            decided.append(allocator.pool.free_ids())
            allocator.check_integrity(scheduler.running())
            if plan.scheduled_tokens or plan.preempted:
                in_flight.append(plan)
                continue
        scheduler.complete(in_flight.pop(0))
    return [*decided, allocator.prefix_counts()]
