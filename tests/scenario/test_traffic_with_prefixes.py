"""Traffic whose prompts share text: generated conversations, and traces in chunks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.scenario import build_workload, load_scenario, resolved, run_scenario
from tests.scenario.chats import CHATS, write_chats
from tests.scenario.small import SCENARIO

CHUNKED = SCENARIO.replace("{path: trace.csv}", "{path: chunks.jsonl, chunk_tokens: 8}").replace(
    "profile: plain\n", ""
)
CACHING = ["compare={}", "engine.max_model_len=64"]


def _write_chunks(folder: Path, text: str = CHUNKED) -> str:
    """Four prompts of 24 tokens in chunks of 8, the first two of which all share."""
    rows = [
        {"timestamp": 1000 * i, "input_length": 24, "output_length": 2, "hash_ids": [0, 1, 10 + i]}
        for i in range(4)
    ]
    (folder / "chunks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "chunked.yaml"
    path.write_text(text)
    return str(path)


def test_conversations_are_those_of_the_generator(tmp_path: Path) -> None:
    traffic = build_workload(load_scenario(write_chats(tmp_path)).workload, seed=0)
    rows = list(traffic.workload)
    assert {row.request_id.split("-")[0] for row in rows} == {f"c{i}" for i in range(40)}
    assert max(row.prompt_tokens + row.output_tokens for row in rows) <= 600
    first = rows[0].segments
    assert first is not None
    assert first[0][1] == 50
    assert traffic.workload.shares_prefixes
    twice = build_workload(load_scenario(write_chats(tmp_path)).workload, seed=0)
    assert twice.workload.digest == traffic.workload.digest
    other = build_workload(load_scenario(write_chats(tmp_path)).workload, seed=1)
    assert other.workload.digest != traffic.workload.digest


def test_conversations_repeat_themselves_and_the_cache_finds_that(tmp_path: Path) -> None:
    compare = "compare={off: {engine: {enable_prefix_caching: false}}}"
    summary = run_scenario(load_scenario(write_chats(tmp_path), [compare])).summary
    cached, computed = summary["variants"]["paged"], summary["variants"]["off"]
    assert cached["prefix_cache"]["hit_rate"] > 0.5
    assert "prefix_cache" not in computed
    assert cached["tokens"]["scheduled"] < 0.7 * computed["tokens"]["scheduled"]
    assert cached["tokens"]["output"] == computed["tokens"]["output"]


def test_a_scenario_of_conversations_resolves_to_itself(tmp_path: Path) -> None:
    scenario = load_scenario(write_chats(tmp_path), ["workload.rate_scale=2"])
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert resolved(load_scenario(str(copy))) == copy.read_text()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("low: 1, high: 6", "low: 7, high: 6", "workload.chat.turns"),
        ("conversations: 40", "conversations: 0", "workload.chat.conversations must be >= 1 conv"),
        ("    conversations: 40\n", "", "workload.chat.conversations is missing"),
        ("turn_gap_s: 2.0", "turn_gap_s: -1", "workload.chat.turn_gap_s must be >= 0 seconds"),
        ("  arrivals: {kind: poisson, rate_rps: 4}\n", "", "workload.arrivals is missing"),
    ],
)
def test_conversations_that_cannot_be_are_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path, CHATS.replace(old, new)))
    assert caught.value.problem.startswith(problem)
    assert caught.value.fix


def test_conversations_stand_in_for_a_trace_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    recipe = CHATS.partition("workload:\n")[2].replace("\n  ", "\n    ").rstrip().removesuffix("  ")
    text = CHATS.partition("workload:\n")[0] + (
        "workload:\n  trace: mooncake-conversation\n  limit: 5\n  rate_scale: 2\n"
        f"  fallback:\n  {recipe}\n"
    )
    scenario = load_scenario(write_chats(tmp_path, text))
    out = tmp_path / "run"
    notes = run_scenario(scenario, out=out).summary["workload"]["notes"]
    assert notes == [
        "trace mooncake-conversation is not in the folder $KVSIM_TRACES"
        " (mooncake_conversation_trace.jsonl); generated conversations were used instead"
    ]
    used = load_scenario(str(out / "scenario.yaml")).workload.model_dump()
    assert (used["instead_of"], used["rate_scale"]) == ("mooncake-conversation", 2)
    assert used["chat"]["conversations"] == 40
    with pytest.raises(InputError, match="strict-traces"):
        build_workload(scenario.workload, seed=0, strict_traces=True)


@pytest.mark.parametrize("block_size", [1, 4, 8, 16])
def test_blocks_that_divide_the_chunks_or_hold_them_find_what_prompts_share(
    tmp_path: Path, block_size: int
) -> None:
    options = [*CACHING, f"memory={{kind: paged, block_size: {block_size}, num_blocks: 200}}"]
    entry = run_scenario(load_scenario(_write_chunks(tmp_path), options)).summary["variants"]
    assert entry["paged"]["prefix_cache"]["hit_tokens"] == 3 * 16


@pytest.mark.parametrize("block_size", [3, 5, 12])
def test_blocks_that_cut_the_chunks_anywhere_else_are_refused_while_prefixes_are_cached(
    tmp_path: Path, block_size: int
) -> None:
    options = [*CACHING, f"memory={{kind: paged, block_size: {block_size}, num_blocks: 200}}"]
    path = _write_chunks(tmp_path)
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(path, options))
    assert caught.value.where == "memory.block_size"
    assert (
        f"must divide the trace's chunks of 8 tokens or be a multiple of them, got {block_size}"
        in (caught.value.problem)
    )
    assert str(caught.value.fix).endswith("or set engine.enable_prefix_caching to false")
    run_scenario(load_scenario(path, [*options, "engine.enable_prefix_caching=false"]))
