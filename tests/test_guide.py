"""The commands of docs/guide.md, run one after the other."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kvsim.report.export import EXPORTS
from kvsim.report.export_openmetrics import HELP
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]

GUIDE = (Path(__file__).resolve().parents[1] / "docs" / "guide.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]


def test_every_command_of_the_guide_does_what_it_says(
    kvsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (scenario,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    Path("chat.yaml").write_text(scenario)
    for line in COMMANDS:
        program, *arguments = shlex.split(line, comments=True)
        outcome = kvsim(*arguments)
        assert program == "kvsim"
        assert outcome.status == (1 if "# exits with 1" in line else 0), (line, outcome.err)
        assert outcome.out, line
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    for name in re.findall(r"^\| `(?:variants/<name>/)?([a-z.]+)`", GUIDE, re.MULTILINE):
        assert {f"runs/base/{name}", f"runs/base/variants/paged/{name}"} & written, name
    outputs = ["seeds.html", "metrics.txt", "trace.json", "paged.json", "summary.parquet"]
    assert {*outputs, "runs/base/report.html", "tables/summary.csv"} <= written
    assert "runs/seeds/variants/paged/seed-4/requests.parquet" in written
    assert json.loads(Path("paged.json").read_text())["kvsim_variant"] == "paged"


def test_the_guide_shows_every_format_and_every_metric() -> None:
    for kind in EXPORTS:
        assert any(f"--format {kind} " in line for line in COMMANDS), kind
    named = set(re.findall(r"`vllm:(\w+)`", GUIDE))
    counters = {"num_preemptions", "prompt_tokens", "generation_tokens", "request_success"}
    assert named == {f"{name}_total" if name in counters else name for name in HELP}
