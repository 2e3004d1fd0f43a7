from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_backend.bench.bench import Bench, OutOfTime, Skipped
from gpu_backend.bench.budget import Budget
from gpu_backend.bench.results import Results, Row, read_rows
from gpu_backend.bench.runner import Section, run_sections
from tests.gpu_backend_bench.benches import tiny_bench


def two_rows(bench: Bench) -> Iterator[Row]:
    yield {"n": 1}
    yield {"n": 2}


def fails(bench: Bench) -> Iterator[Row]:
    yield {"n": 1}
    raise RuntimeError("no such kernel")


def is_skipped(bench: Bench) -> Iterator[Row]:
    raise Skipped("nothing here")
    yield {}


def is_wrong(bench: Bench) -> Iterator[Row]:
    yield {"case": "a", "correct": True}
    yield {"case": "b", "correct": False}


def run(tmp_path: Path, bench: Bench, *measures: Any) -> tuple[int, dict[str, Row]]:
    sections = [Section(measure.__name__, 1, measure) for measure in measures]
    budget = Budget(60, {section.name: section.weight for section in sections})
    status = run_sections(sections, bench, budget, Results(tmp_path / "out"))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    return status, summary["sections"]


def test_rows_are_saved_and_counted(tmp_path: Path) -> None:
    status, sections = run(tmp_path, tiny_bench(meaningless=False), two_rows)
    assert status == 0
    assert sections["two_rows"].pop("seconds") >= 0
    assert sections == {"two_rows": {"status": "done", "rows": 2, "wrong": 0}}
    assert read_rows(tmp_path / "out", "two_rows") == [{"n": 1}, {"n": 2}]


def test_a_failed_section_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    status, sections = run(tmp_path, tiny_bench(), fails, two_rows)
    assert status == 1
    failed = sections["fails"]
    assert (failed["status"], failed["error"], failed["why"], failed["rows"]) == (
        "failed", "RuntimeError", "no such kernel", 1,
    )  # fmt: skip
    assert failed["traceback"][-1].endswith(" fails")
    assert sections["two_rows"]["status"] == "done"
    assert len(read_rows(tmp_path / "out", "fails")) == 1


def test_a_skipped_section_is_no_fault(tmp_path: Path) -> None:
    status, sections = run(tmp_path, tiny_bench(), is_skipped)
    assert status == 0
    assert sections["is_skipped"]["status"] == "skipped"
    assert sections["is_skipped"]["why"] == "nothing here"


def test_a_wrong_result_makes_the_run_fail(tmp_path: Path) -> None:
    status, sections = run(tmp_path, tiny_bench(), is_wrong, two_rows)
    assert status == 1
    assert sections["is_wrong"]["status"] == "done"
    assert sections["is_wrong"]["wrong"] == 1


def test_a_section_stops_between_points_when_its_time_is_up(tmp_path: Path) -> None:
    left = iter([1.0, 1.0, 0.0])

    def points(bench: Bench) -> Iterator[Row]:
        for n in range(9):
            bench.check_time()
            yield {"n": n}

    status, sections = run(tmp_path, tiny_bench(seconds_left=lambda: next(left)), points)
    assert status == 0
    assert sections["points"]["status"] == "partial"
    assert sections["points"]["rows"] == 2


def test_a_section_that_ends_with_its_time_is_done(tmp_path: Path) -> None:
    bench = tiny_bench(seconds_left=lambda: 0.0)
    with pytest.raises(OutOfTime):
        bench.check_time()
    assert run(tmp_path, bench, two_rows)[1]["two_rows"]["status"] == "done"


def test_times_that_mean_nothing_say_so(tmp_path: Path) -> None:
    budget = Budget(60, {"a": 1, "b": 1})
    sections = [Section("a", 1, two_rows), Section("b", 1, two_rows, timed=False)]
    run_sections(sections, tiny_bench(), budget, Results(tmp_path / "out"))
    assert all(row["meaningless"] for row in read_rows(tmp_path / "out", "a"))
    assert read_rows(tmp_path / "out", "b")[0] == {"n": 1}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["headline"]["meaningless"]


KILLED = """
import os, signal, sys
from pathlib import Path
from gpu_backend.bench.budget import Budget
from gpu_backend.bench.results import Results
from gpu_backend.bench.runner import Section, run_sections
from tests.gpu_backend_bench.benches import tiny_bench

def first(bench):
    yield {"n": 0}

def endless(bench):
    for n in range(10**9):
        if n == 300:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"n": n, "text": "x" * 1000}

sections = [Section("first", 1, first), Section("endless", 1, endless), Section("never", 1, first)]
budget = Budget(60, {section.name: 1 for section in sections})
run_sections(sections, tiny_bench(), budget, Results(Path(sys.argv[1])))
"""


def test_a_killed_run_leaves_whole_lines_and_says_where_it_was(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "out")],
        cwd=root, timeout=100, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    rows = read_rows(tmp_path / "out", "endless")
    assert [row["n"] for row in rows] == list(range(300))
    sections = json.loads((tmp_path / "out" / "summary.json").read_text())["sections"]
    assert {name: entry["status"] for name, entry in sections.items()} == {
        "first": "done", "endless": "running", "never": "not begun",
    }  # fmt: skip
