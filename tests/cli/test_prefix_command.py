from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

ROWS = [(1000, 10, [0, 1]), (600, 20, [0, 2]), (513, 1, [0, 3]), (1000, 10, [0, 1])]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": ids}) + "\n"
        for t, (p, o, ids) in enumerate(ROWS)
    ]
    path.write_text("".join(lines))
    return str(path)


def document(kvsim: Command, *arguments: str) -> dict[str, Any]:
    outcome = kvsim("prefix", "--json", *arguments)
    assert (outcome.status, outcome.err) == (0, "")
    shown: dict[str, Any] = json.loads(outcome.out)
    return shown


def test_the_table_shows_hits_by_capacity_and_the_bound(kvsim: Command, trace: str) -> None:
    status, out, err = kvsim("prefix", trace, "--capacities", "1024,2k,100blocks")
    assert (status, err) == (0, "")
    assert "trace.jsonl: 4 requests, 3,113 prompt tokens" in out
    rows = [line.split() for line in out.splitlines() if line.strip().endswith("%")]
    assert [row[:2] for row in rows] == [["1,024", "64"], ["1,600", "100"], ["2,000", "125"]]
    # 512 + 512 + 992 tokens: the last request's blocks of 16, but for the partial one.
    assert "Without eviction: 64.76% hit" in out
    assert "0.26% lost to block rounding" in out
    assert "In the trace's chunks of 512 tokens" in out


def test_without_capacities_the_grid_ends_where_nothing_is_evicted(
    kvsim: Command, trace: str
) -> None:
    shown = document(kvsim, trace)
    first, last = shown["capacities"][0], shown["capacities"][-1]
    assert first["blocks"] == shown["largest_request_blocks"] == 64
    assert last["blocks"] == shown["no_eviction_blocks"]
    assert last["lru"]["evicted_tokens"] == 0
    assert last["lru"]["hit_tokens"] == shown["bound"]["hit_tokens"] == 2016
    assert last["best_hit_tokens"] is None


def test_causes_sum_to_all_prompt_tokens_also_where_requests_are_rejected(
    kvsim: Command, trace: str
) -> None:
    shown = document(kvsim, trace, "--capacities", "50blocks,64blocks,70blocks")
    assert [row["lru"]["rejected_tokens"] for row in shown["capacities"]] == [2000, 0, 0]
    for row in shown["capacities"]:
        causes = {name: n for name, n in row["lru"].items() if name.endswith("_tokens")}
        assert sum(causes.values()) == shown["prompt_tokens"] == 3113
        assert row["tokens"] == row["blocks"] * 16


def test_belady_adds_capacities_and_the_optimum(kvsim: Command, trace: str) -> None:
    shown = document(kvsim, trace, "--belady", "3", "--capacities", "65blocks")
    assert 65 in [row["blocks"] for row in shown["capacities"]]
    assert len(shown["capacities"]) >= 3
    for row in shown["capacities"]:
        assert row["lru"]["hit_tokens"] <= row["best_hit_tokens"] <= 2016
        assert row["best_hit_rate"] == row["best_hit_tokens"] / 3113
    assert "best" in kvsim("prefix", trace, "--belady", "3").out


def test_a_model_gives_capacities_in_bytes(kvsim: Command, trace: str) -> None:
    shown = document(kvsim, trace, "--capacities", "8192", "--model", "llama-3-8b")
    assert [row["gib"] for row in shown["capacities"]] == [1.0]
    assert "(GiB)" in kvsim("prefix", trace, "--model", "llama-3-8b").out


def test_explain_defines_every_figure(kvsim: Command, trace: str) -> None:
    out = kvsim("prefix", trace, "--explain").out
    for word in ("never_seen", "rounding", "last_token", "rejected", "bound", "Belady"):
        assert word in out
    shown = document(kvsim, trace, "--explain")
    assert set(shown["definitions"]) >= {"model", "lru", "best", "evicted"}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--block-size", "48"], "block_size: must divide the trace's chunks of 512 tokens"),
        (["--block-size", "0"], "--block-size: must be an integer from 1"),
        (["--block-size", "0", "--capacities", "1k"], "--block-size: must be an integer from 1"),
        (["--capacities", "3X"], "--capacities: '3X' is no capacity"),
        (["--capacities", "1.5blocks"], "--capacities: '1.5blocks' is no capacity"),
        (["--capacities", ""], "--capacities: '' is no capacity"),
        (["--capacities", "15"], "--capacities: 15 must be from 1 to 1,000,000,000,000,000 blocks"),
        (["--capacities", "99999999999G"], "--capacities: 99999999999G must be from 1"),
        (["--capacities", "\x1b[31m"], r"--capacities: '\x1b[31m' is no capacity"),
        (["--belady", "-1"], "--belady: must be an integer from 0"),
        (["--belady", "10001"], "--belady: must be an integer from 0 to 10,000"),
        (["--format", "nothing"], "format: 'nothing' is no trace format"),
        (["--model", "nothing"], "nothing"),
        (["--on-bad-row", "skip"], "--on-bad-row: must be error or drop, got 'skip'"),
        (["--chunk-tokens", "16"], "2 ids, but a prompt of 1,000 tokens has 63 chunks of 16"),
        (["--chunk-lengths", "no.csv"], "no.csv: no such file"),
    ],
)
def test_bad_input_ends_with_status_2_and_a_way_out(
    kvsim: Command, trace: str, arguments: list[str], place: str
) -> None:
    outcome = kvsim("prefix", trace, *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert place in outcome.err
    assert "Fix: " in outcome.err
    assert "Traceback" not in outcome.err


def test_a_trace_without_prefix_information_says_so(kvsim: Command, tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n")
    outcome = kvsim("prefix", str(path))
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(
        "kvsim: plain.csv: does not say which prompts share a prefix.\n  Fix: Give a trace with ids"
    )


def test_bad_rows_can_be_dropped_and_are_counted(kvsim: Command, trace: str) -> None:
    with Path(trace).open("a") as file:
        file.write("{}\n")
    outcome = kvsim("prefix", trace)
    assert outcome.status == 2
    assert "--on-bad-row drop" in outcome.err
    out = kvsim("prefix", trace, "--on-bad-row", "drop").out
    assert "4 requests, 3,113 prompt tokens (dropped rows: 1 missing_value)" in out


def test_a_published_trace_is_found_by_its_name_or_missed_with_directions(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", str(tmp_path))
    outcome = kvsim("prefix", "mooncake-conversation")
    assert outcome.status == 2
    assert "the published trace mooncake-conversation is not in $KVSIM_TRACES" in outcome.err
    assert "Download https://raw.githubusercontent.com/kvcache-ai/Mooncake" in outcome.err


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(
    kvsim: Command, trace: str, tmp_path: Path
) -> None:
    path = tmp_path / "a\x1b[31mb.jsonl"
    path.write_text(Path(trace).read_text())
    out = kvsim("prefix", str(path)).out
    assert "\x1b" not in out
    assert r"a\x1b[31mb.jsonl: 4 requests" in out


def test_requests_at_once_are_run_through_the_scheduler_and_compared(
    kvsim: Command, trace: str
) -> None:
    """Alone it is LRU exactly; together the repeated prompt finds less or as much."""
    alone = document(
        kvsim, trace, "--in-flight", "1", "--capacities", "64blocks,70blocks,200blocks"
    )
    for row in alone["capacities"]:
        assert row["in_flight"]["hit_tokens"] == row["lru"]["hit_tokens"]
        assert row["in_flight"]["difference"] == 0
    busy = document(kvsim, trace, "--in-flight", "4", "--capacities", "200blocks")
    (row,) = busy["capacities"]
    assert row["in_flight"]["requests"] == 4
    assert row["in_flight"]["hit_tokens"] <= row["lru"]["hit_tokens"]
    shown = kvsim("prefix", trace, "--in-flight", "4", "--capacities", "200blocks").out
    assert "4 at" in shown
    assert "differ-" in shown
    assert kvsim("prefix", trace, "--in-flight", "-1").status == 2
