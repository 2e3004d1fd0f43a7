"""Start-up logs against themselves and the model's arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import get_model
from kvsim.planning.audit import Audit, audit
from kvsim.startup_logs import read_startup_log
from tests.cli.conftest import Command, kvsim
from tests.planning import logs
from tests.startup_logs.render import render

__all__ = ["kvsim"]

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "startup_logs" / "data" / "memory_logs.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
SHAPES = {
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "Qwen3-8B": "qwen3-8b",
    "gemma-3-27b-it": "gemma-3-27b",
}


def audited(row: dict[str, Any]) -> Audit:
    lines, _ = render(row)
    name = SHAPES.get(row["model"])
    return audit(read_startup_log(lines), get_model(name) if name else None)


def row(log_id: str) -> dict[str, Any]:
    return next(one for one in ROWS if one["id"] == log_id)


@pytest.mark.parametrize("log_id", ["C001", "C002", "C006", "C007", "C020", "C062"])
def test_a_consistent_log_of_a_known_model_agrees_with_its_shapes(log_id: str) -> None:
    """Weights, blocks and tokens: every check that the log allows."""
    found = audited(row(log_id))
    assert found.checks
    disagreeing = [check.what for check in found.checks if not check.agrees]
    assert disagreeing == []


_ROUNDED = "the share in the row is a rounded one (0.696 prints as 0.70), rendered as an exact one"
EXCEPTIONS = {
    ("C008", "available_kv_gib"): _ROUNDED,
    ("C028", "available_kv_gib"): _ROUNDED,
    ("C091", "weights_gib"): "the vision tower, which the catalogue's text model does not have",
}


def test_consistent_public_logs_agree_with_every_check_and_inconsistent_ones_do_not() -> None:
    """The rows were judged by others; exceptions have a cause."""
    judged = {one["id"]: one["status"] for one in logs.ROWS}
    checks = {one["id"]: audited(one).checks for one in ROWS if one["server"] == "vllm"}
    agree = sum(check.agrees for found in checks.values() for check in found)
    differ = {
        (log_id, check.what)
        for log_id, found in checks.items()
        for check in found
        if not check.agrees
    }
    consistent = {one for one in differ if judged[one[0]] == "consistent"}
    assert consistent == EXCEPTIONS.keys()
    assert {one[0] for one in differ - consistent} == {"C040", "C041", "C102", "C103", "C148"}
    assert agree >= 90


def test_a_wrong_model_or_a_changed_figure_does_not_agree() -> None:
    """The blocks of a model with twice the bytes, and a figure with another digit."""
    lines, _ = render(row("C001"))
    wrong = audit(read_startup_log(lines), get_model("qwen3-8b"))
    assert {check.what for check in wrong.checks if not check.agrees} >= {"num_gpu_blocks"}
    text = "\n".join(lines).replace("1952", "1852").splitlines()
    changed = audit(read_startup_log(text), get_model("llama-3.1-8b"))
    assert {check.what for check in changed.checks if not check.agrees} >= {"num_gpu_blocks"}


def test_refusals_are_recomputed() -> None:
    """C158: 40,960 tokens of Qwen3-8B need 5.62 GiB."""
    (needed,) = [
        check for check in audited(row("C158")).checks if check.what == "needed_gib_one_request"
    ]
    assert needed.agrees
    assert needed.printed == 5.62


def test_logs_of_other_servers_are_checked_by_their_own_rules() -> None:
    """Without vLLM's release; a note says what their fraction is (test_audit_servers.py)."""
    one = next(one for one in ROWS if one["server"] == "llama.cpp")
    found = audited(one)
    assert found.release is None
    assert [check.what for check in found.checks] == ["kv_tokens"]
    assert "llama.cpp has no fraction" in found.notes[0]


def test_the_command_shows_figures_lines_and_checks(kvsim: Command, tmp_path: Path) -> None:
    """The model is found by its name in the log; another one may be named."""
    path = tmp_path / "server.log"
    lines, _ = render(row("C001"))
    path.write_text("\n".join(lines))
    shown = kvsim("fit", "--from-log", str(path))
    assert shown.status == 0
    assert "num_gpu_blocks" in shown.out
    assert "agrees with" in shown.out
    assert "DOES NOT AGREE" not in shown.out
    answer = json.loads(kvsim("fit", "--from-log", str(path), "--json").out)
    assert answer["model"] == "llama-3.1-8b"
    assert answer["figures"]["available_kv_gib"]["value"] == 3.81
    assert all(check["agrees"] for check in answer["checks"])
    other = json.loads(kvsim("fit", "qwen3-8b", "--from-log", str(path), "--json").out)
    assert not all(check["agrees"] for check in other["checks"])


@pytest.mark.parametrize("text", ["", "nothing to see\n" * 100, "\x1b[31m\x00\x00" * 50])
def test_a_file_without_figures_is_refused(kvsim: Command, tmp_path: Path, text: str) -> None:
    """With status 2 and no escape codes."""
    path = tmp_path / "server.log"
    path.write_text(text)
    found = kvsim("fit", "--from-log", str(path))
    assert found.status == 2
    assert "\x1b" not in found.err
    assert "Traceback" not in found.err


def test_either_a_model_and_a_gpu_or_a_log_are_needed(kvsim: Command) -> None:
    """The way out names both."""
    for arguments in (["fit"], ["fit", "qwen3-8b"]):
        found = kvsim(*arguments)
        assert found.status == 2
        assert "--from-log" in found.err
