from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.scenario.small import SCENARIO, write_small


def test_json_on_stdout_is_the_summary_and_nothing_else(kvsim: Command, tmp_path: Path) -> None:
    status, out, err = kvsim("run", str(write_small(tmp_path)), "--json")
    summary = json.loads(out)
    assert (status, err) == (0, "")
    assert list(summary) == ["scenario", "kvsim_version", "workload", "variants"]
    assert list(summary["variants"]) == ["paged", "contiguous-max"]
    for entry in summary["variants"].values():
        assert entry["requests"]["finished"] == 1
        assert {"capacity_slots", "by_time", "by_iteration", "paper"} <= entry["memory"].keys()
        assert set(entry["ttft_s"]) >= {"mean", "p50", "p90", "p99"}


def test_people_get_the_result_block_the_memory_table_and_the_clock(
    kvsim: Command, tmp_path: Path
) -> None:
    status, out, err = kvsim("run", str(write_small(tmp_path)))
    assert (status, err) == (0, "")
    assert out.startswith("small: trace.csv, 1 requests\n")
    for words in (
        "Serving Benchmark Result",
        "Successful requests:",
        "contiguous-max",
        "internal (%)",
        "Step times: fixed step time, as given.",
    ):
        assert words in out


def test_explain_shows_where_times_and_memory_come_from(kvsim: Command) -> None:
    limit = ("--set", "workload.num_requests=5")
    out = kvsim("run", "quickstart", "--explain", *limit).out
    for words in ("paged: KV blocks", "activation_peak", "num_blocks", "paged: step times"):
        assert words in out
    assert out.count(": KV blocks") == 1  # the variants have the same
    assert "activation_peak" not in kvsim("run", "quickstart", *limit).out


def test_pages_are_explained_by_what_they_hold(kvsim: Command) -> None:
    limit = ("--set", "workload.num_requests=5")
    out = kvsim("run", "vmm-against-paged", "--explain", *limit).out
    for words in ("4,943 page sets of 32 (", "vmm-2m: pages", "tokens_per_page", "map_page_s"):
        assert words in out
    assert "paged: pages" not in out


def test_set_changes_a_setting(kvsim: Command, tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    overrides = ("--set", "memory.num_blocks=5", "--set", "clock.step_s=2")
    variants = json.loads(kvsim("run", path, "--json", *overrides).out)["variants"]
    assert variants["paged"]["memory"]["capacity_slots"] == 16
    assert variants["paged"]["duration_s"] == 6.0


def test_out_writes_a_run_folder_and_says_so_on_stderr(kvsim: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = kvsim("run", str(write_small(tmp_path)), "--json", "--out", str(out))
    assert outcome.status == 0
    assert json.loads((out / "summary.json").read_text()) == json.loads(outcome.out)
    assert outcome.err == f"run folder: {out}\n"


def test_a_replaced_trace_is_said_and_noted(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    limit = ("--set", "workload.limit=5")
    outcome = kvsim("run", "azure-conv", "--json", *limit)
    notes = json.loads(outcome.out)["workload"]["notes"]
    assert len(notes) == 1
    assert outcome.err == f"note: {notes[0]}\n"
    strict = kvsim("run", "azure-conv", "--json", "--strict-traces", *limit)
    assert (strict.status, strict.out) == (2, "")
    assert "$KVSIM_TRACES" in strict.err


def test_rejected_requests_and_a_run_that_cannot_advance_are_reported(
    kvsim: Command, tmp_path: Path
) -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n0,14,1\n"
    path = str(write_small(tmp_path, trace=trace))
    small = ("--set", "memory.num_blocks=3")
    rejected = kvsim("run", path, *small)
    assert rejected.status == 0
    assert "every variant: rejected 1: never_fits" in rejected.err
    stuck = kvsim("run", path, *small, "--set", "engine.on_never_fits=block")
    assert stuck.status == 0
    assert "paged: the run cannot advance any more since 0 s" in stuck.err
    assert "the first is r0" in stuck.err


MALFORMED = [
    # scenario text, or None for the small one; arguments; place; problem; way out
    ("version: 9\n", (), "small.yaml:1: ", "version must be 1, got 9", "version of this file"),
    ("a: [1", (), "small.yaml:1: ", "is not valid YAML", "brackets"),
    ("a: 1\na: 2", (), "small.yaml:2: ", "key 'a' is given twice", "Remove"),
    ("", (), "small.yaml:1: ", "got an empty file", "version: 1"),
    ("[" * 50, (), "small.yaml:1: ", "more than 20 levels", "smaller"),
    (None, ("--set", "engine.max_num_seqs=0"), "--set engine.max_num_seqs: ", "got 0", "at once"),
    (
        None,
        ("--set", "engine.max_num_seq=1"),
        "--set engine.max_num_seq: ",
        "not a setting",
        "seqs",
    ),
    (None, ("--set", "engine"), "--set: ", "got 'engine'", "--set engine.max_num_seqs=64"),
    (None, ("--set", "memory.num_blocks=[1"), "--set memory.num_blocks: ", "YAML", "brackets"),
    (None, ("--set", "memory.num_blocks=1e99"), "--set memory.num_blocks: ", "1e+99", "KV blocks"),
    (None, ("--set", "model=gpt-5"), "--set model: ", "'gpt-5' is not in the catalogue", "llama"),
    (None, ("--set", "hardware={gpu: h1}"), "--set hardware: ", "'h1' is not in", "h100"),
    (None, ("--set", "workload={trace: x}"), "--set workload: ", "'x' is no known trace", "azure"),
    (None, ("--set", "clock={kind: x}"), "--set clock: ", "got 'x'", "kvsim schema"),
    (
        None,
        ("--set", "memory.kind=\x1b[31m"),
        "--set memory.kind: ",
        "is not valid YAML",
        "control",
    ),
    (None, ("--out", "."), ".: ", "exists already", "--out"),
    (None, ("--out", "small.yaml/x"), "small.yaml/x: ", "cannot write", "--out"),
]


@pytest.mark.parametrize(("text", "arguments", "place", "problem", "fix"), MALFORMED)
def test_bad_input_ends_with_status_2_a_message_and_nothing_written(
    kvsim: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    arguments: tuple[str, ...],
    place: str,
    problem: str,
    fix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path, SCENARIO if text is None else text)
    before = sorted(tmp_path.rglob("*"))
    out = () if "--out" in arguments else ("--out", "run")
    outcome = kvsim("run", "small.yaml", "--json", *out, *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    message, way_out = outcome.err.splitlines()
    assert message.startswith(f"kvsim: {place}")
    assert problem in message
    assert way_out.startswith("  Fix: ")
    assert fix in way_out
    assert "Traceback" not in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n0,4,x\n", "trace.csv:2: "),
        ("arrival_s,prompt_tokens,output_tokens\n0,-4,3\n", "trace.csv:2: "),
        ("a,b,c\n0,4,3\n", "no known format"),
        ("", "trace.csv"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git-LFS pointer"),
    ],
)
def test_a_bad_trace_ends_with_status_2_its_place_and_nothing_written(
    kvsim: Command, tmp_path: Path, content: str, problem: str
) -> None:
    path = write_small(tmp_path, trace=content)
    before = sorted(tmp_path.rglob("*"))
    outcome = kvsim("run", str(path), "--out", str(tmp_path / "run"))
    assert (outcome.status, outcome.out) == (2, "")
    assert problem in outcome.err
    assert "Traceback" not in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "no-such-scenario"), "Shipped: azure-code"),
        (("run", "missing.yaml"), "there is no such scenario file"),
        (("run", "."), "Is a directory"),
        (("run", "/dev/zero.yaml"), "there is no such scenario file"),
        (("run",), "Missing argument"),
        (("run", "quickstart", "--sett", "a=1"), "No such option"),
        (("fly",), "No such command"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(
    kvsim: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = kvsim(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_messages_hold_no_control_characters(kvsim: Command, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred.yaml"
    assert "\x1b" not in kvsim("run", str(path)).err
    assert "\\x1b[31mred.yaml" in kvsim("run", str(path)).err


def test_an_interrupt_ends_with_status_130_and_leaves_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    # A background job may have been started with the signal ignored.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " from kvsim.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "run", "azure-conv"]
    environment = {key: value for key, value in os.environ.items() if key != "KVSIM_TRACES"}
    process = subprocess.Popen(
        [*command, "--out", str(work / "run"), "--set", "workload.rate_scale=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    deadline = time.monotonic() + 60
    while not list(work.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # numpy.random, imported first thing, may swallow the signal
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(work.iterdir()) == []
