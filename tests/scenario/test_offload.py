"""`memory.offload` from the file to the report."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvsim.core.offload import OffloadingAllocator
from kvsim.cost import FixedClock, LinearClock, TransferClock
from kvsim.errors import InputError
from kvsim.report import print_report
from kvsim.report.html import write_report
from kvsim.report.remarks import capacity_remark
from kvsim.scenario import (
    Scenario,
    build_server,
    build_workload,
    load_scenario,
    resolved,
    run_scenario,
    variants,
)
from kvsim.scenario.build_offload import compute_time
from kvsim.workload.prefix import PrefixAnalysis
from tests.scenario.chats import write_chats

ENDLESS = 10**6
ONE_AT_A_TIME = ["workload.max_concurrency=1", "memory.num_blocks=81"]
GIVEN = "kv_bytes_per_token: 1000"


def _host(blocks: int, more: str = "fetch: always") -> str:
    tier = f"{{capacity_blocks: {blocks}, bandwidth_gb_per_s: 1.0}}"
    return f"memory.offload={{{GIVEN}, {more}, host: {tier}}}"


def _entry(path: str, *options: str) -> dict[str, Any]:
    return run_scenario(load_scenario(path, options)).summary["variants"]["paged"]


# What is found


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_one_request_at_a_time_an_endless_host_finds_all_that_can_be_found(
    tmp_path: Path, asynchronous: str
) -> None:
    """What the analysis of the trace says a cache without end finds: no prompt twice."""
    path = write_chats(tmp_path)
    analysis = PrefixAnalysis(build_workload(load_scenario(path).workload, seed=0).workload, 8)
    options = [*ONE_AT_A_TIME, f"engine.async_scheduling={asynchronous}", _host(ENDLESS)]
    entry = _entry(path, *options)
    found = entry["prefix_cache"]
    assert found["hit_tokens"] == analysis.lru_hit_tokens(ENDLESS)
    assert found["evicted_tokens"] == 0
    on_device = analysis.lru_hit_tokens(80)
    assert entry["offload"]["host"]["fetched_tokens"] == found["hit_tokens"] - on_device
    assert entry["offload"]["host"]["evicted_blocks"] == 0


@pytest.mark.parametrize("blocks", [40, 120, 300])
def test_a_finite_host_finds_at_least_what_it_would_alone_and_no_more_than_both(
    tmp_path: Path, blocks: int
) -> None:
    path = write_chats(tmp_path)
    analysis = PrefixAnalysis(build_workload(load_scenario(path).workload, seed=0).workload, 8)
    hits = _entry(path, *ONE_AT_A_TIME, _host(blocks))["prefix_cache"]["hit_tokens"]
    assert hits >= max(analysis.lru_hit_tokens(blocks), analysis.lru_hit_tokens(80))
    assert hits <= analysis.lru_hit_tokens(80 + blocks)


# What it costs

REPEATED = """\
version: 1
profile: vllm-0.33
engine: {max_num_seqs: 4, max_num_batched_tokens: 2048, max_model_len: 1100}
memory: {kind: paged, block_size: 16, num_blocks: 66}
clock: {kind: fixed, step_s: 1.0}
workload: {path: repeated.jsonl, chunk_tokens: 512}
"""
LINEAR = "clock={kind: linear, base_s: 0.5, prefill_token_s: 0.01}"


def _repeated(folder: Path) -> str:
    """Prompts of 1,024 tokens, the third the first one and one token, 20 s apart."""
    rows = [(0, 1024, [1, 2]), (20_000, 1024, [3, 4]), (40_000, 1025, [1, 2, 5])]
    lines = [
        json.dumps({"timestamp": at, "input_length": n, "output_length": 1, "hash_ids": ids})
        for at, n, ids in rows
    ]
    (folder / "repeated.jsonl").write_text("\n".join(lines) + "\n")
    path = folder / "repeated.yaml"
    path.write_text(REPEATED)
    return str(path)


@pytest.mark.parametrize("asynchronous", ["false", "true"])
@pytest.mark.parametrize(
    ("clock", "fetch", "ttft_s", "fetched"),
    [
        ("clock.step_s=1.0", "always", 1.0 + 0.5 + 1008 * 1000 / 1e6, 1008),
        ("clock.step_s=1.0", "auto", 1.0, 0),
        (LINEAR, "auto", 0.5 + 0.01 + 0.5 + 1008 * 1000 / 1e6, 1008),
        ("clock.step_s=1.0", None, 1.0, 0),
    ],
)
def test_time_to_first_token_is_the_step_and_what_it_waits_for(
    tmp_path: Path, asynchronous: str, clock: str, fetch: str | None, ttft_s: float, fetched: int
) -> None:
    """Of the first prompt's 64 blocks the device kept one, the host has the 63 others.

    1,000 bytes per token at 0.001 GB/s: 1 ms each, and 0.5 s of latency. With steps of 1 s whatever
    they compute, fetching gains nothing; with 10 ms per token, computing takes 10 s.
    """
    tier = "{capacity_gib: 1.0, bandwidth_gb_per_s: 0.001, latency_s: 0.5}"
    offload = f"memory.offload={{{GIVEN}, fetch: {fetch}, host: {tier}}}"
    options = [clock, f"engine.async_scheduling={asynchronous}", *([offload] if fetch else [])]
    entry = _entry(_repeated(tmp_path), *options)
    first_s = 0.5 + 10.24 if clock == LINEAR else 1.0
    assert entry["ttft_s"]["mean"] == pytest.approx((2 * first_s + ttft_s) / 3, rel=1e-9)
    if fetch:
        host = entry["offload"]["host"]
        assert (host["fetched_tokens"], host["fetched_blocks"]) == (fetched, fetched // 16)
        assert host["declined_tokens"] == 1008 - fetched
        assert host["transfer_s"] == pytest.approx(0.5 + 1.008 if fetched else 0.0, rel=1e-12)
    assert entry["prefix_cache"]["hit_tokens"] == 16 + fetched
    assert entry["prefix_cache"]["evicted_tokens"] == 1008 - fetched


def test_a_prompt_is_computed_in_steps_of_the_token_budget() -> None:
    """250 tokens behind 30 in steps of 100: three steps, read back 30, 130 and 230 tokens."""
    clock = LinearClock(base_s=1.0, prefill_token_s=0.1, context_token_s=0.01)
    expected = 3 * 1.0 + 250 * 0.1 + (30 + 130 + 230) * 0.01
    assert compute_time(clock, 100)(30, 250) == pytest.approx(expected, rel=1e-12)
    assert compute_time(FixedClock(2.0), 100)(0, 100) == 2.0


# Settings

ON_GPU: dict[str, Any] = {
    "version": 1,
    "profile": "vllm-0.33",
    "model": "llama-3-8b",
    "workload": {"preset": "azure-conv-2023", "num_requests": 10},
}


@pytest.mark.parametrize(
    ("gpus", "cache", "per_gpu", "blocks"),
    [(1, "auto", 131_072, 8192), (2, "auto", 65_536, 8192), (1, "fp8", 65_536, 16_384)],
)
def test_capacity_is_of_all_gpus_and_bandwidth_of_each(
    gpus: int, cache: str, per_gpu: int, blocks: int
) -> None:
    """Llama-3-8B has 128 KiB of KV per token: 16 GiB are 8,192 blocks of 16 tokens."""
    host = {"capacity_gib": 16.0, "bandwidth_gb_per_s": 25.0, "latency_s": 0.25}
    disk = {"capacity_blocks": 77, "bandwidth_gb_per_s": 2.0}
    scenario = Scenario.model_validate(
        {
            **ON_GPU,
            "hardware": {"gpu": "a100-80gb", "count": gpus},
            "engine": {"kv_cache_dtype": cache},
            "memory": {"kind": "paged", "offload": {"disk": disk, "host": host}},
        }
    )
    server = build_server(scenario)
    assert isinstance(server.allocator, OffloadingAllocator)
    tiers = server.allocator.tiers.tiers
    assert [(tier.name, tier.capacity_blocks) for tier in tiers] == [("host", blocks), ("disk", 77)]
    assert tiers[0].transfer_s(16, 1) == pytest.approx(0.25 + 16 * per_gpu / 25e9, rel=1e-12)
    clock = server.sizing.clock
    assert isinstance(clock, TransferClock)
    assert clock.links["disk"].bytes_per_token == per_gpu
    assert clock.links["disk"].bandwidth_bytes_per_s == 2e9


def test_a_variant_may_state_a_capacity_the_other_way_and_do_without(tmp_path: Path) -> None:
    compare = (
        "compare={gib: {memory: {offload: {host: {capacity_gib: 2.0}}}},"
        " none: {memory: {offload: null}}}"
    )
    scenario = load_scenario(write_chats(tmp_path), [_host(9), compare])
    found = variants(scenario)
    host = found["gib"].memory.offload.host  # type: ignore[union-attr]
    assert (host.capacity_gib, host.capacity_blocks) == (2.0, None)  # type: ignore[union-attr]
    assert found["none"].memory.offload is None  # type: ignore[union-attr]
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert resolved(load_scenario(str(copy))) == copy.read_text()


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            ["engine.enable_prefix_caching=false"],
            "memory.offload needs engine.enable_prefix_caching = true",
            "Set memory.offload to null",
        ),
        (
            ["memory.eviction=belady"],
            "memory.eviction = belady does not know what memory.offload",
            "Set it to lru, fifo or lfu",
        ),
        (
            [
                "engine.speculative_config={method: ngram, num_speculative_tokens: 2,"
                " acceptance_rate: 0.5}"
            ],
            "memory.offload together with engine.speculative_config is not covered",
            "Set memory.offload to null",
        ),
        (
            ["model=gemma-3-1b"],
            "memory.offload needs one group of layers that keeps every token",
            "Set it to null",
        ),
        (
            ["memory.offload.kv_bytes_per_token=null"],
            "memory.offload.kv_bytes_per_token is missing, and no model gives it",
            "name a model",
        ),
        (
            ["memory.offload.host=null"],
            "memory.offload names no tier",
            "Give host or disk",
        ),
        (
            ["memory.offload.host.capacity_gib=1.0"],
            "memory.offload.host needs either capacity_gib or capacity_blocks, got both",
            "Give one of them",
        ),
        (
            ["memory.offload.host={bandwidth_gb_per_s: 1.0}"],
            "memory.offload.host needs either capacity_gib or capacity_blocks, got neither",
            "Give one of them",
        ),
        (
            ["memory.offload.host={bandwidth_gb_per_s: 1.0, capacity_gib: 1e-6}"],
            "memory.offload.host.capacity_gib = 1e-06 GiB does not hold one block of 8000 bytes",
            "Raise it to 7.45e-06 or more",
        ),
        (["memory.offload.host.capacity_blocks=0"], "must be >= 1 block", "block"),
        (
            ["engine.kv_offloading_size=4"],
            "engine.kv_offloading_size is called memory.offload.host.capacity_gib here",
            "Set memory.offload.host.capacity_gib instead",
        ),
    ],
)
def test_what_offloading_cannot_have_is_refused_by_name(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        build_server(load_scenario(write_chats(tmp_path), [_host(9), *options]))
    assert problem in str(caught.value)
    assert fix in str(caught.value)


# Reports

REMARK = (
    "Offloading makes cached prefixes cheaper to have again; it does not let more requests run at"
    " once: the batch is bounded by the blocks on the device."
)


def test_reports_show_the_tiers_and_say_that_they_add_no_room(tmp_path: Path) -> None:
    path = write_chats(tmp_path)
    compare = "compare={none: {memory: {offload: null}}}"
    run_scenario(load_scenario(path, [_host(500), compare]), out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "offload" not in summary["variants"]["none"]
    console = Console(width=400, file=io.StringIO())
    print_report(summary["variants"], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert REMARK in text
    assert "host, fetched (tokens)" in text
    assert "disk, fetched" not in text
    page = write_report(tmp_path / "run").path.read_text()
    assert page.count(f'<p class="remark">{REMARK}</p>') == 1
    assert "Prefixes in the host&#39;s memory, whole run" in page
    assert "Prefixes on disk" not in page


def test_without_tiers_no_report_speaks_of_them(tmp_path: Path) -> None:
    run_scenario(load_scenario(write_chats(tmp_path)), out=tmp_path / "run")
    assert "Offloading" not in write_report(tmp_path / "run").path.read_text()


def test_the_remark_says_what_is_there() -> None:
    assert capacity_remark(offloads=False) is None
    assert capacity_remark(offloads=True) == REMARK
    swaps = capacity_remark(offloads=False, swaps=True)
    assert swaps is not None
    assert swaps.startswith("Swapping makes preempted requests cheaper to resume; it does not let")
    both = capacity_remark(offloads=True, swaps=True)
    assert both is not None
    assert both.startswith("Offloading makes cached prefixes cheaper to have again and swapping")
