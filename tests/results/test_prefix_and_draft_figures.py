"""Figures of the prefix cache and of speculation in a summary, exact by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request
from kvsim.core.speculative_scheduler import Speculation, SpeculativeScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import FixedClock
from kvsim.report.definitions import DEFINITIONS
from kvsim.report.metrics import METRICS
from kvsim.results import SummaryRecorder
from kvsim.sim import run_replica

LIMITS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
}


def summary(scheduler: VllmScheduler, requests: list[Request]) -> dict[str, Any]:
    recorder = SummaryRecorder(scheduler.allocator)
    run_replica(requests, scheduler, FixedClock(1.0), recorder)
    return recorder.summary()


def chat(request_id: str, arrival_s: int, *segments: tuple[str, int]) -> Request:
    prompt = sum(tokens for _, tokens in segments)
    return Request(request_id, arrival_s * 10**9, prompt, 1, segments=segments)


@pytest.mark.parametrize("is_async", [False, True])
def test_hits_and_losses_by_cause_sum_to_the_queried_tokens(is_async: bool) -> None:
    """Blocks of four. b repeats ten tokens of a (two blocks and half of one); c is a once more."""
    allocator = PagedAllocator(20, 4, eviction=LruOrder(), seals_ahead=not is_async)
    scheduler = VllmScheduler(allocator, async_scheduling=is_async, **LIMITS)
    requests = [
        chat("a", 0, ("system", 10), ("x", 2)),
        chat("b", 10, ("system", 10), ("y", 5)),
        chat("c", 20, ("system", 10), ("x", 2)),
    ]
    assert summary(scheduler, requests)["prefix_cache"] == {
        "query_tokens": 12 + 15 + 12,
        "hit_tokens": 8 + 8,
        "never_seen_tokens": 12 + 5,
        "evicted_tokens": 0,
        "block_rounding_tokens": 2,
        "last_token_tokens": 4,
        "resumed_hit_tokens": 0,
        "evicted_blocks": 0,
        "hit_rate": 16 / 39,
    }


def test_accepted_drafts_shorten_a_request_by_as_many_steps() -> None:
    """9 tokens of which drafts bring 2, 2 and 1 (cut): prefill, then three verifying steps."""
    speculation = Speculation("ngram", 3, lambda request, earlier, verified: 2)
    scheduler = SpeculativeScheduler(PagedAllocator(20, 4), speculation=speculation, **LIMITS)
    found = summary(scheduler, [Request("a", 0, 6, 9)])
    assert found["steps"] == 4
    assert found["speculation"] == {
        "draft_tokens": 9,
        "accepted_tokens": 6,
        "acceptance_rate": 2 / 3,
        "tokens_per_decode": 8 / 3,
    }
    assert found["measured"]["output_tokens"] == 9
    assert found["tokens"]["scheduled"] == 6 + 3 * 4


def test_every_figure_of_both_is_defined_and_compared() -> None:
    allocator = PagedAllocator(20, 4, eviction=LruOrder())
    speculation = Speculation("ngram", 3, lambda request, earlier, verified: 2)
    scheduler = SpeculativeScheduler(allocator, speculation=speculation, **LIMITS)
    found = summary(scheduler, [Request("a", 0, 6, 9)])
    names = {f"{part}.{name}" for part in ("prefix_cache", "speculation") for name in found[part]}
    prefixes = ("prefix_cache.", "speculation.")
    assert names == {name for name in DEFINITIONS if name.startswith(prefixes)}
    assert names == {name for name in METRICS if name.startswith(prefixes)}


def test_asynchronous_steps_deliver_the_same_tokens_one_empty_slot_later() -> None:
    """A lone request: the step that is scheduled while its last token is sampled is empty."""
    requests = [Request("a", 0, 6, 3)]
    for is_async in (False, True):
        scheduler = VllmScheduler(PagedAllocator(20, 4), async_scheduling=is_async, **LIMITS)
        found = summary(scheduler, requests)
        assert (found["steps"], found["duration_s"]) == (3, 3.0)
        assert found["e2e_s"]["max"] == pytest.approx(3.0, rel=1e-3)


def test_asynchronous_scheduling_sees_an_arrival_one_step_later() -> None:
    """b arrives while the first step runs; the second is already decided."""
    requests = [Request("a", 0, 6, 9), Request("b", 5 * 10**8, 6, 1)]
    starts = {}
    for is_async in (False, True):
        scheduler = VllmScheduler(PagedAllocator(20, 4), async_scheduling=is_async, **LIMITS)
        starts[is_async] = summary(scheduler, requests)["queue_s"]["max"]
    assert starts[False] == pytest.approx(0.5, rel=1e-3)
    assert starts[True] == pytest.approx(1.5, rel=1e-3)


def test_a_decode_that_waits_for_budget_has_the_longer_gap() -> None:
    """Eight tokens a step serve one or two of four verifying decodes: the others wait."""
    delivered: dict[str, list[int]] = {}

    class Deliveries(SummaryRecorder):
        def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
            for outcome in plan.outcomes:
                if outcome.delivered_tokens:
                    name = outcome.sequence.request.request_id
                    delivered.setdefault(name, []).append(start_ns + duration_ns)
            super().step(plan, start_ns, duration_ns)

    speculation = Speculation("ngram", 4, lambda request, earlier, verified: 0)
    limits = {**LIMITS, "max_num_batched_tokens": 8}
    scheduler = SpeculativeScheduler(PagedAllocator(40, 4), speculation=speculation, **limits)
    recorder = Deliveries(scheduler.allocator)
    requests = [Request(name, 0, 2, 4) for name in "abcd"]
    run_replica(requests, scheduler, FixedClock(1.0), recorder)
    gaps = [(late - early) / 1e9 for times in delivered.values() for early, late in pairwise(times)]
    found: Any = recorder.summary()["itl_s"]
    assert max(gaps) > 1
    assert found["count"] == len(gaps) == 12
    assert found["max"] == pytest.approx(max(gaps), rel=1e-3)
    assert found["mean"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-9)
