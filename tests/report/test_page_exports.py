"""The tables that pages of the dashboard offer beside their charts."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow.parquet as pq

from kvsim.planning.log_csv import log_parquet
from kvsim.report.bench_compare import bench_parquet, compare_bench
from kvsim.report.block_sizes import rounding_csv
from kvsim.report.kernel_sizes import SizeCurve, kernels_csv
from kvsim.report.moments import MomentRow, moments_csv
from kvsim.workload.prefix import Rounding
from tests.planning.test_beside_log import C001, audited, beside
from tests.report.test_bench import result


def lines(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def rows(content: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return found


def test_the_events_have_a_line_each() -> None:
    found = lines(moments_csv([MomentRow(1.5, "=evil", 3, 2, 1, 12, 4, 5)]))
    assert found == [
        {
            "moment": "1",
            "time_s": "1.5",
            "why": "'=evil",
            "requests": "3",
            "waiting": "2",
            "preempted": "1",
            "free_slots": "12",
            "largest_hole_slots": "4",
            "external_slots": "5",
        }
    ]


def test_rounding_has_tokens_and_shares_of_every_block_size() -> None:
    one, other = lines(rounding_csv([Rounding(1, 20, 0, 0, 2), Rounding(16, 0, 20, 4, 2)], 80))
    assert (one["block_size_tokens"], one["hit_tokens"], one["rounding_share"]) == (
        "1",
        "20",
        "0.0",
    )
    assert (other["rounding_tokens"], other["rounding_share"]) == ("20", "0.25")
    assert (other["last_token_tokens"], other["lost_per_repeat_tokens"]) == ("4", "10.0")


def test_kernels_have_a_line_for_each_curve_and_size() -> None:
    found = lines(kernels_csv([SizeCurve("8 x 100 tokens", (16, 64), (0.85, 0.9), 8000.0)]))
    assert [tuple(one.values()) for one in found] == [
        ("8 x 100 tokens", "16", "0.85", "8000.0"),
        ("8 x 100 tokens", "64", "0.9", "8000.0"),
    ]


def test_a_benchmark_beside_a_run_is_a_table_of_numbers() -> None:
    found = rows(
        bench_parquet(compare_bench(result(), result(mean_ttft_ms=60.0), relative_error=0.1))
    )
    (ttft,) = (one for one in found if one["name"] == "mean_ttft_ms")
    assert ttft == {
        "part": "figure",
        "name": "mean_ttft_ms",
        "unit": "ms",
        "measured": 50.0,
        "simulated": 60.0,
        "difference": 10.0,
        "error": 0.2,
        "bound": 0.1,
        "inside": False,
    }
    (rate,) = (one for one in found if one["name"] == "request rate")
    assert (rate["measured"], rate["inside"]) == (None, None)


def test_a_log_is_a_table_whose_texts_and_numbers_are_apart() -> None:
    found = rows(log_parquet(audited(C001), beside(C001)))
    (pool,) = (one for one in found if (one["part"], one["name"]) == ("prediction", "kv_pool"))
    assert (pool["printed"], pool["text"], pool["agrees"]) == (3.81, "", True)
    settings = {one["name"]: one for one in found if one["part"] == "setting"}
    assert settings["model"]["printed"] is None
    assert settings["model"]["text"] == audited(C001).log.settings["model"].value
