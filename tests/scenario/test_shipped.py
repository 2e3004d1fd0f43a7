"""Every file in scenarios/ loads and runs; what each is for is asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.scenario import load_scenario, resolved, run_scenario, shipped_scenarios
from tests.conftest import Once

Ran = Callable[[str], dict[str, Any]]

NAMES = sorted(shipped_scenarios())


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets stand in for the traces, so that the results are the same on every machine."""
    monkeypatch.delenv("KVSIM_TRACES", raising=False)


LONG = {"papers/sosp23-fig15": "workload.num_requests=1500"}
"""Shortened here: their reproductions run them whole."""


def _run(name: str) -> dict[str, Any]:
    shorter = [LONG[name], "measure.from_s=10.0", "measure.to_s=80.0"] if name in LONG else []
    return run_scenario(load_scenario(name, shorter), workers=1).summary


@pytest.fixture
def ran(once: Once, no_traces: None) -> Ran:
    """The summary of a shipped scenario, run once for all tests."""
    return lambda name: once(f"the shipped scenario {name}", lambda: _run(name))


def test_the_scenarios_of_the_checkout_are_the_shipped_ones() -> None:
    assert {"quickstart", "azure-conv", "azure-code"} <= set(NAMES)
    assert {"scheduler-vs-allocator", "block-size-sweep"} <= set(NAMES)
    assert {"chat-prefix-cache", "mooncake-conversation"} <= set(NAMES)
    assert {"vmm-against-paged", "offload-tiers", "layer-groups"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_scenario_loads_says_its_profile_and_resolves(
    name: str, tmp_path: Path
) -> None:
    scenario = load_scenario(name)
    assert scenario.description
    assert "profile" in scenario.model_fields_set
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert resolved(load_scenario(str(copy))) == copy.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_scenario_runs_and_accounts_for_every_request(name: str, ran: Ran) -> None:
    summary = ran(name)
    for entry in summary["variants"].values():
        requests = entry["requests"]
        ends = ("finished", "rejected", "aborted", "unfinished")
        assert requests["submitted"] == sum(requests[end] for end in ends)
        assert requests["submitted"] == summary["workload"]["rows"]["kept"]
        assert requests["unfinished"] == 0
        assert entry["stuck"] is None
        terms = entry["memory"]["by_time"]
        five = ("live", "reservation", "internal", "external", "usable_free")
        assert sum(terms[term] for term in five) == pytest.approx(1, abs=1e-12)


def test_the_quickstart_shows_what_reserving_costs(ran: Ran) -> None:
    variants = ran("quickstart")["variants"]
    paged, reserved = variants["paged"], variants["contiguous-max"]
    assert paged["batch"]["mean"] > 1.5 * reserved["batch"]["mean"]
    assert paged["queue_s"]["p50"] < reserved["queue_s"]["p50"]
    assert paged["memory"]["by_time"]["external"] == 0
    assert reserved["memory"]["by_time"]["internal"] > 0.5


def test_the_block_size_sweep_shows_the_tail_of_the_last_block_growing(ran: Ran) -> None:
    """Mean empty tail is (B - 1) / 2 slots while B is small against the lengths."""
    variants = ran("block-size-sweep")["variants"]
    tails = {
        entry["setup"]["block_size"]: entry["memory"]["empty_tail_slots_per_sequence"]
        for entry in variants.values()
    }
    assert tails[1] == 0
    for block_size in (8, 16, 32, 64, 128):
        assert tails[block_size] == pytest.approx((block_size - 1) / 2, rel=0.05)


def test_pages_of_2_mib_waste_tails_and_pages_of_64_kib_do_not(ran: Ran) -> None:
    variants = ran("vmm-against-paged")["variants"]
    tails = {
        name: entry["memory"]["empty_tail_slots_per_sequence"] for name, entry in variants.items()
    }
    assert tails["paged"] == pytest.approx(7.5, rel=0.05)
    assert tails["vmm-64k"] == pytest.approx(15.5, rel=0.05)
    assert 600 < tails["vmm-2m"] < 800
    assert all(entry["memory"]["by_time"]["external"] == 0 for entry in variants.values())
    kept, anew = variants["vmm-2m-mapping"], variants["vmm-2m-mapping-all"]
    assert anew["mapping"]["mapped_page_sets"] > 3 * kept["mapping"]["mapped_page_sets"]
    means = [variants[name]["ttft_s"]["mean"] for name in ("vmm-64k", "vmm-2m")]
    means += [entry["ttft_s"]["mean"] for entry in (kept, anew)]
    assert means == sorted(means)
    assert variants["contiguous-max"]["batch"]["mean"] < 0.6 * variants["vmm-2m"]["batch"]["mean"]


def test_grouping_layers_doubles_the_batch_and_padding_costs_a_part_of_it(ran: Ran) -> None:
    """Blocks of 62, 10 and 2 layers out of one budget: 62 : 10 : 2 in bytes."""
    variants = ran("layer-groups")["variants"]
    blocks = {name: entry["setup"]["num_blocks"] for name, entry in variants.items()}
    assert blocks["min"] == blocks["max-if-close"] == blocks["gcd"] // 5
    assert blocks["unified"] == pytest.approx(blocks["gcd"] * 2 / 62, abs=1)
    batch = {name: entry["batch"]["mean"] for name, entry in variants.items()}
    assert 1.8 * batch["unified"] < batch["min"] == batch["max-if-close"] < batch["gcd"]
    shares = {name: entry["layer_groups"] for name, entry in variants.items()}
    assert shares["unified"]["out_of_window"] == pytest.approx(0.504, abs=0.01)
    # 8 of 60 layers in the sliding groups, which hold less than the six of seven they are
    live = variants["min"]["memory"]["by_time"]["live"]
    assert 0.5 * live * 8 / 70 < shares["min"]["padding"] < live * 8 / 70
    assert shares["gcd"]["padding"] == shares["unified"]["padding"] == 0


def test_schedulers_and_allocators_can_be_told_apart(ran: Ran) -> None:
    variants = ran("scheduler-vs-allocator")["variants"]
    batch = {name: entry["batch"]["mean"] for name, entry in variants.items()}
    assert batch["paged"] > 1.5 * batch["vllm-max"]
    assert batch["vllm-max"] == pytest.approx(batch["orca-max"], rel=0.05)
    assert batch["static-max"] < 0.5 * batch["orca-max"]


def test_chats_show_what_caching_and_asynchronous_scheduling_do(ran: Ran) -> None:
    variants = ran("chat-prefix-cache")["variants"]
    served, computed = variants["vllm-serve"], variants["no-caching"]
    assert served["prefix_cache"]["hit_rate"] > 0.8
    assert served["prefix_cache"]["evicted_tokens"] > 0
    assert computed["ttft_s"]["p50"] > 10 * served["ttft_s"]["p50"]
    assert computed["tokens"]["output"] == served["tokens"]["output"]
    assert variants["no-async"]["tpot_s"]["p50"] > served["tpot_s"]["p50"]
    best = variants["belady"]["prefix_cache"]
    assert best["hit_rate"] > served["prefix_cache"]["hit_rate"]
    assert best["evicted_tokens"] < 0.5 * served["prefix_cache"]["evicted_tokens"]


def test_tiers_make_prefixes_cheaper_and_batches_no_larger(ran: Ran) -> None:
    """The figures of the file's comment."""
    variants = ran("offload-tiers")["variants"]
    found = {
        name: (
            round(100 * entry["prefix_cache"]["hit_rate"], 1),
            round(1000 * entry["ttft_s"]["p99"]),
            round(entry["batch"]["mean"], 1),
        )
        for name, entry in variants.items()
    }
    assert found == {
        "device-only": (78.5, 1150, 10.8),
        "host": (89.1, 316, 10.3),
        "host-disk": (93.9, 226, 10.2),
        "slow-disk": (89.0, 316, 10.3),
        "slow-disk-always": (93.8, 4264, 11.2),
    }
    assert round(variants["slow-disk-always"]["offload"]["disk"]["transfer_s"]) == 53
    assert variants["slow-disk"]["offload"]["disk"]["fetched_tokens"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["real", "absent"])
def test_a_cache_on_one_gpu_keeps_little_of_mooncakes_conversations(
    shared: Path, monkeypatch: pytest.MonkeyPatch, trace: str, ran: Ran
) -> None:
    """Twice the tokens keep more of them; conversations that stand in have about the lengths."""
    if trace == "real":
        monkeypatch.setenv("KVSIM_TRACES", str(shared / "traces"))
        summary = _run("mooncake-conversation")
    else:
        summary = ran("mooncake-conversation")
    variants = summary["variants"]
    found = {
        name: entry["prefix_cache"]["hit_rate"]
        for name, entry in variants.items()
        if name != "no-caching"
    }
    assert 0.02 < found["vllm-serve"] < found["fp8-cache"] < 0.25
    prompts = variants["vllm-serve"]["prefix_cache"]["query_tokens"]
    assert prompts == pytest.approx(13_732_944, rel=0.02)
    assert bool(summary["workload"]["notes"]) is (trace == "absent")
    if trace == "real":
        cache = variants["vllm-serve"]["prefix_cache"]
        assert cache["evicted_tokens"] > 3 * cache["hit_tokens"]


@pytest.mark.slow
def test_azure_conv_on_the_real_trace(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """19,366 requests; memory binds for contiguous-max and not for paged."""
    monkeypatch.setenv("KVSIM_TRACES", str(shared / "traces"))
    summary = _run("azure-conv")
    variants = summary["variants"]
    assert summary["workload"]["notes"] == []
    assert summary["workload"]["source"] == "AzureLLMInferenceTrace_conv.csv"
    assert list(variants) == [
        "paged",
        "contiguous-max",
        "contiguous-pow2",
        "contiguous-oracle",
        "contiguous-oracle-best-fit",
    ]
    for entry in variants.values():
        requests = entry["requests"]
        assert requests["submitted"] == 19_366
        assert requests["finished"] + requests["rejected"] == 19_366
    paged, reserved = variants["paged"], variants["contiguous-max"]
    assert paged["batch"]["mean"] >= 1.5 * reserved["batch"]["mean"]
    assert paged["queue_s"]["p50"] < reserved["queue_s"]["p50"]
    assert reserved["short_of_memory_steps"] > 0.9 * reserved["steps"]
    assert paged["short_of_memory_steps"] < 0.05 * paged["steps"]
