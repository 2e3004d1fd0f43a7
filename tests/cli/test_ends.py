"""How the command ends when its output, its input or its time is taken away."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.scenario.small import SCENARIO, write_small

KVSIM = [sys.executable, "-c", "from kvsim.cli import main; main()"]


def test_a_name_longer_than_any_file_is_no_scenario(kvsim: Command) -> None:
    outcome = kvsim("run", "x" * 5000)
    assert outcome.status == 2
    assert "no scenario of this name" in outcome.err
    assert len(outcome.err) < 2000
    outcome = kvsim("run", "x" * 5000 + ".yaml")
    assert outcome.status == 2
    assert "File name too long" in outcome.err


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_a_full_disk_under_stdout_ends_with_status_2_and_a_message(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = str(write_small(tmp_path))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*KVSIM, "run", path, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "kvsim: stdout: cannot be written: No space left on device.",
        "  Fix: Send it to a disk with room",
    ]


@pytest.mark.parametrize("command", [["schema"], ["models"], ["run", "small.yaml", "--json"]])
def test_a_reader_that_has_left_ends_the_command_silently(
    tmp_path: Path, command: list[str]
) -> None:
    write_small(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*KVSIM, *command], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", [["--help"], ["models"], ["run", "small.yaml"]])
def test_a_closed_stdout_ends_with_status_2_and_a_message(
    tmp_path: Path, command: list[str]
) -> None:
    write_small(tmp_path)
    line = shlex.join([*KVSIM, *command]) + " >&-"
    done = subprocess.run(
        ["sh", "-c", line], stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "kvsim: stdout: is closed.")


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_without_stderr_the_status_says_how_it_ended(tmp_path: Path, stderr: str) -> None:
    write_small(tmp_path)
    for path, status in (("small.yaml", 0), ("missing.yaml", 2)):
        line = shlex.join([*KVSIM, "run", path]) + f" {stderr} >/dev/null"
        assert subprocess.run(["sh", "-c", line], cwd=tmp_path, check=False).returncode == status


@pytest.mark.parametrize("given", ['"a\\0b"', "loop"])
def test_a_trace_path_that_leads_nowhere_is_refused_with_its_line(
    kvsim: Command, tmp_path: Path, given: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = write_small(tmp_path, SCENARIO.replace("path: trace.csv", f"path: {given}"))
    outcome = kvsim("run", str(path))
    assert outcome.status == 2
    assert "small.yaml:8: workload.path leads nowhere" in outcome.err


@pytest.mark.parametrize("seeds", ["[0]", "[0, 1]"])
def test_sigterm_ends_with_status_143_and_leaves_nothing(tmp_path: Path, seeds: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = [*KVSIM, "run", "quickstart", "--out", str(work / "new" / "run")]
    process = subprocess.Popen(
        [*command, "--set", "workload.num_requests=200000", "--set", f"seeds={seeds}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(work.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in err
    assert list(work.iterdir()) == []


def test_a_bad_trace_leaves_no_folder_that_was_made_for_the_run(
    kvsim: Command, tmp_path: Path
) -> None:
    path = str(write_small(tmp_path, trace="a,b\n1,2\n"))
    (tmp_path / "kept").mkdir()
    for out in ("p1/p2/p3", "kept/p1/p2"):
        assert kvsim("run", path, "--out", str(tmp_path / out)).status == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "kept",
        "small.yaml",
        "trace.csv",
    ]
    assert list((tmp_path / "kept").iterdir()) == []


def test_folders_above_a_run_that_succeeded_stay(kvsim: Command, tmp_path: Path) -> None:
    out = tmp_path / "p1" / "p2"
    assert kvsim("run", str(write_small(tmp_path)), "--out", str(out)).status == 0
    assert (out / "summary.json").is_file()


def test_removing_is_advised_for_a_run_folder_only(kvsim: Command, tmp_path: Path) -> None:
    path, run = str(write_small(tmp_path)), str(tmp_path / "run")
    assert kvsim("run", path, "--out", run).status == 0
    assert "remove this run" in kvsim("run", path, "--out", run).err
    for other in ("/", str(tmp_path)):
        outcome = kvsim("run", path, "--out", other)
        assert outcome.status == 2
        assert "exists already" in outcome.err
        assert "remove" not in outcome.err


def test_a_named_pipe_is_refused_and_not_waited_for(kvsim: Command, tmp_path: Path) -> None:
    pipe = tmp_path / "fifo.yaml"
    os.mkfifo(pipe)
    outcome = kvsim("run", str(pipe))
    assert outcome.status == 2
    assert "is a named pipe" in outcome.err


def test_a_scenario_can_come_through_stdin(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        "{path: trace.csv}",
        "{lengths: {preset: sharegpt}, arrivals: {kind: all_at_once}, num_requests: 2}",
    )
    done = subprocess.run(
        [*KVSIM, "run", "/dev/stdin", "--json"],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, done.stderr)
    assert b'"scenario": "stdin"' in done.stdout
