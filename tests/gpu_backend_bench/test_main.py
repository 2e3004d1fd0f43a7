"""The command line, and the whole run as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_backend import launches
from gpu_backend.bench.__main__ import NAMES, main
from gpu_backend.bench.page import main as page_main
from gpu_backend.bench.results import read_rows

ROOT = Path(__file__).resolve().parents[2]
TRIAL = ["--tiny", "--device", "cpu"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("")
    text = refusal(capsys, *TRIAL, "--out", str(tmp_path))
    assert text == f"gpu_backend.bench: --out: {tmp_path} exists and is not an empty folder\n"
    assert "--out" in refusal(capsys, *TRIAL, "--out", str(tmp_path / "a" / "below"))


def test_a_cpu_takes_a_tiny_run_in_the_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert "--tiny" in refusal(capsys, "--device", "cpu", "--out", str(out))
    monkeypatch.setattr(launches, "interpreted", lambda: False)
    assert "TRITON_INTERPRET=1" in refusal(capsys, *TRIAL, "--out", str(out))
    assert not out.exists()


def test_a_gpu_is_needed_and_no_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    assert "TRITON_INTERPRET is set" in refusal(capsys, "--out", out)
    monkeypatch.setattr(launches, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refusal(capsys, "--out", out)


def test_a_plan_file_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*TRIAL, "--out", str(tmp_path / "out"), "--plan", str(tmp_path / "plan.json")]
    assert "cannot be read" in refusal(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes", "0"],
        ["--minutes", "nan"],
        ["--minutes", "-3"],
        ["--minutes", "inf"],
        ["--minutes", "soon"],
        ["--sections", "decode,decoed"],
        ["--sections", ""],
        ["--device", "tpu"],
        ["--unknown"],
    ],
)
def test_options_are_checked(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*TRIAL, "--out", str(tmp_path / "out"), *arguments])
    assert stop.value.code == 2
    assert not (tmp_path / "out").exists()


def test_a_run_needs_a_folder() -> None:
    with pytest.raises(SystemExit):
        main(TRIAL)


def test_chosen_sections_alone_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([*TRIAL, "--out", str(out), "--sections", "framework,cache_ops"]) == 0
    assert set(json.loads((out / "summary.json").read_text())["sections"]) == {
        "cache_ops", "framework",
    }  # fmt: skip
    assert json.loads((out / "machine.json").read_text())["sections"] == ["framework", "cache_ops"]
    printed = capsys.readouterr().out
    assert printed.index("cache_ops: done") < printed.index("framework: done")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_everything_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("-m", "gpu_backend.bench", "--tiny", "--device", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    status = {name: entry["status"] for name, entry in summary["sections"].items()}
    skipped = {"calibration", "lockstep"}
    assert status == {name: "skipped" if name in skipped else "done" for name in NAMES}
    assert summary["headline"]["wrong_cases"] == []
    assert summary["headline"]["meaningless"] is True
    for name in ("decode", "paging", "peers", "prefill", "cache_ops"):
        rows = read_rows(out, name)
        assert rows
        assert all(row["meaningless"] for row in rows)
    assert read_rows(out, "peers")[0]["status"] == "measured"
    machine = json.loads((out / "machine.json").read_text())
    assert machine["torch"] == torch.__version__
    assert machine["tiny"] is True
    assert page_main([str(out)]) == 2


BARE = """
import sys

OTHERS = {"simpy", "pydantic", "pydantic_core", "plotly", "rich", "typer", "pyarrow", "jinja2",
          "prometheus_client", "ruamel", "numba", "pandas", "streamlit", "ray"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocked())
import importlib, pkgutil
import gpu_backend.bench as bench
for module in pkgutil.iter_modules(bench.__path__):
    importlib.import_module(f"gpu_backend.bench.{module.name}")
import gpu_backend.fragmentation
from gpu_backend.bench.__main__ import main
assert not OTHERS & {name.split(".")[0] for name in sys.modules}
sys.exit(main(["--tiny", "--device", "cpu", "--out", sys.argv[1], "--sections", "framework"]))
"""


def test_a_bare_machine_has_all_it_needs(tmp_path: Path) -> None:
    done = run("-c", BARE, str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
