"""What binds a variant, and how many requests compute would allow."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog import get_gpu, get_model
from kvsim.core.plan import StepPlan
from kvsim.cost import FixedClock, LinearClock, RooflineClock
from kvsim.report.bounds import (
    ARRIVALS,
    BUDGET,
    MEMORY,
    OTHER,
    SEQUENCES,
    bound,
)
from kvsim.report.compute_limit import Mix, compute_limit, traffic_mix
from kvsim.report.headline import headline
from kvsim.report.html_data import VariantData
from kvsim.scenario import Scenario

MIX = Mix(context_tokens=100, prompt_tokens=30, prefill_tokens_per_decode=2)


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "engine": {"max_model_len": 64, "max_num_batched_tokens": 64, "max_num_seqs": 8},
            "memory": {"kind": "paged", "num_blocks": 41},
            "clock": {"kind": "fixed", "step_s": 1.0},
            "workload": {"path": "trace.csv"},
            **changes,
        }
    )


def entry(
    *,
    held_up: float = 0,
    short: float = 0,
    queued: float = 0,
    full_batch: float = 0,
    full_budget: float = 0,
) -> dict[str, Any]:
    return {
        "steps": 100,
        "queued_steps": queued,
        "queued_steps_at_max_num_seqs": full_batch,
        "queued_steps_at_token_budget": full_budget,
        "held_up_steps": held_up,
        "short_of_memory_steps": short,
        "batch": {"mean": 5.0, "mean_by_time": 4.0},
        "memory": {"by_time": {"live": 0.3, "reservation": 0.1, "internal": 0.4}},
    }


@pytest.mark.parametrize(
    ("queued", "full_batch", "full_budget", "lacking", "binds"),
    [
        (90, 0, 0, 80, MEMORY),
        (90, 90, 0, 80, SEQUENCES),
        (90, 10, 60, 20, BUDGET),
        (90, 10, 20, 30, OTHER),
        (49, 0, 0, 49, ARRIVALS),
        (50, 0, 0, 50, MEMORY),
        (0, 0, 0, 0, ARRIVALS),
    ],
)
def test_what_binds_is_the_most_frequent_reason_in_most_steps_with_a_queue(
    queued: int, full_batch: int, full_budget: int, lacking: int, binds: str
) -> None:
    found = bound(
        entry(
            held_up=lacking // 2,
            short=lacking - lacking // 2,
            queued=queued,
            full_batch=full_batch,
            full_budget=full_budget,
        )
    )
    assert found.binds == binds
    assert found.memory_allows == pytest.approx(4.0 / 0.8)


def test_a_static_batch_binds_where_the_queue_waits_although_there_is_room() -> None:
    static = {**entry(short=10, queued=90), "setup": {"scheduler": "static"}}
    assert bound(static).binds == "static batch"
    assert bound({**static, "short_of_memory_steps": 80}).binds == MEMORY


def test_the_mix_is_that_of_every_decode() -> None:
    # Decodes: none of the first request; the second's read 11 and 12 tokens.
    assert traffic_mix([50, 10], [1, 3]) == Mix(11.5, 30.0, 30.0)
    assert traffic_mix([50], [1]) is None


def test_compute_allows_the_largest_batch_whose_decode_step_meets_the_objective() -> None:
    clock = LinearClock(base_s=0.01, prefill_token_s=0.0005, context_token_s=0.0, decode_s=0.001)
    settings = scenario(slo={"tpot_s": 0.05})
    found = compute_limit(settings, clock, None, MIX)
    assert (found.batch, found.low, found.high) == (40, None, None)
    # 0.01 + 0.001 b + 0.0005 * 2 b <= 0.05
    assert found.with_prefills == 20
    assert "0.05 s" in found.why
    wide = compute_limit(settings, clock, 0.25, MIX)
    # Steps 25 % slower must take 0.04 s, steps 25 % faster may take 0.0667 s.
    assert (wide.low, wide.batch, wide.high) == (30, 40, 56)


def test_context_counts_in_the_decode_step() -> None:
    clock = LinearClock(base_s=0.01, prefill_token_s=0.0, context_token_s=1e-5, decode_s=0.0)
    found = compute_limit(scenario(slo={"tpot_s": 0.05}), clock, None, MIX)
    assert found.batch == 40


def test_a_clock_that_never_reaches_the_objective_sets_no_limit() -> None:
    found = compute_limit(scenario(slo={"tpot_s": 0.05}), FixedClock(0.04), None, MIX)
    assert found.batch is None
    assert found.why == "none: the clock stays below 0.05 s"
    late = compute_limit(scenario(slo={"tpot_s": 0.05}), FixedClock(0.06), None, MIX)
    assert late.batch == 0


def test_without_an_objective_and_a_gpu_the_limit_is_unknown() -> None:
    found = compute_limit(scenario(), FixedClock(0.04), None, MIX)
    assert found.batch is None
    assert found.why.startswith("unknown")


def test_linear_attention_has_no_roofline_and_so_no_limit() -> None:
    states = scenario(model="qwen3.5-27b", hardware={"gpu": "h200"})
    found = compute_limit(states, FixedClock(0.02), None, MIX)
    assert found.batch is None
    assert found.why.startswith("unknown: linear-attention layers")


def with_gpu() -> Scenario:
    return scenario(model="llama-3-8b", hardware={"gpu": "a100-80gb"})


def test_without_an_objective_the_roofline_turns_where_arithmetic_takes_as_long_as_reads() -> None:
    """FIELD.md, closed form 9: W + kappa * b * l over BW = (2 n b + 4 L H d b l) / F."""
    roofline = RooflineClock(get_model("llama-3-8b"), get_gpu("a100-80gb"))
    facts = {fact.name: float(fact.value) for fact in roofline.explain()}
    context = 100
    per_request = (
        facts["flops_per_token"] + facts["flops_per_row"] + 4 * 32 * 32 * 128 * context
    ) / facts["flops"] - facts["kv_bytes_per_token"] * context / facts["memory_bw"]
    turn = facts["weights"] / facts["memory_bw"] / per_request
    found = compute_limit(with_gpu(), FixedClock(1.0), None, MIX)
    assert found.batch == pytest.approx(turn, abs=1)
    memory, compute = roofline.decode_terms_s(found.batch or 0, (found.batch or 0) * context)
    assert compute >= memory
    plan = StepPlan(0, {})
    plan.num_decodes, plan.decode_context_tokens = 7, 700
    assert roofline.step_seconds(plan) == max(roofline.decode_terms_s(7, 700))


def test_with_long_contexts_bandwidth_sets_the_step_at_every_batch() -> None:
    found = compute_limit(with_gpu(), FixedClock(1.0), None, MIX._replace(context_tokens=5000))
    assert found.batch is None
    assert "memory bandwidth, not arithmetic" in found.why


def variant(label: str, batch: float, binds: str, **terms: float) -> VariantData:
    detail = {"internal": {"over_reservation": terms.pop("over", 0.0)}}
    found = {"batch": {"mean": batch}, "memory": {"by_time": {"detail": detail, **terms}}}
    limit = compute_limit(
        scenario(slo={"tpot_s": 0.05}),
        LinearClock(base_s=0.01, prefill_token_s=0.0, context_token_s=0.0, decode_s=0.001),
        0.25,
        MIX,
    )
    own = bound(entry())._replace(binds=binds)
    return VariantData(label, found, own, limit, None, {}, None)


def test_the_headline_compares_the_smallest_batch_with_the_largest() -> None:
    variants = [
        variant("paged", 34.9, ARRIVALS, usable_free=0.5),
        variant("oracle", 13.6, MEMORY, usable_free=0.1),
        variant("max", 7.0, MEMORY, over=0.57, usable_free=0.2),
    ]
    assert headline(variants) == (
        "paged runs 34.9 requests at once where max runs 7.0; 57.0 % of max's memory is "
        "over-reservation; compute would allow 40 (30 to 56) decodes at once, 40 with this "
        "traffic's prefills between them; memory binds max; in most steps nothing but the arrivals "
        "limits paged."
    )


def test_the_headline_begins_with_what_the_prefix_cache_finds() -> None:
    """A smaller batch is then no worse: prompts that are found are not computed."""

    def cached(label: str, rate: float) -> VariantData:
        one = variant(label, 5.0, ARRIVALS)
        return one._replace(entry={**one.entry, "prefix_cache": {"hit_rate": rate}})

    lru, belady, off = cached("lru", 0.874), cached("belady", 0.927), variant("off", 9.0, MEMORY)
    assert headline([lru]).startswith("the prefix cache finds 87.4 % of lru's prompt tokens; lru ")
    assert headline([lru, off, belady]).startswith(
        "the prefix cache finds 92.7 % of belady's prompt tokens and 87.4 % of lru's, off has "
        "none; off runs 9.0 requests at once where lru runs 5.0; "
    )


def test_the_headline_of_equal_variants_and_of_a_single_one() -> None:
    one = variant("a", 5.0, MEMORY, external=0.25)
    assert headline([one]).startswith(
        "a runs 5.0 requests at once; 25.0 % of a's memory is external fragmentation; "
    )
    same = headline([one, variant("b", 5.05, MEMORY)])
    assert same.startswith("all 2 variants run about 5.0 requests at once; ") or same.startswith(
        "all 2 variants run about 5.1 requests at once; "
    )
