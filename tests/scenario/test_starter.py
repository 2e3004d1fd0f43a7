"""Scenario files made for some traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.scenario.build_workload import build_workload
from kvsim.scenario.loader import load_scenario
from kvsim.scenario.starter import starter_scenario


def test_the_file_runs_the_traffic_it_was_made_for(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n1,7,8\n")
    text = starter_scenario(
        {"path": "mine.csv", "format": "table"}, model="llama-3-8b", gpu="h100", about="a: b #c"
    )
    (tmp_path / "s.yaml").write_text(text)
    scenario = load_scenario(str(tmp_path / "s.yaml"), confined=True)
    assert scenario.description == "a: b #c"
    assert (scenario.model, scenario.memory.kind) == ("llama-3-8b", "paged")
    requests = list(build_workload(scenario.workload, seed=0).workload)
    assert [(one.prompt_tokens, one.output_tokens) for one in requests] == [(5, 6), (7, 8)]


@pytest.mark.parametrize(
    ("workload", "model", "problem"),
    [
        ({"preset": "nothing"}, "llama-3-8b", "is no known preset"),
        ({"preset": "azure-conv-2023"}, "llama-3-70b", "leaves no KV cache"),
        ({"preset": "azure-conv-2023"}, "no-such-model", "no-such-model"),
    ],
)
def test_what_cannot_run_is_refused(workload: dict[str, str], model: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        starter_scenario(workload, model=model, gpu="a100-40gb")
