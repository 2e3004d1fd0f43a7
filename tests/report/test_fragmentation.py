"""What the page Fragmentation shows: figures and data, with values known beforehand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.report.binned import AVERAGED, EXTENT, binned, binned_table
from kvsim.report.compare_two import Chosen, compare_two, differences_csv
from kvsim.report.export_parquet import table_parquet
from kvsim.report.figures import Shares, extent_figure, memory_map_figure, term_bars_figure
from kvsim.report.figures.memory_map import HIGHLIGHT
from kvsim.report.figures.terms import TERMS
from kvsim.report.moments import (
    event_counts,
    holder_rows,
    holders_named,
    map_totals,
    moment_rows,
    telling_moment,
)
from kvsim.report.term_shares import shares_by_term, term_shares, terms_csv
from kvsim.report.variant_memory import Events, RunHead, read_head, read_variant_memory
from kvsim.results.read_snapshots import read_snapshots
from kvsim.results.rows import STEP_COLUMNS
from tests.report.comparable import entry, source, summary
from tests.report.reports import small_run


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> RunHead:
    return read_head(small_run(tmp_path_factory.mktemp("fragmentation")))


def steps(rows: list[dict[str, float]]) -> pa.Table:
    return pa.table({name: [row.get(name, 0) for row in rows] for name in STEP_COLUMNS})


def test_the_largest_free_extent_is_averaged_over_the_time_in_which_something_ran() -> None:
    table = steps(
        [
            {"time_s": 0.0, "duration_s": 0.5, EXTENT: 8, "external_slots": 4},
            {"time_s": 2.0, "duration_s": 1.0, EXTENT: 6},
        ]
    )
    found = binned(table, capacity_slots=10, idle_between=True, intervals=3)
    assert found is not None
    assert np.array_equal(found.columns[EXTENT], [8, np.nan, 6], equal_nan=True)
    assert found.columns["external_slots"].tolist() == [2, 0, 0]
    figure = extent_figure({"a": found})
    go.Figure(figure)
    assert [trace["y"] for trace in figure["data"]] == [[8, None, 6, 6], [2, 0, 0, 0]]


def test_averages_of_overlapping_rows_of_no_time_and_of_idle_time_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(7)
    starts = np.cumsum(rng.choice([0.0, 0.1, 0.7], 200))
    rows = [
        {"time_s": start, "duration_s": float(rng.choice([0.0, 0.05, 0.4])), "running": count}
        for start, count in zip(starts.tolist(), rng.integers(0, 9, 200).tolist(), strict=True)
    ]
    found = binned(steps(rows), capacity_slots=1, idle_between=True, intervals=17)
    assert found is not None
    for place in range(17):
        low, high = place * found.width_s, (place + 1) * found.width_s
        total = 0.0
        for index, row in enumerate(rows):
            ends = row["time_s"] + row["duration_s"]
            if index + 1 < len(rows):
                ends = min(ends, rows[index + 1]["time_s"])
            total += max(0.0, min(high, ends) - max(low, row["time_s"])) * row["running"]
        assert found.columns["running"][place] * found.width_s == pytest.approx(total, abs=1e-9)


def test_the_parquet_file_holds_every_average_of_every_series(head: RunHead) -> None:
    names = list(head.run.folders)[:2]
    series = {name: read_variant_memory(head.run, name).series for name in names}
    known = {name: one for name, one in series.items() if one is not None}
    table = pq.read_table(io.BytesIO(table_parquet(binned_table(known))))
    assert table.column_names == ["label", "time_s", "width_s", *AVERAGED, EXTENT]
    assert table.num_rows == sum(len(one.columns[EXTENT]) for one in known.values())
    second = table.filter(pa.compute.equal(table.column("label"), names[1]))
    wanted = known[names[1]].columns["live_slots"]
    assert second.column("live_slots").to_pylist() == wanted.tolist()


def test_the_bars_are_the_terms_of_the_summary(head: RunHead) -> None:
    entries = head.run.summary["variants"]
    shares = {name: shares_by_term(one) for name, one in entries.items()}
    known = {name: one for name, one in shares.items() if one is not None}
    assert len(known) == 3
    figure = term_bars_figure(known)
    go.Figure(figure)
    drawn = {trace["name"]: trace["x"] for trace in figure["data"]}
    for place, one in enumerate(entries.values()):
        by_time = one["memory"]["by_time"]
        assert drawn["live"][place] == 100 * by_time["live"]
        roundup = by_time["detail"]["internal"]["roundup"]
        assert drawn["internal: roundup"][place] == 100 * roundup
        assert sum(xs[place] for xs in drawn.values()) == pytest.approx(100)


def test_a_label_of_run_and_variant_is_broken_and_escaped_and_zero_terms_are_left_out() -> None:
    shares = {**dict.fromkeys((term.key for term in TERMS), 0.0), "live": 0.75, "usable_free": 0.25}
    figure = term_bars_figure({"run · <b>": Shares(1000, shares)})
    assert figure["layout"]["yaxis"]["ticktext"] == ["run<br>&lt;b&gt;"]
    assert [trace["name"] for trace in figure["data"]] == ["live", "usable free"]
    assert [trace["customdata"] for trace in figure["data"]] == [["750.0"], ["250.0"]]
    (label,) = figure["layout"]["annotations"]
    assert (label["x"], label["text"]) == (87.5, "25.0 %")


def test_terms_are_listed_with_their_details_in_shares_and_slots(head: RunHead) -> None:
    one = head.run.summary["variants"]["contiguous-pow2"]
    rows = {row.label: row for row in term_shares(one)}
    by_time, capacity = one["memory"]["by_time"], one["memory"]["capacity_slots"]
    assert rows["external"].share == by_time["external"]
    assert rows["external"].slots == by_time["external"] * capacity
    five = [row.share for row in rows.values() if not row.detail]
    assert len(five) == 5
    assert sum(five) == pytest.approx(1)
    ahead = rows["reservation: ahead"]
    assert (ahead.detail, ahead.share) == (True, by_time["detail"]["reservation"]["ahead"])
    assert term_shares({}) == []
    assert shares_by_term({}) is None


def test_the_csv_of_terms_disarms_formulas_and_keeps_all_digits(head: RunHead) -> None:
    one = head.run.summary["variants"]["paged"]
    text = b"".join(terms_csv([("run", "=paged", one)])).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["variant"] for row in rows} == {"'=paged"}
    live = next(row for row in rows if row["term"] == "live")
    assert float(live["share_of_capacity"]) == one["memory"]["by_time"]["live"]


def test_two_variants_of_one_run_and_of_two_runs_are_compared_alone() -> None:
    worse = entry(preemptions=9)
    runs = [source(name, summary(paged=entry(), other=worse, third=entry())) for name in "ab"]
    within = compare_two(Chosen(runs[0], "paged"), Chosen(runs[0], "other"))
    across = compare_two(Chosen(runs[0], "paged"), Chosen(runs[1], "other"))
    for comparison, sources in ((within, ("a", "a")), (across, ("a", "b"))):
        (pair,) = comparison.pairs
        assert (pair.base.source, pair.candidate.source) == sources
        assert (pair.base.variant, pair.candidate.variant) == ("paged", "other")
        assert comparison.unmatched == ()
        figures = {one.path: one for one in pair.figures}
        assert (figures["preemptions"].difference, figures["preemptions"].verdict) == (5, "worse")
    rows = csv.DictReader(io.StringIO(b"".join(differences_csv(across)).decode()))
    found = next(row for row in rows if row["figure"] == "preemptions")
    assert (found["base"], found["candidate"], found["difference"]) == ("a: paged", "b: other", "5")


def test_different_requests_are_compared_and_named_and_a_variant_with_itself_is_refused() -> None:
    one, two = source("a", summary(digest="x")), source("b", summary(digest="y"))
    (mismatch,) = compare_two(Chosen(one, "paged"), Chosen(two, "paged")).mismatches
    assert mismatch.what == "requests"
    with pytest.raises(InputError, match="nothing to compare"):
        compare_two(Chosen(one, "paged"), Chosen(one, "paged"))


SNAPSHOT: dict[str, Any] = {
    "time_s": 2.0,
    "why": "preemption",
    "waiting": 3,
    "external_slots": 0,
    "requests": [
        {"id": "a", "live_tokens": 6, "final_tokens": 8, "extents": [[8, 4], [0, 4]]},
        {"id": "b", "live_tokens": 7, "final_tokens": 8, "extents": [[8, 4], [16, 4]]},
        {"id": "c group 1", "live_tokens": 0, "final_tokens": 4, "extents": []},
    ],
    "free": [[4, 4], [12, 4], [20, 4]],
    "shared": [[8, 4, 2]],
}
SNAPSHOTS: dict[str, Any] = {
    "kind": "paged",
    "capacity_slots": 24,
    "block_size": 4,
    "snapshots": [{**SNAPSHOT, "time_s": 0.0, "why": "regular"}, SNAPSHOT],
}


def test_holders_say_what_they_hold_share_reserve_and_leave_empty() -> None:
    rows = holder_rows(SNAPSHOT, kind="paged")
    assert [tuple(row)[:2] for row in rows] == [(1, "a"), (2, "b"), (3, "c group 1")]
    a, b, _ = rows
    assert (a.held, a.live, a.shared, a.reservation, a.internal, a.extents) == (8, 6, 4, 1, 1, 2)
    assert (b.held, b.live, b.shared, b.reservation, b.internal, b.extents) == (8, 7, 4, 0, 1, 2)


def test_a_request_is_found_by_its_id_its_number_or_its_groups() -> None:
    found = {
        text: holders_named(SNAPSHOT, text) for text in ("a", " #2 ", "c", "#4", "#0", "x", "")
    }
    assert found == {"a": [0], " #2 ": [1], "c": [2], "#4": [], "#0": [], "x": [], "": []}


def test_an_id_that_looks_like_a_number_is_an_id() -> None:
    first, second, third = SNAPSHOT["requests"]
    snapshot = {**SNAPSHOT, "requests": [{**first, "id": "#3"}, second, third]}
    assert [holders_named(snapshot, text) for text in ("#3", "#2")] == [[0], [1]]


def test_moments_say_how_fragmented_memory_was_and_the_first_one_shown_tells_most() -> None:
    events = Events(np.array([2.0, 5.0]), np.array([2, 1]), np.array([3.0]))
    rows = moment_rows(SNAPSHOTS, events)
    assert [row.preempted for row in rows] == [0, 2]
    assert (rows[1].requests, rows[1].waiting) == (3, 3)
    assert (rows[1].free_slots, rows[1].largest_hole_slots) == (12, 4)
    assert telling_moment(rows) == 1
    assert telling_moment([rows[0]._replace(external_slots=1), rows[1]]) == 0
    counts = event_counts(events, SNAPSHOTS)
    assert tuple(counts) == (2, 3, 1, 1, 0)
    series = event_counts(events._replace(held_up_s=None), SNAPSHOTS)
    assert tuple(series) == (2, 3, 0, None, 0)


def test_events_and_maps_of_a_run_agree_with_its_summary(head: RunHead) -> None:
    for name in head.run.folders:
        one = head.run.summary["variants"][name]
        snapshots = read_snapshots(head.run.folder_of(name, head.run.seeds[0]))
        found = read_variant_memory(head.run, name)
        assert snapshots is not None
        assert found.events is not None
        counts = event_counts(found.events, snapshots)
        assert counts.preempted_requests == one["preemptions"]
        assert counts.held_up is not None
        assert (counts.held_up > 0) == (one["held_up_steps"] > 0)
        assert counts.held_up <= one["held_up_steps"]
        for place, snapshot in enumerate(snapshots["snapshots"]):
            slots = map_totals(snapshots, place)
            assert sum(slots.values()) == one["memory"]["capacity_slots"]
            holes = sum(hole[1] for hole in snapshot["free"])
            assert slots["free"] + slots["external"] == holes


def test_a_summary_only_run_has_no_memory_over_time(tmp_path: Path) -> None:
    run_dir = small_run(tmp_path)
    for path in run_dir.glob("variants/*/steps.parquet"):
        path.unlink()
    found = read_variant_memory(read_head(run_dir).run, "paged")
    assert tuple(found) == (None, None)


def outline(figure: dict[str, Any], axis: str = "x") -> dict[str, Any]:
    (trace,) = (one for one in figure["data"] if one["name"] == HIGHLIGHT and one["xaxis"] == axis)
    return dict(trace)


def test_what_a_chosen_request_holds_is_outlined_shared_blocks_too_and_the_rest_is_dim() -> None:
    size = {"kind": "paged", "capacity": 24, "block_size": 4, "max_pieces": 100}
    plain = memory_map_figure(SNAPSHOT, **size).figure
    assert HIGHLIGHT not in {trace["name"] for trace in plain["data"]}
    assert all("opacity" not in trace["marker"] for trace in plain["data"])
    figure = memory_map_figure(SNAPSHOT, **size, highlight=[1]).figure
    go.Figure(figure)
    json.dumps(figure, allow_nan=False)
    held = outline(figure)
    # Lines of four slots: the shared block is line 2, its own one line 4.
    assert list(zip(held["y"], held["base"], held["x"], strict=True)) == [(2, 0, 4), (4, 0, 4)]
    assert held["marker"]["line"]["width"] > 2
    by_name = {trace["name"]: trace for trace in figure["data"]}
    shared = by_name["live, shared by several requests"]
    assert shared["marker"]["opacity"] == [1.0]
    live = by_name["live"]
    opacity = dict(zip(live["customdata"], live["marker"]["opacity"], strict=True))
    assert opacity == {1: 0.3, 2: 1.0}


def test_in_a_coarse_map_the_cells_of_the_chosen_request_are_outlined_and_magnified() -> None:
    count = 3000
    requests = [
        {
            "id": name,
            "live_tokens": 16 * len(blocks),
            "final_tokens": 16 * len(blocks) + 1,
            "extents": [[32 * block, 16] for block in blocks],
        }
        for name, blocks in (("a", [0, *range(2, count)]), ("b", [1]))
    ]
    snapshot = {
        "external_slots": 0,
        "requests": requests,
        "free": [[32 * index + 16, 16] for index in range(count)],
        "shared": [],
    }
    size = {"kind": "paged", "capacity": 32 * count, "block_size": 16, "max_pieces": 400}
    drawing = memory_map_figure(snapshot, **size, highlight=[1])
    cells = outline(drawing.figure)
    assert (cells["x"], cells["customdata"]) == ([drawing.cell / 2], [16])
    assert drawing.detail == (0, 2048)
    part = outline(drawing.figure, "x2")
    assert (part["base"], part["x"], part["y"]) == ([32], [16], [0])
    overview = [one for one in drawing.figure["data"] if one["xaxis"] == "x"]
    assert {tuple(one["marker"]["opacity"][:2]) for one in overview[:-1]} == {(1.0, 0.3)}
