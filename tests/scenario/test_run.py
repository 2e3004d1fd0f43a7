from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import kvsim
from kvsim.errors import InputError
from kvsim.scenario import build_workload, load_scenario, resolved, run_scenario
from kvsim.workload.describe import describe
from tests.scenario.small import SCENARIO, write_small


class Notebook:
    """Remembers what a run told its watcher."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.bars: list[list[Any]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, variant: str, requests: int) -> None:
        self.bars.append([variant, requests, 0])

    def advance(self, requests: int) -> None:
        self.bars[-1][2] += requests


def test_one_request_worked_out_by_hand(tmp_path: Path) -> None:
    """Prompt 4, output 3, steps of 1 s: KV of 4, 5 and 6 tokens; the final length is 6.

    Paged: 1, 2, 2 blocks of 4 slots out of 32. Contiguous max: 16 slots out of 36.
    """
    summary = run_scenario(load_scenario(str(write_small(tmp_path)))).summary
    assert summary["scenario"] == "small"
    assert summary["kvsim_version"] == kvsim.__version__
    assert summary["workload"]["source"] == "trace.csv"
    assert len(summary["workload"]["digest"]) == 64
    assert list(summary["variants"]) == ["paged", "contiguous-max"]
    for entry in summary["variants"].values():
        assert entry["requests"]["submitted"] == entry["requests"]["finished"] == 1
        assert entry["tokens"] == {"prompt": 4, "output": 3, "scheduled": 6, "recomputed": 0}
        assert (entry["steps"], entry["duration_s"]) == (3, 3.0)
        assert entry["ttft_s"]["mean"] == entry["tpot_s"]["mean"] == 1.0
        assert entry["e2e_s"]["mean"] == 3.0
        assert entry["queue_s"]["mean"] == 0.0
        assert entry["batch"]["mean"] == entry["batch"]["max"] == 1
        assert entry["stuck"] is None
    paged = summary["variants"]["paged"]["memory"]
    assert paged["capacity_slots"] == 32
    shares = {term: paged["by_time"][term] for term in ("live", "reservation", "internal")}
    assert shares == pytest.approx(
        {"live": 15 / 96, "reservation": 1 / 96, "internal": 4 / 96}, rel=1e-12
    )
    contiguous = summary["variants"]["contiguous-max"]["memory"]
    assert contiguous["capacity_slots"] == 36
    shares = {term: contiguous["by_time"][term] for term in ("live", "reservation", "internal")}
    assert shares == pytest.approx(
        {"live": 15 / 108, "reservation": 3 / 108, "internal": 30 / 108}, rel=1e-12
    )


def test_the_summary_says_how_each_variant_was_set_up(tmp_path: Path) -> None:
    summary = run_scenario(load_scenario(str(write_small(tmp_path)))).summary
    assert summary["variants"]["contiguous-max"]["setup"] == {
        "model": None,
        "gpu": None,
        "gpu_count": None,
        "kv_cache_dtype": "auto",
        "scheduler": "vllm",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "memory": "contiguous",
        "block_size": 4,
        "num_blocks": 9,
        "num_blocks_80_percent": None,
        "max_model_len": 16,
        "clock": "fixed",
        "clock_relative_error": None,
        "clock_note": "fixed step time, as given",
        "notes": [],
    }


def test_an_alias_is_resolved_in_the_set_up(tmp_path: Path) -> None:
    named = ["model=llama-3-8b", "hardware={gpu: a100}"]
    scenario = load_scenario(str(write_small(tmp_path)), named)
    setup = run_scenario(scenario).summary["variants"]["paged"]["setup"]
    assert (setup["model"], setup["gpu"], setup["gpu_count"]) == ("llama-3-8b", "a100-80gb", 1)


def test_an_output_cut_at_max_model_len_is_counted_and_marked(tmp_path: Path) -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n0,10,50\n1,10,6\n"
    out = tmp_path / "run"
    scenario = load_scenario(str(write_small(tmp_path, trace=trace)))
    entry = run_scenario(scenario, out=out).summary["variants"]["paged"]
    assert (entry["requests"]["finished"], entry["requests"]["truncated"]) == (2, 1)
    assert entry["tokens"]["output"] == 12
    rows = pq.read_table(out / "variants" / "paged" / "requests.parquet").to_pydict()
    assert sorted(zip(rows["request_id"], rows["reason"], strict=True)) == [
        ("r0", "max_model_len"),
        ("r1", None),
    ]


def test_a_request_that_can_never_fit_is_rejected_with_its_reason(tmp_path: Path) -> None:
    path = write_small(tmp_path, trace="arrival_s,prompt_tokens,output_tokens\n0,15,1\n1,16,1\n")
    requests = run_scenario(load_scenario(str(path))).summary["variants"]["paged"]["requests"]
    assert (requests["submitted"], requests["finished"], requests["rejected"]) == (2, 1, 1)
    assert sum(requests["rejected_by_reason"].values()) == 1


def test_a_run_that_cannot_advance_ends_with_a_report(tmp_path: Path) -> None:
    path = write_small(tmp_path, trace="arrival_s,prompt_tokens,output_tokens\n0,14,1\n")
    overrides = ["memory.num_blocks=3", "engine.on_never_fits=block"]
    entry = run_scenario(load_scenario(str(path), overrides)).summary["variants"]["paged"]
    assert entry["requests"]["unfinished"] == 1
    assert entry["stuck"]["head_request_id"] == "r0"


def test_a_closed_loop_keeps_so_many_requests_in_flight(tmp_path: Path) -> None:
    """Three requests of three steps, one at a time: nine seconds."""
    trace = "arrival_s,prompt_tokens,output_tokens\n" + "0,4,3\n" * 3
    path = str(write_small(tmp_path, trace=trace))
    scenario = load_scenario(path, ["workload.max_concurrency=1"])
    entry = run_scenario(scenario).summary["variants"]["paged"]
    assert (entry["batch"]["max"], entry["duration_s"]) == (1, 9.0)
    entry = run_scenario(load_scenario(path)).summary["variants"]["paged"]
    assert (entry["batch"]["max"], entry["duration_s"]) == (3, 3.0)


def test_the_watcher_hears_of_every_variant_and_request(tmp_path: Path) -> None:
    notebook = Notebook()
    run_scenario(load_scenario(str(write_small(tmp_path))), watcher=notebook)
    assert notebook.bars == [["paged", 1, 1], ["contiguous-max", 1, 1]]


def test_a_run_folder_holds_what_is_needed_to_read_and_to_repeat_it(tmp_path: Path) -> None:
    scenario = load_scenario(str(write_small(tmp_path)))
    out = tmp_path / "run"
    summary = run_scenario(scenario, out=out).summary
    assert json.loads((out / "summary.json").read_text()) == summary
    stamped = load_scenario(str(out / "scenario.yaml"))
    digest = hashlib.sha256((tmp_path / "trace.csv").read_bytes()).hexdigest()
    assert stamped.workload.model_dump()["sha256"] == digest
    assert (out / "scenario.yaml").read_text() == resolved(stamped)
    unstamped = resolved(stamped).replace(digest, "null")
    assert unstamped == resolved(scenario)
    run = json.loads((out / "run.json").read_text())
    assert run["trace_digest"] == summary["workload"]["digest"]
    assert run["seeds"] == [0]
    assert {"kvsim", "python", "numpy", "simpy"} <= run["versions"].keys()
    steps = pq.read_table(out / "variants" / "paged" / "steps.parquet").to_pydict()
    assert steps["live_slots"] == [4, 5, 6]
    requests = pq.read_table(out / "variants" / "contiguous-max" / "requests.parquet").to_pydict()
    assert requests["finish_s"] == [3.0]


def test_a_run_repeated_from_its_folder_has_the_same_bytes(tmp_path: Path) -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
        f"{i / 7},{3 + i % 9},{1 + i % 5}\n" for i in range(40)
    )
    first, second = tmp_path / "first", tmp_path / "second"
    run_scenario(load_scenario(str(write_small(tmp_path, trace=trace))), out=first)
    run_scenario(load_scenario(str(first / "scenario.yaml")), out=second)
    names = {path.relative_to(first) for path in first.rglob("*") if path.is_file()}
    assert names == {path.relative_to(second) for path in second.rglob("*") if path.is_file()}
    assert len(names) == 11
    for name in names - {Path("created.json")}:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.parametrize(
    ("mode", "files"),
    [
        ("summary", []),
        ("series", ["requests.parquet", "snapshots.json", "steps.parquet"]),
        ("steps", ["requests.parquet", "snapshots.json", "steps.parquet"]),
    ],
)
def test_the_mode_decides_which_rows_a_run_folder_keeps(
    tmp_path: Path, mode: str, files: list[str]
) -> None:
    scenario = load_scenario(str(write_small(tmp_path)), [f"record.mode={mode}"])
    run_scenario(scenario, out=tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / "variants" / "paged").glob("*"))
    assert kept == files


def test_an_existing_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    notebook = Notebook()
    scenario = load_scenario(str(write_small(tmp_path)))
    with pytest.raises(InputError, match="exists already"):
        run_scenario(scenario, out=tmp_path, watcher=notebook)
    assert notebook.bars == []


def test_the_measured_window_restricts_the_averages_and_not_the_counts(tmp_path: Path) -> None:
    scenario = load_scenario(str(write_small(tmp_path)), ["measure={from_s: 1}"])
    entry = run_scenario(scenario).summary["variants"]["paged"]
    assert entry["memory"]["by_iteration"]["live"] == pytest.approx(11 / 64, rel=1e-12)
    assert entry["steps"] == 3


def test_a_request_meets_an_slo_or_misses_it(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, SCENARIO))
    for limit, goodput in ((1.0, 1 / 3), (0.9, 0.0)):
        scenario = load_scenario(path, [f"slo.ttft_s={limit}"])
        throughput = run_scenario(scenario).summary["variants"]["paged"]["throughput"]
        assert throughput["goodput_rps"] == pytest.approx(goodput, rel=1e-12)


def test_a_summary_and_the_statistics_of_a_workload_count_the_same_rows(tmp_path: Path) -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n1,4,3\n0,4,3\n2,0,3\n3,4,3\n"
    path = str(write_small(tmp_path, trace=trace))
    scenario = load_scenario(path, ["workload.on_bad_row=drop"])
    rows = run_scenario(scenario).summary["workload"]["rows"]
    assert (rows["read"], rows["kept"], rows["reordered"]) == (4, 3, 1)
    assert list(rows["dropped"].values()) == [1]
    workload = build_workload(scenario.workload, seed=0).workload
    assert describe(workload)["rows"] == rows
