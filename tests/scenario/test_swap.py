"""Swapping from the file to the report."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.cost import FixedClock, TransferClock
from kvsim.errors import InputError
from kvsim.report.remarks import capacity_remark, remarks
from kvsim.scenario import Scenario, build_server, run_scenario
from kvsim.scenario.build_swap import swap_is_cheaper, swap_links
from kvsim.scenario.sizing import size_server

TOKEN_BYTES = 819_200
LAYERS = 40
BASE: dict[str, Any] = {
    "version": 1,
    "profile": "plain",
    "model": "opt-13b",
    "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "max_model_len": 256},
    "memory": {"kind": "paged", "block_size": 4, "num_blocks": 40},
    "clock": {"kind": "fixed", "step_s": 0.5},
    "workload": {
        "lengths": {
            "prompt": {"kind": "uniform", "low": 5, "high": 20},
            "output": {"kind": "uniform", "low": 10, "high": 60},
        },
        "arrivals": {"kind": "poisson", "rate_rps": 2.0},
        "num_requests": 40,
    },
}


def scenario(mode: str, swap: Any = None, **sections: Any) -> Scenario:
    engine = {**BASE["engine"], "preemption_mode": mode, **sections.pop("engine", {})}
    memory = {**BASE["memory"], **({} if swap is None else {"swap": swap})}
    whole = {**BASE, "memory": memory, **sections, "engine": engine}
    return Scenario.model_validate(whole)


def entry(settings: Scenario) -> dict[str, Any]:
    (found,) = run_scenario(settings).summary["variants"].values()
    result: dict[str, Any] = found
    return result


def test_the_section_reaches_the_host_pool_and_the_clock() -> None:
    """4 GiB for each GPU unless said otherwise, in whole blocks of the model's KV."""
    server = build_server(scenario("swap"))
    assert isinstance(server.allocator, BranchingAllocator)
    assert isinstance(server.scheduler, GroupScheduler)
    assert server.allocator.host.num_blocks == 4 * 2**30 // (4 * TOKEN_BYTES)
    assert isinstance(server.sizing.clock, TransferClock)
    out = server.sizing.clock.links["swap_out"]
    assert (out.bytes_per_token, out.copies_per_block) == (TOKEN_BYTES, 2 * LAYERS)
    assert (out.bandwidth_bytes_per_s, out.copy_s) == (13.05e9, 1.92e-6)
    own = {"capacity_blocks": 7, "in_gb_per_s": 25.0, "copy_in_s": 0.5}
    server = build_server(scenario("swap", own))
    assert isinstance(server.allocator, BranchingAllocator)
    assert server.allocator.host.num_blocks == 7
    assert isinstance(server.sizing.clock, TransferClock)
    back = server.sizing.clock.links["swap_in"]
    assert (back.bandwidth_bytes_per_s, back.copy_s) == (25e9, 0.5)
    half = scenario("swap", hardware={"gpu": "a100-40gb", "count": 2})
    server = build_server(half)
    assert isinstance(server.allocator, BranchingAllocator)
    assert server.allocator.host.num_blocks == 4 * 2**30 // (4 * TOKEN_BYTES // 2)


def test_swapping_computes_nothing_twice_and_waits_for_its_bytes() -> None:
    """The seconds are closed form 10 over all that was moved, and the run is longer by them."""
    swapped, recomputed = entry(scenario("swap")), entry(scenario("recompute"))
    assert recomputed["preemptions"] > 0 < recomputed["tokens"]["recomputed"]
    assert "swap" not in recomputed
    assert swapped["tokens"]["recomputed"] == 0 < swapped["preemptions"]
    swap = swapped["swap"]
    assert swap["swapped_out_groups"] == swap["swapped_in_groups"] == swapped["preemptions"]
    assert swap["swapped_out_tokens"] == swap["swapped_in_tokens"] > 0
    assert swap["swapped_out_blocks"] == swap["swapped_in_blocks"]
    assert swap["swapped_bytes"] == 2 * swap["swapped_out_tokens"] * TOKEN_BYTES
    moved, copies = swap["swapped_out_tokens"] * TOKEN_BYTES, swap["swapped_out_blocks"] * 80
    expected = moved * (1 / 13.05e9 + 1 / 12.19e9) + copies * (1.92e-6 + 3.35e-6)
    assert swap["swap_s"] == pytest.approx(expected, rel=1e-12)
    busy_s = 0.5 * swapped["steps"] + swap["swap_s"]
    assert swapped["duration_s"] >= busy_s - 1e-6
    for one in (swapped, recomputed):
        assert one["requests"]["finished"] == 40


@pytest.mark.parametrize(("block_size", "swaps"), [(16, False), (32, True)])
def test_auto_swaps_where_that_is_faster(block_size: int, swaps: bool) -> None:
    """256 tokens that take 38.6 ms to compute: as in the paper, from blocks of 32 on (Fig. 19a)."""
    settings = scenario("auto", memory={"kind": "paged", "block_size": block_size, "num_blocks": 9})
    model = size_server(settings).model
    cheaper = swap_is_cheaper(settings, model, FixedClock(0.0386))
    assert cheaper is not None
    assert cheaper(256, 256 // block_size, 256) == swaps
    assert swap_is_cheaper(scenario("swap"), model, FixedClock(1.0)) is None


def test_auto_swaps_nothing_where_computing_is_free_and_all_where_bytes_are() -> None:
    """The choice reaches the scheduler."""
    slow = entry(scenario("auto", {"out_gb_per_s": 1e-6}))
    assert slow["swap"]["swapped_out_groups"] == 0 < slow["preemptions"]
    fast = entry(scenario("auto"))
    assert fast["swap"]["swapped_out_groups"] == fast["preemptions"] > 0


def test_a_full_host_makes_the_rest_recompute() -> None:
    """And says how often."""
    full = entry(scenario("swap", {"capacity_blocks": 5}))
    swap = full["swap"]
    assert swap["peak_host_blocks"] <= 5
    assert swap["recomputed_for_lack_of_host_blocks"] > 0 < full["tokens"]["recomputed"]
    assert full["requests"]["finished"] == 40


def test_groups_are_swapped_too() -> None:
    """Blocks that branches share are moved once."""
    found = entry(scenario("swap", sampling={"n": 3}, memory={**BASE["memory"], "num_blocks": 60}))
    assert found["swap"]["swapped_out_groups"] > 0
    assert found["requests"]["finished"] + found["requests"]["rejected"] == 40


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mode": "recompute", "swap": {}}, "memory.swap: is not used"),
        ({"mode": "swap", "model": None}, "model: is missing"),
        ({"mode": "swap", "swap": {"capacity_gib": 1.0, "capacity_blocks": 4}}, "has both"),
        ({"mode": "swap", "swap": {"capacity_gib": 1e-3}}, "does not hold one block"),
        ({"mode": "swap", "engine": {"enable_prefix_caching": True}}, "is not covered with"),
        (
            {"mode": "swap", "memory": {"kind": "contiguous", "num_blocks": 400}},
            "needs memory.kind = paged",
        ),
    ],
)
def test_what_swapping_needs_is_said(settings: dict[str, Any], problem: str) -> None:
    """With the way out."""
    with pytest.raises((InputError, ValueError), match=problem):
        build_server(scenario(**settings))


def test_the_report_says_that_swapping_does_not_raise_concurrency() -> None:
    """In words, once, for what there is."""
    (said,) = remarks([{"swap": {}}, {}])
    assert said == capacity_remark(offloads=False, swaps=True)
    assert said is not None
    assert "does not let more requests run at once" in said
    assert remarks([{}]) == []
    both = capacity_remark(offloads=True, swaps=True)
    assert both is not None
    assert "Offloading" in both
    assert "swapping" in both


def test_both_ways_have_links_only_with_swapping() -> None:
    """Nothing is built where every preemption recomputes."""
    settings = scenario("recompute")
    assert swap_links(settings, size_server(settings).model) == {}


@pytest.mark.parametrize(
    ("model", "copies"), [("llama-3-8b", 2 * 32), ("opt-13b", 2 * 40), ("deepseek-v3", 61)]
)
def test_a_block_is_a_copy_for_each_tensor_of_a_layer(model: str, copies: int) -> None:
    """K and V; latent attention keeps one tensor per layer."""
    settings = scenario("swap", model=model)
    links = swap_links(settings, size_server(settings).model)
    assert {link.copies_per_block for link in links.values()} == {copies}
