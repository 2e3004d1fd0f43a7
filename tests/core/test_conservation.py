"""After every step of every scheduler on every allocator, each slot is in exactly one term."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.accounting import MemoryTerms, split
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.eviction import EVICTION_ORDERS, LruOrder
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.offload import OffloadingAllocator, Tier
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request
from kvsim.core.scheduler_base import QueueScheduler
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.core.vmm import VmmAllocator

MODEL_LEN = 96
Build = Callable[[int, int], Allocator]


def contiguous(reserve: str, placement: str, compaction: bool = False) -> Build:
    return lambda blocks, block_size: ContiguousAllocator(
        blocks,
        block_size,
        max_model_len=MODEL_LEN,
        reserve=reserve,
        placement=placement,
        compaction=compaction,
    )


def cached(order: str) -> Build:
    return lambda blocks, block_size: PagedAllocator(
        blocks, block_size, eviction=EVICTION_ORDERS[order]()
    )


def offloading(blocks: int, block_size: int) -> OffloadingAllocator:
    tiers = [Tier("host", 5, lambda tokens, blocks: 1.0), Tier("disk", 9, lambda tokens, blocks: 2)]
    return OffloadingAllocator(blocks, block_size, eviction=LruOrder(), tiers=tiers)


def grouped(order: str) -> Build:
    return lambda blocks, block_size: GroupedAllocator(
        2 * blocks,
        [LayerGroup("full", block_size), LayerGroup("sliding", block_size, window=20)],
        max_model_len=MODEL_LEN,
        max_num_batched_tokens=40,
        async_scheduling=False,
        eviction=EVICTION_ORDERS[order](),
    )


CONTIGUOUS: dict[str, Build] = {
    "max buddy": contiguous("max", "buddy"),
    "pow2 buddy": contiguous("pow2", "buddy"),
    "oracle first fit": contiguous("oracle", "first_fit"),
    "oracle best fit": contiguous("oracle", "best_fit"),
    "requested next fit": contiguous("requested", "next_fit"),
    "pow2 first fit, compacting": contiguous("pow2", "first_fit", compaction=True),
}
SCHEDULERS: dict[str, Callable[[Allocator, int], QueueScheduler]] = {
    "vllm": lambda allocator, seqs: VllmScheduler(
        allocator, max_num_seqs=seqs, max_num_batched_tokens=40, max_model_len=MODEL_LEN
    ),
    "orca": lambda allocator, seqs: OrcaScheduler(
        allocator, max_num_seqs=seqs, max_num_batched_tokens=MODEL_LEN, max_model_len=MODEL_LEN
    ),
    "static": lambda allocator, seqs: StaticScheduler(
        allocator, max_num_seqs=seqs, max_model_len=MODEL_LEN
    ),
}
COMBINATIONS: dict[str, tuple[Build, Callable[[Allocator, int], QueueScheduler]]] = {
    "vllm on paged": (PagedAllocator, SCHEDULERS["vllm"]),
    "vllm on vmm": (VmmAllocator, SCHEDULERS["vllm"]),
    "static on grow": (GrowAllocator, SCHEDULERS["static"]),
    "vllm on paged with tiers": (offloading, SCHEDULERS["vllm"]),
    **{f"vllm on paged, {order}": (cached(order), SCHEDULERS["vllm"]) for order in EVICTION_ORDERS},
    **{
        f"vllm on groups, {order}": (grouped(order), SCHEDULERS["vllm"])
        for order in EVICTION_ORDERS
    },
    **{
        f"{scheduler} on {memory}": (build, SCHEDULERS[scheduler])
        for scheduler in SCHEDULERS
        for memory, build in CONTIGUOUS.items()
    },
}


def terms_after(plan: StepPlan, allocator: Allocator) -> MemoryTerms:
    return split(
        allocator.usage,
        live_tokens=plan.live_tokens,
        capacity=allocator.capacity_slots,
        reserves_ahead=allocator.reserves_ahead,
        held_up=plan.head_held_up,
    )


requests = st.lists(
    st.tuples(
        st.integers(0, 6), st.integers(1, 90), st.integers(1, 60), st.sampled_from([0, 1, 0.7])
    ),
    min_size=1,
    max_size=14,
)
"""Gap, prompt, output, and the part of the prompt that is shared with others."""


@pytest.mark.parametrize("name", COMBINATIONS)
@settings(max_examples=40)
@given(
    rows=requests,
    blocks=st.integers(6, 40),
    block_size=st.sampled_from([1, 4, 16]),
    seqs=st.integers(1, 8),
)
def test_terms_are_never_negative_and_sum_to_the_capacity(
    name: str, rows: list[tuple[int, int, int, float]], blocks: int, block_size: int, seqs: int
) -> None:
    build, schedule_with = COMBINATIONS[name]
    allocator = build(blocks, block_size)
    scheduler = schedule_with(allocator, seqs)
    sent, ended, arrival = 0, 0, 0
    queue = []
    for index, (gap, prompt, output, part) in enumerate(rows):
        arrival += gap
        shared = int(part * prompt)
        segments = (("system", shared), (index, prompt - shared)) if shared else None
        request = Request(f"r{index}", arrival, prompt, output, segments=segments)
        queue.append(request._replace(max_tokens=output + index))
    step = 0
    while queue or scheduler.has_work():
        while queue and queue[0].arrival_ns <= step:
            request = queue.pop(0)
            if scheduler.refuse(request) is None:
                scheduler.add(request)
                sent += 1
        step += 1
        if not scheduler.has_work():
            continue
        plan = scheduler.schedule()
        running = scheduler.running()
        allocator.check_integrity(running)
        scheduler.calendar.check_integrity()
        terms = terms_after(plan, allocator)
        assert terms.total == allocator.capacity_slots
        assert min(terms) >= 0
        ended += len(scheduler.complete(plan))
        assert step < 20_000, "the run does not end"
    assert ended == sent
    allocator.check_integrity([])
    assert allocator.usage.allocated == 0


def test_8192_reserved_slots_with_350_used_are_95_7_percent_empty() -> None:
    """FIELD.md section 5: 7,842 of 8,192 slots are empty."""
    allocator = ContiguousAllocator(512, 16, max_model_len=8192, reserve="max", placement="buddy")
    scheduler = VllmScheduler(
        allocator, max_num_seqs=1, max_num_batched_tokens=8192, max_model_len=8192
    )
    scheduler.add(Request("r", 0, 300, 51))
    while scheduler.has_work():
        plan = scheduler.schedule()
        terms = terms_after(plan, allocator)
        scheduler.complete(plan)
    assert terms.live == 350
    assert terms.reservation == 0
    assert terms.internal == 7842
    assert round(100 * terms.internal / allocator.capacity_slots, 1) == 95.7
