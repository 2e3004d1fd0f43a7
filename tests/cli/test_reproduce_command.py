"""`kvsim reproduce` on the reproductions that take no time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.papers import FIGURES, Interval
from tests.cli.conftest import Command


def test_a_reproduction_is_printed_with_paper_ours_and_verdict(kvsim: Command) -> None:
    outcome = kvsim("reproduce", "sosp23-table1")
    assert outcome.status == 0
    assert "opt-66b, 4 GPUs" in outcome.out
    assert "3 of 3 judged numbers pass" in outcome.out


def test_json_holds_one_document_and_nothing_else(kvsim: Command) -> None:
    outcome = kvsim("reproduce", "sosp23-rules", "--json", "--workers", "1")
    document = json.loads(outcome.out)
    assert (outcome.status, document["passed"]) == (0, True)
    (figure,) = document["figures"]
    assert figure["name"] == "sosp23-rules"
    assert all(target["passed"] for target in figure["targets"])


def test_markdown_is_the_page(kvsim: Command) -> None:
    outcome = kvsim("reproduce", "sosp23-table1", "--markdown")
    assert outcome.out.startswith("# Published results, reproduced")
    assert "| opt-13b, 1 GPU | thousand slots | 15.7 | READ | 15.7 |" in outcome.out


def test_a_judged_number_that_is_off_ends_with_status_1(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = FIGURES["sosp23-table1"]
    wrong = replace(figure.targets[0], accepted=Interval(16.0, 17.0))
    monkeypatch.setitem(FIGURES, figure.name, replace(figure, targets=(wrong, *figure.targets[1:])))
    outcome = kvsim("reproduce", "sosp23-table1")
    assert outcome.status == 1
    assert "2 of 3 judged numbers pass" in outcome.out
    assert "FAIL sosp23-table1: opt-13b, 1 GPU" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig99",), "'fig99' is no reproduction"),
        (("sosp23-table1", "--json", "--markdown"), "exclude each other"),
        (("sosp23-table1", "--write-docs"), "the pages hold all reproductions"),
        (("--write-docs", "--preset"), "results with the published list"),
    ],
)
def test_a_wrong_request_ends_with_status_2_and_a_way_out(
    kvsim: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = kvsim("reproduce", *arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert "Fix: " in outcome.err
    assert outcome.out == ""


def test_without_the_list_the_preset_is_announced(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    monkeypatch.setitem(FIGURES, "tiny", replace(FIGURES["sosp23-table1"], uses_lengths=True))
    assert "lengths are drawn from the preset" in kvsim("reproduce", "tiny").err
