"""The analysis equals the engine with one request in flight, at every capacity."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.workload import (
    ChatWorkload,
    ConstantTokens,
    LognormalTokens,
    Poisson,
    UniformTokens,
)
from kvsim.workload.prefix import PrefixAnalysis
from tests.workload.shared_prompts import Listed, shared_prompts


def engine_hits(
    requests: list[Request], capacity: int, block_size: int, *, budget: int, is_async: bool
) -> int:
    """Prompt tokens found by vLLM's scheduler over paged memory, max_num_seqs 1."""
    scheduler = VllmScheduler(
        PagedAllocator(
            capacity,
            block_size,
            null_block=False,
            eviction=LruOrder(),
            seals_ahead=not is_async,
        ),
        max_num_seqs=1,
        max_num_batched_tokens=budget,
        max_model_len=10_000_000,
        async_scheduling=is_async,
    )
    found = 0
    for request in requests:
        if scheduler.refuse(request) is not None:
            continue
        sequence = scheduler.add(request)
        plans = []
        while scheduler.has_work():
            plans.append(scheduler.schedule())
            if not is_async or len(plans) == 2:
                scheduler.complete(plans.pop(0))
        for plan in plans:
            scheduler.complete(plan)
        found += sequence.cached_tokens
    return found


@given(shared_prompts(), st.integers(1, 4), st.sampled_from([3, 8, 1000]), st.booleans())
@settings(max_examples=100)
def test_lru_equals_the_engine_at_every_capacity(
    requests: list[Request], block_size: int, budget: int, is_async: bool
) -> None:
    analysis = PrefixAnalysis(Listed(requests), block_size)
    for capacity in range(1, max(analysis.enough, analysis.largest) + 2):
        hits = engine_hits(requests, capacity, block_size, budget=budget, is_async=is_async)
        assert analysis.lru_hit_tokens(capacity) == hits


@pytest.mark.parametrize("block_size", [16, 40])
def test_lru_equals_the_engine_on_generated_conversations(block_size: int) -> None:
    workload = ChatWorkload(
        Poisson(0.5),
        conversations=40,
        turns=UniformTokens(1, 6),
        user_tokens=LognormalTokens(40, 1.0),
        output_tokens=LognormalTokens(60, 0.8),
        system_tokens=ConstantTokens(500),
        system_prompts=3,
    )
    analysis = PrefixAnalysis(workload, block_size)
    requests = list(workload)
    for capacity in [*analysis.capacities(8), analysis.largest // 2, analysis.largest - 1]:
        hits = engine_hits(requests, capacity, block_size, budget=2048, is_async=False)
        assert analysis.lru_hit_tokens(capacity) == hits
    assert analysis.bound.hit > analysis.lru_hit_tokens(analysis.largest)
