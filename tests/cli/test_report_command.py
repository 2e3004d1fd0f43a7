from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.report.reports import small_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("cli"))


def test_a_report_is_written_into_the_run_folder(kvsim: Command, run_dir: Path) -> None:
    outcome = kvsim("report", str(run_dir))
    assert outcome.status == 0
    assert outcome.out.startswith("paged runs ")
    assert outcome.err == f"report: {run_dir / 'report.html'}\n"
    assert (run_dir / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_json_names_the_page_the_sentence_and_what_binds(
    kvsim: Command, run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    outcome = kvsim("report", str(run_dir), "--out", str(out), "--json")
    shown = json.loads(outcome.out)
    assert shown["report"] == str(out)
    assert shown["bytes"] == out.stat().st_size
    assert shown["summary"].startswith("paged runs ")
    assert shown["binds"]["contiguous-max"] == "memory"
    assert shown["compute_would_allow"]["paged"] == 40


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_what_is_no_run_folder_is_refused(kvsim: Command, tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_text("{}")
    if what == "empty":
        path.mkdir()
    outcome = kvsim("report", str(path))
    assert outcome.status == 2
    assert "Fix: " in outcome.err
    assert "Traceback" not in outcome.err


def test_other_commands_do_not_pay_for_the_report() -> None:
    code = (
        "import sys; sys.argv = ['kvsim', 'models']\n"
        "from kvsim.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('plotly', 'jinja2', 'pyarrow')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
