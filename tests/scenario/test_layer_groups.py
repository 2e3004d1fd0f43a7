"""Models whose layers keep different tokens share one pool between groups of layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import LayerGroup, compute_budget, get_gpu, get_model
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


# How layers are grouped


@pytest.mark.parametrize(
    ("rule", "layers", "sliding", "full"),
    [("max_if_close", 10, 6, 1), ("min", 10, 6, 1), ("gcd", 2, 26, 5)],
)
def test_the_rule_decides_the_groups_and_the_bytes_of_a_block(
    rule: str, layers: int, sliding: int, full: int
) -> None:
    """Gemma-3-27B has 52 and 10 layers; on two GPUs a token takes 4,096 bytes of a layer."""
    server = build_server(_scenario(memory={"kind": "paged", "layer_groups": rule}))
    memory, budget = server.allocator, server.sizing.budget
    assert isinstance(memory, GroupedAllocator)
    assert budget is not None
    assert [group.window for group in memory.groups] == [1024] * sliding + [None] * full
    assert budget.block_bytes == 16 * layers * 4096
    assert memory.num_blocks == budget.kv_pool.bytes // budget.block_bytes


def test_unified_layers_are_plain_paged_memory_of_whole_tokens() -> None:
    server = build_server(_scenario(memory={"kind": "paged", "layer_groups": "unified"}))
    budget = server.sizing.budget
    assert type(server.allocator) is PagedAllocator
    assert budget is not None
    assert budget.block_bytes == 16 * 62 * 4096
    assert server.allocator.num_blocks == budget.kv_pool.bytes // budget.block_bytes
    assert server.sizing.groups.is_uniform


def test_unified_lets_such_a_model_have_what_one_group_has(tmp_path: Path) -> None:
    """Belady's order, and EAGLE, need one table per request."""
    options = ["model=gemma-3-1b", "memory.layer_groups=unified", "memory.eviction=belady"]
    server = build_server(load_scenario(write_chats(tmp_path), options))
    assert isinstance(server.allocator, PagedAllocator)


def test_grouping_changes_memory_and_no_step_time(tmp_path: Path) -> None:
    """With memory to spare every rule runs the same steps in the same time."""
    path = write_chats(tmp_path, LONG)
    options = [
        "model=gemma-3-1b",
        "hardware={gpu: h100}",
        "clock={kind: calibrated}",
        "memory.num_blocks=100000",
        "engine.max_model_len=3000",
        "engine.enable_prefix_caching=false",
    ]
    rules = "{" + ", ".join(f"{r}: {{memory: {{layer_groups: {r}}}}}" for r in RULES) + "}"
    found = run_scenario(load_scenario(path, [*options, f"compare={rules}"])).summary["variants"]
    assert len({(one["steps"], one["duration_s"]) for one in found.values()}) == 1
    assert len({one["ttft_s"]["mean"] for one in found.values()}) == 1


RULES = ("unified", "min", "gcd")
ONE_REQUEST = """\
version: 1
profile: plain
model: {model}
engine: {{max_num_batched_tokens: 8192, max_num_seqs: 4, max_model_len: 8192}}
memory: {{kind: paged, block_size: 16, num_blocks: {blocks}, layer_groups: {rule}}}
clock: {{kind: fixed, step_s: 1.0}}
workload: {{path: trace.csv}}
"""


def _one_request(
    folder: Path, *, model: str, blocks: int, rule: str, prompt: int = 8191, output: int = 1
) -> dict[str, Any]:
    trace = f"arrival_s,prompt_tokens,output_tokens\n0,{prompt},{output}\n"
    (folder / "trace.csv").write_text(trace)
    path = folder / "one.yaml"
    path.write_text(ONE_REQUEST.format(model=model, blocks=blocks, rule=rule))
    entry: dict[str, Any] = run_scenario(load_scenario(str(path))).summary["variants"]["paged"]
    return entry


def test_a_unified_memory_shows_what_is_out_of_the_window(tmp_path: Path) -> None:
    """Of 8,191 tokens 52 of 62 layers need 1,024; 512 blocks hold nothing else."""
    entry = _one_request(tmp_path, model="gemma-3-27b", blocks=513, rule="unified")
    found = entry["layer_groups"]
    assert found["out_of_window"] == pytest.approx(52 * (8191 - 1024) / (62 * 8192), abs=1e-15)
    assert found["padding"] == 0
    assert found["out_of_window"] < entry["memory"]["by_time"]["live"] == 8191 / 8192


@pytest.mark.parametrize(("rule", "groups"), [("min", 7), ("max_if_close", 7), ("gcd", 31)])
def test_padding_layers_take_their_part_of_every_block(
    tmp_path: Path, rule: str, groups: int
) -> None:
    """160 tokens in 10 blocks of each group: 60 of 70 are sliding, 8 of their 60 layers padding."""
    entry = _one_request(
        tmp_path, model="gemma-3-27b", blocks=1001, rule=rule, prompt=160, output=1
    )
    padded = 0 if rule == "gcd" else 60 * 8 / 60 / 1000
    assert entry["layer_groups"] == {"padding": pytest.approx(padded), "out_of_window": None}
    assert entry["memory"]["by_time"]["live"] == pytest.approx(groups * 10 / 1000)


def test_padding_is_that_of_the_type_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 full layers, 10 sliding: groups of 4, the sliding ones with 2 of 12 layers of padding."""
    model = get_model("gemma-3-1b")
    split = (LayerGroup(4, model.attention), LayerGroup(10, model.attention, 24))
    model = replace(model, groups=split)
    monkeypatch.setattr("kvsim.scenario.sizing.get_model", lambda name: model)
    entry = _one_request(tmp_path, model="x", blocks=1001, rule="min", prompt=160, output=2)
    # 160 tokens in the first step; then the 11th block, and the first 8 have left a window of 24
    held = (3 * 10 + 3 * (11 - 8)) / 2
    assert entry["memory"]["peak_allocated"] == 4 * 10 / 1000
    assert entry["layer_groups"]["padding"] == pytest.approx(held * 2 / 12 / 1000)


def test_models_with_one_kind_of_layer_have_no_such_figures(tmp_path: Path) -> None:
    for rule in ("unified", "max_if_close"):
        entry = _one_request(tmp_path, model="llama-3-8b", blocks=600, rule=rule)
        assert "layer_groups" not in entry


# Chunks and states

UNCACHED = ["engine.enable_prefix_caching=false", "engine.max_model_len=3000"]


def test_llama_4_gives_back_whole_chunks(tmp_path: Path) -> None:
    """Three groups of 12 layers keep the chunk of 8,192 tokens, one keeps everything."""
    trace = "arrival_s,prompt_tokens,output_tokens\n0,8190,4\n"
    (tmp_path / "trace.csv").write_text(trace)
    text = ONE_REQUEST.format(model="llama-4-maverick", blocks=3001, rule="max_if_close")
    path = tmp_path / "one.yaml"
    path.write_text(text.replace("max_model_len: 8192", "max_model_len: 9000"))
    scenario = load_scenario(str(path))
    entry = run_scenario(scenario).summary["variants"]["paged"]
    groups = build_server(scenario).allocator
    assert isinstance(groups, GroupedAllocator)
    assert [(one.kind, one.chunk) for one in groups.groups] == [("chunked", 8192)] * 3 + [
        ("full", None)
    ]
    # Steps end with 8,190 to 8,193 tokens: the last one needs one block per chunked group.
    assert entry["steps"] == 4
    live = [4 * 8190, 4 * 8191, 4 * 8192, 8193 + 3]
    assert entry["memory"]["by_time"]["live"] == pytest.approx(sum(live) / 4 / (3000 * 16))
    assert entry["memory"]["peak_allocated"] == 4 * 512 / 3000
    assert "attend to their chunk only: not proven" in entry["setup"]["notes"][0]


def test_a_state_fills_one_block_of_as_many_bytes(tmp_path: Path) -> None:
    """784 tokens of a layer's KV take no less than its state of 783 tokens' bytes."""
    entry = _one_request(tmp_path, model="qwen3.5-27b", blocks=41, rule="min", prompt=1000)
    terms = entry["memory"]["by_time"]
    assert entry["setup"]["block_size"] == 784
    assert entry["memory"]["capacity_slots"] == 40 * 784
    assert terms["live"] == pytest.approx((1000 + 3 * 783) / (40 * 784))
    assert terms["detail"]["internal"]["roundup"] == pytest.approx(3 / (40 * 784))
    assert entry["memory"]["peak_allocated"] == 5 / 40
    assert any("blocks hold 784 tokens instead of 16" in one for one in entry["setup"]["notes"])


def test_the_blocks_of_a_model_with_states_come_from_the_budget() -> None:
    sections = {
        "engine": {"enable_prefix_caching": False, "max_model_len": 32_768},
        "clock": {"kind": "linear", "base_s": 0.01},
    }
    server = build_server(_scenario(model="qwen3.5-27b", **sections))
    budget = server.sizing.budget
    assert budget is not None
    # two GPUs halve states and KV: as many tokens, half the bytes of one GPU's blocks
    assert server.sizing.block_size == 784
    assert budget.block_bytes == 784 * 16 * 2048
    assert server.allocator.num_blocks == budget.kv_pool.bytes // budget.block_bytes


@pytest.mark.parametrize("model", ["llama-4-maverick", "qwen3.5-27b"])
def test_chats_with_such_models_run_to_their_end(tmp_path: Path, model: str) -> None:
    path = write_chats(tmp_path, LONG)
    options = [f"model={model}", "memory.num_blocks=3000", *UNCACHED]
    entry = run_scenario(load_scenario(path, options)).summary["variants"]["paged"]
    assert entry["requests"]["finished"] == entry["requests"]["submitted"] > 0
    assert entry["stuck"] is None


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            ["model=qwen3.5-27b"],
            "engine.enable_prefix_caching = true is not covered where the model has layers that"
            " keep a state",
            "Set it to false",
        ),
        (
            ["model=llama-4-maverick"],
            "engine.enable_prefix_caching = true is not covered where the model has layers with"
            " chunked-local attention",
            "Set it to false, or memory.layer_groups to unified",
        ),
        (
            ["model=qwen3.5-27b", "memory.layer_groups=unified"],
            "memory.layer_groups cannot be used: qwen3.5-27b has layers that keep a state",
            "Use max_if_close, min or gcd",
        ),
        (
            ["model=qwen3.5-27b", *UNCACHED, NGRAM],
            "engine.speculative_config is not covered where the model has layers that keep a state",
            "Set it to null",
        ),
        (
            ["model=qwen3.5-27b", "memory.kind=contiguous"],
            "memory.kind must be paged, got contiguous: the model has layers that keep a state",
            "choose a model whose layers keep every token",
        ),
        (
            ["model=qwen3.5-27b", *UNCACHED, "hardware={gpu: h100}", "clock={kind: roofline}"],
            "clock.kind = roofline is not covered where the model has layers that keep a state",
            "fixed or linear",
        ),
        (
            ["memory.layer_groups=both"],
            "memory.layer_groups must be max_if_close, min, gcd or unified, got 'both'",
            "",
        ),
        (
            ["engine.disable_hybrid_kv_cache_manager=true"],
            "engine.disable_hybrid_kv_cache_manager is called memory.layer_groups (unified) here",
            "Set memory.layer_groups (unified) instead",
        ),
    ],
)
def test_what_chunks_states_and_rules_cannot_have_is_refused_by_name(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path), ["model=gemma-3-1b", *options])
    assert caught.value.problem.startswith(problem)
    assert fix in str(caught.value.fix)


def test_llama_4_with_one_table_may_cache_prefixes(tmp_path: Path) -> None:
    """The way out that the refusal names."""
    options = ["model=llama-4-maverick", "memory.layer_groups=unified", "memory.num_blocks=900"]
    server = build_server(load_scenario(write_chats(tmp_path), options))
    assert type(server.allocator) is PagedAllocator
    assert server.allocator.cache is not None
