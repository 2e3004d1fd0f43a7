from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.dashboard import uploads
from kvsim.core.group_memory import group_blocks
from kvsim.report.block_sizes import block_size_curve
from kvsim.workload import demand_of, preset
from tests.dashboard.conftest import Open
from tests.dashboard.test_traces import metrics, mooncake, texts


def frame(app: Any, column: str) -> Any:
    (found,) = (one.value for one in app.dataframe if column in one.value.columns)
    return found


def test_the_waste_of_a_block_size_is_the_closed_form_of_the_lengths(open_page: Open) -> None:
    app = open_page("lab", like="azure-code-2023", n="300", tseed="2", bsize="64")
    demand = demand_of(preset("azure-code-2023", num_requests=300, seed=2))
    curve = block_size_curve(demand.prompt_tokens, demand.output_tokens)
    assert curve is not None
    shown = metrics(app)
    assert shown["empty slots per request"] == f"{curve.empty_slots[63]:.2f}"
    assert shown["blocks per request"] == f"{curve.blocks[63]:,.1f}"
    share = curve.empty_slots[63] / (64 * curve.blocks[63])
    assert shown["share of its slots"] == f"{share:.2%}"


def test_rounding_says_in_which_chunks_sharing_was_recorded(open_page: Open, data: Path) -> None:
    upload = uploads.keep(data / "uploads", "trace", "m.jsonl", mooncake()).upload_id
    app = open_page("lab", **{"from": "upload", "upload": upload})
    assert "in chunks of 512 tokens" in texts(app)


def test_without_a_measured_file_the_page_says_that_none_is_shipped(open_page: Open) -> None:
    app = open_page("lab", n="20")
    assert "kvsim ships no measured profile of block sizes" in texts(app)
    assert any("kvsim calibrate" in one.value for one in app.code)


def bench(data: Path, content: bytes) -> str:
    return uploads.keep(data / "uploads", "bench", "decode.jsonl", content).upload_id


def test_measured_block_sizes_are_shown(open_page: Open, data: Path) -> None:
    row = {"kind": "decode", "batch": 8, "context": 100, "block_size": 16, "share": 0.875}
    app = open_page("lab", n="20", speeds=bench(data, json.dumps(row).encode()))
    shown = frame(app, "relative speed")
    assert shown.to_numpy().tolist() == [["8 x 100 tokens", "16", "87.5%"]]
    assert "ships no measured profile" not in texts(app)


def test_a_file_that_was_not_measured_is_an_error_in_place(open_page: Open, data: Path) -> None:
    app = open_page("lab", n="20", speeds=bench(data, b"{}"))
    assert "holds no measured block size" in texts(app)
    assert metrics(app)["mean KV length (tokens)"]


@pytest.mark.parametrize(("block", "copies"), [("16", 3), ("8", 0)])
def test_samples_hold_what_the_closed_form_says(open_page: Open, block: str, copies: int) -> None:
    link = {"part": "sharing", "width": "4", "ptokens": "200", "otokens": "64", "bsize": block}
    shown = metrics(open_page("lab", **link))
    physical = group_blocks(200, 63, 4, int(block))
    assert shown["blocks with sharing"] == shown["formula"] == str(physical)
    assert shown["blocks without sharing"] == str(4 * -(-263 // int(block)))
    assert shown["copies on write"] == str(copies)


def test_formula_and_simulation_stand_side_by_side_for_one_to_eight_beams(open_page: Open) -> None:
    link = {"part": "sharing", "share": "beams", "ancestry": "independent", "otokens": "20"}
    shown = frame(open_page("lab", **link), "physical: formula")
    assert shown["beams (k)"].tolist() == [str(k) for k in range(1, 9)]
    assert shown["physical: formula"].tolist() == shown["physical: simulated"].tolist()
    assert shown["copies: formula"].tolist() == shown["copies: simulated"].tolist()


def test_neutral_beams_are_averaged_over_the_groups_that_are_asked_for(open_page: Open) -> None:
    app = open_page("lab", part="sharing", share="beams", otokens="12", groups="3")
    assert "mean of 3 simulated groups" in texts(app)


def test_requests_with_one_prefix_save_its_whole_blocks(open_page: Open) -> None:
    link = {"part": "sharing", "share": "prefix", "width": "5", "ptokens": "100", "otokens": "10"}
    shown = metrics(open_page("lab", **link))
    saved = int(shown["blocks without sharing"]) - int(shown["blocks with sharing"])
    assert saved == 4 * (100 // 16)


def test_values_out_of_range_in_a_link_do_not_stop_the_page(open_page: Open) -> None:
    app = open_page("lab", part="sharing", width="99", ptokens="-1", bsize="17", share="trees")
    assert metrics(app)["blocks with sharing"]
