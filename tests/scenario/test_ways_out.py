"""Fixes name settings of a scenario, never arguments of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.scenario import load_scenario, run_scenario
from tests.scenario.small import SCENARIO, write_small

ON_GPU = """\
version: 1
model: {model}
hardware: {{gpu: {gpu}, count: {count}}}
engine: {{gpu_memory_utilization: {share}, max_model_len: 512}}
workload: {{preset: azure-conv-2023, num_requests: 5}}
"""


@pytest.mark.parametrize(
    ("model", "gpu", "count", "share", "where", "fix"),
    [
        ("llama-3-70b", "h100", 1, 0.9, 3, "Set hardware.count to 4, or hardware.gpu to one with"),
        ("llama-3-70b", "t4", 1, 0.9, 3, "Set hardware.gpu to one with"),
        ("llama-3-8b", "h100", 1, 0.1, 3, "Set engine.gpu_memory_utilization to 0.9 or hardware."),
        ("llama-3-8b", "h100", 16, 0.9, 3, "Known sizes: 1, 2, 4, 8"),
        ("llama-3-8b", "h100", 3, 0.9, 3, "Use a divisor or a multiple of"),
    ],
)
def test_a_server_without_kv_memory_is_answered_with_settings_that_help(
    tmp_path: Path, model: str, gpu: str, count: int, share: float, where: int, fix: str
) -> None:
    text = ON_GPU.format(model=model, gpu=gpu, count=count, share=share)
    with pytest.raises(InputError) as caught:
        load_scenario(str(write_small(tmp_path, text)))
    assert str(caught.value.where).endswith(f":{where}")
    assert str(caught.value.fix).startswith(fix)


def test_a_bad_row_is_answered_with_the_setting_that_drops_it(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, trace="arrival_s,prompt_tokens,output_tokens\n0,4,x\n1,4,3\n"))
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(path))
    assert str(caught.value.fix).endswith("with --set workload.on_bad_row=drop")
    dropped = load_scenario(path, ["workload.on_bad_row=drop"])
    assert run_scenario(dropped).summary["workload"]["rows"]["kept"] == 1


def test_a_bad_row_of_a_list_of_lengths_can_only_be_corrected(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        "{path: trace.csv}",
        "{lengths: {path: trace.csv}, arrivals: {kind: all_at_once}, num_requests: 2}",
    )
    path = str(write_small(tmp_path, text, trace="prompt_tokens,output_tokens\n4,x\n"))
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(path))
    assert caught.value.fix == "Correct the row"
