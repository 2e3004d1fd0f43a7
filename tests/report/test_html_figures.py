"""Figures and the reductions behind them: exact values, and what plotly itself accepts."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.report.binned import AVERAGED, binned
from kvsim.report.block_sizes import block_size_curve
from kvsim.report.figures import (
    block_size_figure,
    latency_figure,
    load_figure,
    memory_figure,
    memory_map_figure,
    waterfall_bars,
    waterfall_figure,
    whole_slots,
)
from kvsim.report.figures.terms import TERMS
from kvsim.report.html_data import ReportData, read_report_data
from kvsim.report.html_figures import draw
from kvsim.report.memory_map import Segment, coarse, cut, lines, segments, totals, window
from kvsim.report.quantiles import distribution, latencies
from kvsim.results.rows import REQUEST_COLUMNS, STEP_COLUMNS
from tests.report.reports import small_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return read_report_data(small_run(tmp_path_factory.mktemp("figures")))


@pytest.fixture(scope="module")
def figures(data: ReportData) -> dict[str, Any]:
    return draw(data, map_pieces=24_000).figures


def all_figures(figures: dict[str, Any]) -> list[Any]:
    return [
        option["figure"] for entry in figures.values() for option in entry.get("options", [entry])
    ]


def test_plotly_accepts_every_figure_and_json_holds_it(figures: dict[str, Any]) -> None:
    assert set(figures) == {"memory", "load", "latency", "block_size", "waterfall", "map"}
    for figure in all_figures(figures):
        go.Figure(figure)
        json.dumps(figure, allow_nan=False)


def steps(rows: list[dict[str, float]]) -> pa.Table:
    """Rows of `STEP_COLUMNS`; what a row does not name is 0."""
    return pa.table({name: [row.get(name, 0) for row in rows] for name in STEP_COLUMNS})


def test_intervals_hold_exact_averages_and_idle_time_is_free() -> None:
    table = steps(
        [
            {"time_s": 0.0, "duration_s": 1.5, "running": 2, "live_slots": 10},
            {"time_s": 2.0, "duration_s": 2.0, "running": 4, "live_slots": 20},
        ]
    )
    found = binned(table, capacity_slots=100, idle_between=True, intervals=4)
    assert found is not None
    assert (found.width_s, found.end_s, found.rows) == (1.0, 4.0, 2)
    assert found.columns["running"].tolist() == pytest.approx([2, 1, 4, 4])
    assert found.columns["live_slots"].tolist() == pytest.approx([10, 5, 20, 20])
    assert found.columns["usable_free_slots"].tolist() == pytest.approx([0, 50, 0, 0])


def test_in_a_series_time_without_a_row_was_not_observed() -> None:
    table = steps(
        [
            {"time_s": 0.0, "duration_s": 1.0, "running": 2},
            {"time_s": 3.0, "duration_s": 0.5, "running": 4},
        ]
    )
    found = binned(table, capacity_slots=100, idle_between=False, intervals=7)
    assert found is not None
    running = found.columns["running"]
    assert running[[0, 1, 6]].tolist() == pytest.approx([2, 2, 4])
    assert np.isnan(running[2:6]).all()


def test_rows_that_take_no_time_make_no_series() -> None:
    assert binned(steps([]), capacity_slots=1, idle_between=True) is None
    assert binned(steps([{"time_s": 0.0}]), capacity_slots=1, idle_between=True) is None


def test_a_long_run_keeps_its_integral_in_three_hundred_intervals() -> None:
    rng = np.random.default_rng(1)
    durations = rng.uniform(0, 0.1, 20_000)
    columns: dict[str, Any] = {name: rng.integers(0, 50, 20_000) for name in STEP_COLUMNS}
    columns["duration_s"] = durations
    columns["time_s"] = np.concatenate(([0.0], np.cumsum(durations)[:-1]))
    found = binned(pa.table(columns), capacity_slots=100, idle_between=True)
    assert found is not None
    for name in AVERAGED[:-1]:
        exact = float((columns[name] * durations).sum())
        assert found.columns[name].sum() * found.width_s == pytest.approx(exact, rel=1e-9)


def test_memory_over_time_averages_to_the_terms_of_the_summary(data: ReportData) -> None:
    for variant in data.variants:
        assert variant.series is not None
        for term in TERMS:
            share: Any = variant.entry["memory"]["by_time"]
            for key in term.path.split("."):
                share = share[key]
            mean = variant.series.columns[term.column].mean() / variant.series.capacity_slots
            assert mean == pytest.approx(share, abs=1e-9)


def test_the_stacked_terms_reach_the_whole_memory_in_every_interval(data: ReportData) -> None:
    figure = memory_figure({one.label: one.series for one in data.variants if one.series})
    for axis in ("y", "y2", "y3"):
        stack = [trace["y"] for trace in figure["data"] if trace["yaxis"] == axis]
        assert np.sum(stack, axis=0) == pytest.approx(100, abs=0.05)


def test_the_measured_window_is_marked_where_it_lies_inside_the_run(data: ReportData) -> None:
    series = {one.label: one.series for one in data.variants if one.series}
    end = max(one.end_s for one in series.values())
    marks = load_figure(series, {}, (end / 2, None))["layout"]["shapes"]
    assert [mark["x0"] for mark in marks] == [end / 2]
    assert memory_figure(series, (0.0, 2 * end))["layout"]["shapes"] == []


def test_a_limit_far_above_the_batch_is_not_drawn(data: ReportData) -> None:
    series = {one.label: one.series for one in data.variants if one.series}
    drawn = load_figure(series, {"near": 8.0, "far": 100.0})["layout"]
    assert [shape["y0"] for shape in drawn["shapes"]] == [8.0]
    assert "far" not in {note["text"] for note in drawn["annotations"]}


shares = st.lists(st.integers(0, 1000), min_size=len(TERMS), max_size=len(TERMS)).filter(any)


@given(shares, shares, st.integers(1, 10**7), st.integers(1, 10**7))
def test_the_bars_of_a_waterfall_add_up_exactly(
    source: list[int], target: list[int], source_slots: int, target_slots: int
) -> None:
    slots = []
    for parts, capacity in ((source, source_slots), (target, target_slots)):
        exact = {term.key: part / sum(parts) for term, part in zip(TERMS, parts, strict=True)}
        whole = whole_slots(exact, capacity)
        assert sum(whole.values()) == capacity
        assert all(abs(whole[key] - exact[key] * capacity) <= 1 for key in exact)
        slots.append(whole)
    bars = waterfall_bars(slots[0], slots[1], ("a", "b"))
    assert bars[0].slots + sum(bar.slots for bar in bars[1:-1]) == bars[-1].slots
    assert (bars[0].slots, bars[-1].slots) == (slots[0]["live"], slots[1]["live"])
    go.Figure(waterfall_figure(bars, target_slots))


def test_a_waterfall_leads_from_reserved_to_live_slots() -> None:
    none = dict.fromkeys((term.key for term in TERMS), 0)
    source = {**none, "live": 20, "over_reservation": 80}
    target = {**none, "live": 90, "reservation_tail": 10}
    bars = waterfall_bars(source, target, ("max", "paged"))
    assert [(bar.label, bar.slots) for bar in bars] == [
        ("live in max", 20),
        ("reservation: tail", -10),
        ("internal: over-reservation", 80),
        ("live in paged", 90),
    ]
    figure = waterfall_figure(bars, 100)
    drawn = {
        x: (base, y)
        for trace in figure["data"]
        for x, base, y in zip(trace["x"], trace["base"], trace["y"], strict=True)
    }
    assert drawn == {0: (0, 20), 1: (10, 10), 2: (10, 80), 3: (0, 90)}


def requests_table(rows: list[tuple[str, float, float, float | None, float | None, int]]) -> Any:
    """Rows of outcome, arrival, queue, first token, finish (s) and output tokens."""
    columns: dict[str, list[Any]] = {name: [] for name in REQUEST_COLUMNS}
    for outcome, arrival, queue, first, finish, output in rows:
        values = dict.fromkeys(REQUEST_COLUMNS, 0) | {
            "outcome": outcome,
            "arrival_s": arrival,
            "queue_s": queue,
            "first_token_s": first,
            "finish_s": finish,
            "output_tokens": output,
        }
        for name in REQUEST_COLUMNS:
            columns[name].append(values[name])
    return pa.table(columns)


def test_latencies_are_those_of_finished_requests_that_arrive_in_the_window() -> None:
    table = requests_table(
        [
            ("finished", 1.0, 0.5, 3.0, 7.0, 5),
            ("finished", 2.0, 0.0, 2.5, 2.5, 1),
            ("finished", 9.0, 0.0, 9.5, 9.9, 2),
            ("rejected", 1.0, 0.0, None, None, 0),
        ]
    )
    found = latencies(table, frontend_s=0.25, window_s=(1.0, 9.0))
    assert {name: values.tolist() for name, values in found.items()} == {
        "ttft_s": [2.25, 0.75],
        "tpot_s": [1.0],
        "e2e_s": [6.25, 0.75],
        "queue_s": [0.5, 0.0],
    }


def test_a_distribution_of_many_values_keeps_exact_quantiles_and_the_maximum() -> None:
    found = distribution(np.arange(10_000, 0, -1) / 1000)
    assert found is not None
    assert len(found.share) <= 200
    assert found.requests == 10_000
    # The value of rank r is r / 1000, its share r / 10,000.
    assert found.seconds.tolist() == pytest.approx((10 * found.share).tolist())
    assert found.seconds[[0, -1]].tolist() == [0.001, 10.0]
    assert 9.99 in found.seconds
    assert distribution(np.array([])) is None


def test_the_curves_reach_all_requests_and_the_objective_is_marked(data: ReportData) -> None:
    figure = latency_figure({one.label: one.distributions for one in data.variants}, {"ttft_s": 1})
    assert all(trace["y"][-1] == 100 for trace in figure["data"])
    (line,) = figure["layout"]["shapes"]
    assert (line["xref"], line["x0"]) == ("x", 1)
    assert len([trace for trace in figure["data"] if trace["showlegend"]]) == len(data.variants)


def test_the_block_size_curve_is_the_mean_over_every_length_a_request_goes_through() -> None:
    curve = block_size_curve([5, 3, 1], [4, 1, 600])
    assert curve is not None
    seen = [*range(5, 9), 3, *range(1, 601)]
    assert curve.mean_tokens == pytest.approx(np.mean(seen))
    for size in (1, 2, 7, 16, 256):
        waste = [size * -(-length // size) - length for length in seen]
        assert curve.empty_slots[size - 1] == pytest.approx(np.mean(waste))
        blocks = [-(-length // size) for length in seen]
        assert curve.blocks[size - 1] == pytest.approx(np.mean(blocks))


def test_over_whole_periods_of_lengths_half_a_block_less_half_a_slot_is_empty() -> None:
    curve = block_size_curve([1], [256 * 255 * 3])
    assert curve is not None
    for size in (1, 2, 3, 4, 5, 15, 16, 17, 51, 64, 85, 128, 255, 256):
        assert curve.empty_slots[size - 1] == pytest.approx((size - 1) / 2, rel=1e-12)
    assert block_size_curve([], []) is None


def test_the_lengths_of_sharegpt_deviate_from_that_as_published(shared: Path) -> None:
    """FIELD.md, section 3: 7.499 at block size 16, 132.49 at 256."""
    path = shared / "traces" / "sharegpt_opt_lengths.csv.gz"
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.reader(file))[1:]
    pairs = np.array([[int(cell) for cell in row[-2:]] for row in rows])
    pairs = pairs[pairs.sum(axis=1) < 2048]
    curve = block_size_curve(pairs[:, 0], pairs[:, 1])
    assert curve is not None
    assert curve.empty_slots[15] == pytest.approx(7.499, abs=5e-4)
    assert curve.empty_slots[255] == pytest.approx(132.49, abs=5e-3)


def test_the_simulated_tails_are_marked_at_their_block_size(data: ReportData) -> None:
    assert data.curve is not None
    figure = block_size_figure(data.curve, {"paged": (4, 1.25)})
    points = [(trace["x"], trace["y"]) for trace in figure["data"] if trace["mode"] == "markers"]
    assert points == [([4], [1.25]), ([4], [pytest.approx(data.curve.blocks[3])])]
    go.Figure(figure)


SNAPSHOT = {
    "external_slots": 0,
    "requests": [
        {"id": "a", "live_tokens": 6, "final_tokens": 8, "extents": [[8, 4], [0, 4]]},
        {"id": "b", "live_tokens": 3, "final_tokens": 4, "extents": [[16, 4]]},
    ],
    "free": [[4, 4], [12, 4], [20, 4]],
    "shared": [],
}


def test_a_paged_request_fills_its_blocks_in_the_order_of_its_table() -> None:
    assert segments(SNAPSHOT, kind="paged", capacity=24) == [
        Segment(0, 2, "live", 0),
        Segment(2, 1, "reservation", 0),
        Segment(3, 1, "internal_tail", 0),
        Segment(4, 4, "free", -1),
        Segment(8, 4, "live", 0),
        Segment(12, 4, "free", -1),
        Segment(16, 3, "live", 1),
        Segment(19, 1, "internal_tail", 1),
        Segment(20, 4, "free", -1),
    ]


def test_a_contiguous_extent_is_live_then_reserved_then_over_reserved_then_rounded_up() -> None:
    request = {
        "id": "a",
        "live_tokens": 3,
        "final_tokens": 6,
        "reserved_tokens": 9,
        "extents": [[0, 12]],
    }
    snapshot = {"external_slots": 4, "requests": [request], "free": [[12, 4]], "shared": []}
    assert segments(snapshot, kind="contiguous", capacity=16) == [
        Segment(0, 3, "live", 0),
        Segment(3, 2, "reservation", 0),
        Segment(5, 4, "over_reservation", 0),
        Segment(9, 3, "roundup", 0),
        Segment(12, 4, "external", -1),
    ]


def test_cells_lines_and_windows_keep_every_slot() -> None:
    parts = segments(SNAPSHOT, kind="paged", capacity=24)
    cells = coarse(parts, 10)
    assert [(cell.start, cell.slots) for cell in cells] == [(0, 10), (10, 10), (20, 4)]
    assert cells[0].uses == {"live": 4, "reservation": 1, "internal_tail": 1, "free": 4}
    for use, slots in totals(parts).items():
        assert sum(cell.uses.get(use, 0) for cell in cells) == slots
        broken = [one for _, one in lines(parts, 5, 0)]
        assert sum(one.slots for one in broken if one.use == use) == slots
    assert all(one.start // 5 == line for line, one in lines(parts, 5, 0))
    assert window(parts, 8) == 0
    assert sum(one.slots for one in cut(parts, 3, 17)) == 14


def test_a_map_of_many_pieces_is_drawn_in_cells_with_a_part_to_scale() -> None:
    count = 3000
    snapshot = {
        "external_slots": 0,
        "requests": [
            {
                "id": "a",
                "live_tokens": 16 * count,
                "final_tokens": 16 * count + 1,
                "extents": [[32 * index, 16] for index in range(count)],
            }
        ],
        "free": [[32 * index + 16, 16] for index in range(count)],
        "shared": [],
    }
    size = {"kind": "paged", "capacity": 32 * count, "block_size": 16}
    drawing = memory_map_figure(snapshot, **size, max_pieces=400)
    go.Figure(drawing.figure)
    assert drawing.cell > 16
    assert drawing.cell % 16 == 0
    assert drawing.detail is not None
    pieces = sum(len(trace["x"]) for trace in drawing.figure["data"])
    assert pieces <= 400 + 128 + 24
    overview = [trace for trace in drawing.figure["data"] if trace["xaxis"] == "x"]
    slots = {trace["name"]: sum(trace["customdata"]) for trace in overview}
    assert slots == {"live": 16 * count, "free": 16 * count}
    exact = memory_map_figure(snapshot, **size, max_pieces=10_000)
    assert (exact.cell, exact.detail) == (1, None)
    assert {trace["name"]: sum(trace["x"]) for trace in exact.figure["data"]} == {
        "live": 16 * count,
        "free": 16 * count,
    }
