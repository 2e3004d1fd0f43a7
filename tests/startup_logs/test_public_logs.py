"""Rows of public start-up logs, written in their release's wordings and read back exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.startup_logs import read_startup_log
from tests.startup_logs.render import REFUSED_OOM, Row, render

ROWS: list[Row] = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "memory_logs.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
NOT_READ = {"lmdeploy", "tgi"}
READ = [row for row in ROWS if row["server"] not in NOT_READ]
FIGURES = (
    "gpu_mem_gib_reported",
    "weights_gib",
    "non_torch_gib",
    "activation_peak_gib",
    "cudagraph_gib",
    "cudagraph_estimate_gib",
    "available_kv_gib",
    "kv_size_gib",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "kv_tokens",
    "max_concurrency",
    "needed_gib_one_request",
    "estimated_max_len",
)
SETTINGS = {
    "model": "model",
    "quantization": "quantization",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enforce_eager": "enforce_eager",
}


def test_every_row_but_those_of_two_other_servers_is_read() -> None:
    assert len(READ) == 103
    assert len(ROWS) - len(READ) == len(NOT_READ)


@pytest.mark.parametrize("row", READ, ids=lambda row: row["id"])
def test_a_public_log_is_read_back_exactly(row: Row) -> None:
    lines, printed = render(row)
    log = read_startup_log(lines)
    assert log.server == row["server"]
    assert log.engine == row.get("engine")
    for name, value in printed.items():
        found = log.figures[name]
        if found.chosen.source.startswith("peak_torch_memory"):
            assert abs(found.value - value) <= found.rounding + 0.005  # a difference of two figures
        else:
            assert found.value == value, name
        assert found.chosen.source.split(" less ")[0] in lines[found.line - 1]
    if row.get("error_class") not in (None, REFUSED_OOM):
        assert log.refusal is not None
        assert log.refusal.kind == row["error_class"]
        assert log.refusal.numbers.keys() <= printed.keys()
    elif row.get("error_class") == REFUSED_OOM:
        assert log.refusal is not None
        assert log.refusal.kind == REFUSED_OOM


@pytest.mark.parametrize("row", READ, ids=lambda row: row["id"])
def test_only_figures_of_a_row_that_its_release_does_not_print_stay_out(row: Row) -> None:
    """V0 prints blocks, not tokens, and llama.cpp's oldest releases print no cells."""
    _, printed = render(row)
    left_out = {name for name in FIGURES if name in row} - printed.keys()
    allowed = (
        {"kv_tokens"}
        if row.get("engine") == "v0" or row.get("max_model_len") == 512
        else {"gpu_mem_gib_reported"}
    )
    assert left_out <= allowed


@pytest.mark.parametrize(
    "row", [r for r in READ if r["server"] == "vllm"], ids=lambda row: row["id"]
)
def test_the_settings_of_a_public_vllm_log_are_read(row: Row) -> None:
    log = read_startup_log(render(row)[0])
    for name, column in SETTINGS.items():
        if column in row:
            assert log.settings[name].value == row[column], name
            assert log.settings[name].rounding == 0.0, name


def test_the_smallest_relative_error_of_a_figure_is_what_its_decimals_say() -> None:
    """Two decimals of 14.99 GiB say +-0.005 GiB; the loader's line says +-0.00005 GiB."""
    row = next(row for row in READ if row["id"] == "C001")
    weights = read_startup_log(render(row)[0]).figures["weights_gib"]
    assert (weights.value, weights.decimals, weights.rounding) == (14.9888, 4, 0.00005)
