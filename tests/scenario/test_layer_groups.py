"""Models whose layers keep different tokens share one pool between groups of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import compute_budget, get_gpu, get_model
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.scenario import Scenario, build_server, load_scenario, run_scenario
from tests.scenario.chats import CHATS, write_chats

GEMMA: dict[str, Any] = {
    "version": 1,
    "model": "gemma-3-27b",
    "hardware": {"gpu": "h100", "count": 2},
    "engine": {"max_model_len": 32_768},
    "workload": {"preset": "azure-conv-2023", "num_requests": 10},
}
LONG = CHATS.replace(
    "user_tokens: {kind: uniform, low: 3, high: 40}",
    "user_tokens: {kind: uniform, low: 100, high: 400}",
).replace("600", "3000")
"""Conversations that outgrow a window of 512 tokens."""
NGRAM = "engine.speculative_config={method: ngram, num_speculative_tokens: 2, acceptance_rate: 0.5}"


def _scenario(**sections: Any) -> Scenario:
    return Scenario.model_validate({**GEMMA, **sections})


def test_the_pool_and_its_groups_are_those_of_the_budget() -> None:
    server = build_server(_scenario())
    budget = compute_budget(
        get_model("gemma-3-27b"),
        get_gpu("h100"),
        tp=2,
        gpu_memory_utilization=0.92,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
        cuda_graphs_in_budget=True,
    )
    memory = server.allocator
    assert isinstance(memory, GroupedAllocator)
    assert memory.num_blocks == budget.num_blocks
    assert [group.window for group in memory.groups] == [1024] * 6 + [None]
    assert {group.block_size for group in memory.groups} == {16}


@pytest.mark.parametrize(("asynchronous", "held"), [(True, 1089), (False, 577)])
def test_a_long_request_may_hold_what_vllm_counts_for_it(asynchronous: bool, held: int) -> None:
    """2,048 full blocks, and six windows of 1,023 tokens with 8,192 or 16,384 in flight."""
    engine = {"max_model_len": 32_768, "async_scheduling": asynchronous}
    pool = {"kind": "paged", "num_blocks": 2048 + 6 * held}
    memory = build_server(_scenario(engine=engine, memory=pool)).allocator
    reason = memory.never_fits(Request("r", 0, 1, 1), 32_768)
    assert reason is not None
    assert f"needs up to {2048 + 6 * held} blocks in 7 layer groups" in reason
    more = {**pool, "num_blocks": 2048 + 6 * held + 1}
    memory = build_server(_scenario(engine=engine, memory=more)).allocator
    assert memory.never_fits(Request("r", 0, 1, 1), 32_768) is None


def test_layers_that_all_have_the_window_are_one_group(tmp_path: Path) -> None:
    server = build_server(load_scenario(write_chats(tmp_path), ["model=mistral-7b-v0.1"]))
    assert isinstance(server.allocator, GroupedAllocator)
    assert [group.window for group in server.allocator.groups] == [4096]
    plain = build_server(load_scenario(write_chats(tmp_path), ["model=llama-3-8b"]))
    assert isinstance(plain.allocator, PagedAllocator)


def test_windows_hold_less_than_whole_contexts(tmp_path: Path) -> None:
    """The same pool holds more at once: seven tables, six of which end at 512 tokens."""
    path = write_chats(tmp_path, LONG)
    options = ["model=gemma-3-1b", "memory.num_blocks=6000", "engine.max_model_len=3000"]
    entry = run_scenario(load_scenario(path, options)).summary["variants"]["paged"]
    assert entry["requests"]["finished"] == entry["requests"]["submitted"]
    assert entry["prefix_cache"]["hit_rate"] > 0.3
    assert entry["setup"]["notes"] == []


def test_the_retention_interval_reaches_the_memory(tmp_path: Path) -> None:
    """Windows kept before every block let a prompt continue anywhere, and fill the cache."""
    path = write_chats(tmp_path, LONG)
    options = ["model=gemma-3-1b", "memory.num_blocks=4000", "engine.max_model_len=3000"]
    named = "compare={dense: {engine: {prefix_cache_retention_interval: null}}}"
    summary = run_scenario(load_scenario(path, [*options, named])).summary["variants"]
    evicted = {name: entry["prefix_cache"]["evicted_blocks"] for name, entry in summary.items()}
    assert evicted["dense"] > evicted["paged"]


def test_drafts_for_such_a_model_run_with_a_note(tmp_path: Path) -> None:
    path = write_chats(tmp_path, LONG)
    options = ["model=gemma-3-1b", "memory.num_blocks=6000", "engine.max_model_len=3000", NGRAM]
    entry = run_scenario(load_scenario(path, options)).summary["variants"]["paged"]
    assert entry["requests"]["finished"] == entry["requests"]["submitted"]
    assert entry["setup"]["notes"] == [
        "drafts for a model with sliding-window layers: not proven against the real scheduler"
    ]


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            ["memory.kind=contiguous"],
            "memory.kind must be paged, got contiguous: the model has layers with a sliding window",
            "choose a model whose layers keep every token",
        ),
        (
            ["memory.eviction=belady"],
            "memory.eviction = belady needs one group of layers that keeps every token",
            "Set it to lru, fifo or lfu",
        ),
        (
            [
                "engine.speculative_config={method: eagle, num_speculative_tokens: 2,"
                " acceptance_rate: 0.5, draft_s_per_token: 0}",
                "engine.async_scheduling=false",
            ],
            "engine.speculative_config.method = eagle is not covered where the model has layers",
            "Set it to ngram or draft_model",
        ),
        (
            ["engine.prefix_cache_retention_interval=20"],
            "engine.prefix_cache_retention_interval must be a multiple of memory.block_size = 8",
            "For example 24, or 0",
        ),
    ],
)
def test_what_such_a_model_cannot_have_is_refused_by_name(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path), ["model=gemma-3-1b", *options])
    assert caught.value.problem.startswith(problem)
    assert fix in str(caught.value.fix)


def test_a_context_that_the_memory_cannot_hold_is_refused_and_the_advice_works() -> None:
    """27B on one H100 leaves little: the longest request that fits is named, and loads."""
    engine = {"max_model_len": 131_072}
    with pytest.raises(InputError, match="in 7 groups of layers") as caught:
        build_server(_scenario(hardware={"gpu": "h100"}, engine=engine))
    longest = int(str(caught.value.fix).split()[3])
    assert 1000 < longest < 131_072
    sized = build_server(_scenario(hardware={"gpu": "h100"}, engine={"max_model_len": longest}))
    assert sized.sizing.max_model_len == longest
    with pytest.raises(InputError, match="is more than the KV memory"):
        build_server(_scenario(hardware={"gpu": "h100"}, engine={"max_model_len": longest + 1}))
