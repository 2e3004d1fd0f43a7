"""Figures of a workload: exact values of hand-made requests, and files that read back."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from kvsim.core.request import Request
from kvsim.report.block_sizes import block_size_curve, curve_csv
from kvsim.report.figures.prefix import prefix_figure, rounding_figure
from kvsim.report.figures.traffic import (
    arrivals_figure,
    density_figure,
    gaps_figure,
    interval_text,
    lengths_figure,
    sessions_figure,
)
from kvsim.report.traffic import (
    prefix_csv,
    requests_parquet,
    traffic_csv,
    traffic_figures,
    traffic_of,
    traffic_rows,
    with_arrivals,
)
from kvsim.workload import PairLengths, RowCounts, TraceWorkload, demand_of, preset
from kvsim.workload.demand import Intervals, Sessions
from kvsim.workload.prefix import Rounding
from tests.workload.shared_prompts import Listed

S = 1_000_000_000


def listed(*rows: tuple[float, int, int]) -> Listed:
    """Rows of arrival in s, prompt and output tokens."""
    return Listed([Request(f"r{i}", round(s * S), p, o) for i, (s, p, o) in enumerate(rows)])


def named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    (trace,) = (one for one in figure["data"] if one["name"] == name)
    return dict(trace)


FOUR = listed((0, 10, 1), (1, 20, 2), (1, 40, 4), (4, 80, 8))


def test_plotly_accepts_every_figure_and_json_holds_it() -> None:
    figures = traffic_figures(traffic_of(preset("azure-conv-2023", num_requests=2000)))
    assert set(figures) == {"arrivals", "lengths", "density", "gaps"}
    for figure in figures.values():
        go.Figure(figure)
        json.dumps(figure, allow_nan=False)


def test_arrivals_are_bars_and_tokens_are_rates() -> None:
    found = Intervals(5.0, 10.0, np.array([3, 0]), np.array([50, 0]), np.array([5, 0]))
    figure = arrivals_figure(found)
    assert (named(figure, "requests")["x"], named(figure, "requests")["y"]) == (
        [12.5, 17.5],
        [3, 0],
    )
    assert named(figure, "prompt tokens")["y"] == [10, 0]
    assert named(figure, "output tokens")["y"] == [1, 0]
    assert figure["layout"]["annotations"][0]["text"] == "arrivals per 5 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2e-6, "2 µs"),
        (0.05, "50 ms"),
        (15, "15 s"),
        (300, "5 min"),
        (7200, "2 h"),
        (86400, "1 d"),
    ],
)
def test_a_width_is_told_in_a_unit_that_suits_it(seconds: float, text: str) -> None:
    assert interval_text(seconds) == text


def test_lengths_are_shares_of_the_requests_with_their_percentiles() -> None:
    figure = lengths_figure(demand_of(FOUR))
    prompt = named(figure, "prompt")
    assert (prompt["x"], prompt["y"]) == ([10, 20, 40, 80], [25, 50, 75, 100])
    marks = named(figure, "output: p50, p90, p99")
    assert (marks["x"], marks["y"]) == ([3, 6.8, 7.88], [50, 90, 99])


def test_density_counts_every_request_once() -> None:
    demand = demand_of(preset("azure-conv-2023", num_requests=5000))
    (heat,) = density_figure(demand)["data"]
    assert (len(heat["z"]), len(heat["z"][0])) == (len(heat["y"]) - 1, len(heat["x"]) - 1)
    assert max(len(heat["x"]), len(heat["y"])) <= 49
    counts = [[cell[0] for cell in row] for row in heat["customdata"]]
    assert sum(map(sum, counts)) == 5000
    for row, shades in zip(counts, heat["z"], strict=True):
        for count, shade in zip(row, shades, strict=True):
            assert shade == (None if not count else pytest.approx(np.log10(count), abs=1e-4))


def test_a_cell_of_the_density_says_which_lengths_it_holds() -> None:
    (heat,) = density_figure(demand_of(listed((0, 1, 1), (1, 2, 1), (2, 4, 1))))["data"]
    assert heat["customdata"] == [[[1, "1", "1"], [1, "2", "1"], [0, "3", "1"], [1, "4", "1"]]]


def test_gaps_stand_beside_those_of_the_same_mean() -> None:
    figure = gaps_figure(demand_of(FOUR))
    assert figure is not None
    gaps = named(figure, "gaps, 33.3% of them 0 s")
    assert gaps["y"] == pytest.approx([100 / 3, 200 / 3, 100], rel=1e-5)
    assert gaps["x"][1:] == [1, 3]
    exponential = named(figure, "exponential, same mean")
    mean = 4 / 3
    wanted = [100 * (1 - np.exp(-x / mean)) for x in exponential["x"]]
    assert exponential["y"] == pytest.approx(wanted, rel=1e-4)
    assert gaps_figure(demand_of(listed((1, 2, 3), (1, 2, 3)))) is None


def test_sessions_are_counted_by_their_requests() -> None:
    figure = sessions_figure(Sessions("so", np.array([1, 3, 3]), np.array([0.0, 2.0, 5.0])))
    assert (named(figure, "sessions")["x"], named(figure, "sessions")["y"]) == ([1, 3], [1, 2])
    assert named(figure, "think time")["x"] == [2, 5]
    go.Figure(figure)


def test_figures_of_a_workload_have_units() -> None:
    rows = {row.name: row[1:] for row in traffic_rows(traffic_of(FOUR))}
    assert rows["requests"] == (4, "")
    assert rows["span"] == (4.0, "s")
    assert rows["rate"] == (0.75, "requests/s")
    assert rows["prompt tokens, total"] == (150, "tokens")
    assert rows["prompt tokens per second"] == (37.5, "tokens/s")
    assert rows["output tokens, p50"] == (3.0, "tokens")


def test_lengths_without_arrivals_have_no_rate_and_keep_their_dropped_rows(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("prompt_tokens,output_tokens\n5,6\n7,0\n9,8\n")
    pairs = PairLengths(tmp_path / "l.csv")
    traffic = traffic_of(with_arrivals(pairs, len(pairs.prompt_tokens)), counts=pairs.counts)
    names = {row.name for row in traffic_rows(traffic)}
    assert not {"rate", "span", "prompt tokens per second"} & names
    assert set(traffic_figures(traffic)) == {"lengths", "density"}
    assert traffic.about["rows"]["dropped"] == {"zero_output": 1}
    assert traffic.demand.prompt_tokens.tolist() == [5, 9]


def test_the_csv_holds_the_figures_and_every_interval() -> None:
    table = list(csv.DictReader(io.StringIO(traffic_csv(traffic_of(FOUR)).decode())))
    single = {row["figure"]: row["value"] for row in table if not row["at_s"]}
    assert (single["requests"], single["rate"]) == ("4", "0.75")
    arrivals = [row for row in table if row["figure"] == "requests per interval"]
    assert sum(int(row["value"]) for row in arrivals) == 4
    busy = {float(row["at_s"]): int(row["value"]) for row in arrivals if row["value"] != "0"}
    assert busy == {0.0: 1, 1.0: 2, 4.0: 1}


def test_the_requests_read_back_from_parquet_as_they_were(tmp_path: Path) -> None:
    workload = preset("azure-conv-2023", num_requests=3000, seed=1)
    demand = demand_of(workload)
    path = tmp_path / "requests.parquet"
    path.write_bytes(requests_parquet(demand))
    again = demand_of(TraceWorkload(path))
    for wanted, found in zip(demand[:3], again[:3], strict=True):
        assert np.array_equal(wanted, found)
    path.write_bytes(requests_parquet(demand_of(workload, timed=False)))
    assert PairLengths(path).counts == RowCounts(3000, 3000)


def document(gib: float | None) -> dict[str, Any]:
    lru = {"hit_tokens": 10, "evicted_tokens": 30, "rejected_tokens": 0}
    rows = [
        {
            "blocks": 10,
            "tokens": 160,
            "gib": gib,
            "lru": {**lru, "hit_rate": 0.1},
            "best_hit_rate": 0.3,
        },
        {
            "blocks": 99,
            "tokens": 1584,
            "gib": gib and 9.9 * gib,
            "lru": {**lru, "hit_rate": 0.4},
            "best_hit_rate": None,
        },
    ]
    return {"prompt_tokens": 100, "bound": {"hit_tokens": 40}, "capacities": rows}


def test_hit_rates_stand_over_the_capacity_in_tokens_and_gib() -> None:
    figure = prefix_figure(document(2.0))
    assert (named(figure, "LRU")["x"], named(figure, "LRU")["y"]) == ([160, 1584], [10, 40])
    assert named(figure, "best possible (Belady)")["y"] == [30]
    assert named(figure, "without eviction")["y"] == [40, 40]
    axis = figure["layout"]["xaxis"]
    assert axis["tickvals"] == [200, 500, 1000]
    assert axis["ticktext"] == ["200<br>2.5", "500<br>6.25", "1k<br>12.5"]
    assert prefix_figure(document(None))["layout"]["xaxis"]["ticktext"] == ["200", "500", "1k"]
    go.Figure(figure)


def test_the_csv_of_the_curve_has_a_row_per_capacity() -> None:
    table = list(csv.DictReader(io.StringIO(prefix_csv(document(2.0)).decode())))
    assert [row["tokens"] for row in table] == ["160", "1584"]
    assert [row["lru_hit_rate"] for row in table] == ["0.1", "0.4"]
    assert [row["best_hit_rate"] for row in table] == ["0.3", ""]


def test_rounding_is_a_share_of_all_prompt_tokens_and_a_mean_per_repeat() -> None:
    rows = [Rounding(1, 20, 0, 0, 2), Rounding(16, 0, 20, 4, 2)]
    figure = rounding_figure(rows, prompt_tokens=80)
    assert named(figure, "not to the end of a block")["y"] == [0, 25]
    assert named(figure, "block of the last token")["y"] == [0, 5]
    assert named(figure, "per repeat")["y"] == [0, 10]
    assert named(figure, "(block size - 1) / 2")["y"] == [0, 7.5]
    go.Figure(figure)


def test_the_csv_of_block_sizes_has_a_row_per_size() -> None:
    """Lengths 3 and 4: blocks of 4 leave 1 and 0 slots empty, blocks of 2 leave 1 and 0 in 2."""
    curve = block_size_curve([3], [2])
    assert curve is not None
    table = list(csv.DictReader(io.StringIO(curve_csv(curve).decode())))
    assert len(table) == 256
    shown = [{name: float(cell) for name, cell in row.items()} for row in table]
    assert shown[1] == {"block_size_tokens": 2, "empty_slots": 0.5, "blocks": 2}
    assert shown[3] == {"block_size_tokens": 4, "empty_slots": 0.5, "blocks": 1}
