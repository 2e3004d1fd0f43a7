"""What no recording of the real scheduler covers runs, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.scenario import load_scenario, run_scenario
from tests.scenario.chats import write_chats

LATENT = (
    "deepseek-v3 keeps latent KV, which is scheduled as one group of full-attention layers: not"
    " proven against the real scheduler"
)
PRIORITIES = (
    "priorities together with drafts of a draft model: not proven against the real scheduler"
)


class _Notebook:
    """Remembers what a run told its watcher."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, variant: str, requests: int) -> None:
        pass

    def advance(self, requests: int) -> None:
        pass


def _run(path: str, *options: str, out: Path | None = None) -> tuple[dict[str, Any], list[str]]:
    notebook = _Notebook()
    scenario = load_scenario(path, options)
    summary = run_scenario(scenario, out=out, watcher=notebook, workers=1).summary
    return summary["variants"], notebook.notes


@pytest.mark.parametrize("seeds", ["seeds=[0]", "seeds=[0, 1]"])
def test_the_note_is_told_and_kept_in_the_summary(tmp_path: Path, seeds: str) -> None:
    out = tmp_path / "run"
    options = ["model=deepseek-v3", "compare={small: {model: llama-3-8b}}", seeds]
    variants, told = _run(write_chats(tmp_path), *options, out=out)
    assert told == [f"paged: {LATENT}"]
    written = json.loads((out / "summary.json").read_text())["variants"]
    for entries in (variants, written):
        assert entries["paged"]["setup"]["notes"] == [LATENT]
        assert entries["small"]["setup"]["notes"] == []


def test_what_is_true_of_every_variant_is_told_once(tmp_path: Path) -> None:
    drafts = "{method: draft_model, num_speculative_tokens: 2, acceptance_rate: 0.5,"
    options = [
        f"engine.speculative_config={drafts} draft_s_per_token: 0.001}}",
        "engine.scheduling_policy=priority",
        "compare={small: {engine: {max_num_seqs: 4}}}",
    ]
    variants, told = _run(write_chats(tmp_path), *options)
    assert told == [f"every variant: {PRIORITIES}"]
    assert variants["small"]["setup"]["notes"] == [PRIORITIES]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["engine.scheduling_policy=priority"],
        ["engine.async_scheduling=false", "engine.scheduling_policy=priority"],
        [
            "engine.scheduling_policy=priority",
            "engine.speculative_config={method: ngram, num_speculative_tokens: 2,"
            " acceptance_rate: 0.5}",
        ],
        ["model=deepseek-v3", "memory.kind=contiguous"],
    ],
)
def test_what_recordings_cover_and_what_is_no_real_scheduler_needs_no_note(
    tmp_path: Path, options: list[str]
) -> None:
    variants, told = _run(write_chats(tmp_path), *options)
    assert told == []
    assert [entry["setup"]["notes"] for entry in variants.values()] == [[]]
