from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvsim.scenario import load_scenario, run_scenario, shipped_scenarios
from tests.scenario.small import write_small
from tools.make_glossary import GLOSSARY, with_table

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def test_the_glossarys_table_of_figures_is_the_reports_own() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    assert with_table(text) == text


def _keys(value: Any) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(_keys(inner) for inner in value.values()))


def test_every_key_of_a_summary_is_in_the_glossary(tmp_path: Path) -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n0,4,3\n"
    scenario = load_scenario(str(write_small(tmp_path, trace=trace)))
    summary = json.loads(json.dumps(run_scenario(scenario).summary))
    entry = summary["variants"]["paged"]
    words = set(re.findall(r"\w+", GLOSSARY.read_text(encoding="utf-8")))
    known = {"mean", "p50", "p90", "p99", "min", "max", "detail", "requests", "throughput"}
    assert _keys(entry) - words - known == set()
    assert _keys(summary["workload"]) - words == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target


def test_every_command_of_the_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"kvsim run ([\w/.-]+)", text):
        assert name in shipped_scenarios() or (ROOT / name).is_file(), name
