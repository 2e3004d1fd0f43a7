from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.report import export_perfetto
from kvsim.report.export_perfetto import _Lanes, perfetto_export
from kvsim.results.read_run import Run
from tests.report.small_run import made_run, request, small_run, step


def trace(run: Run) -> dict[str, Any]:
    """The whole document, checked for what every trace must keep."""
    ((name, chunks),) = perfetto_export(run, list(run.folders)).files
    assert name == ""
    document: dict[str, Any] = json.loads(b"".join(chunks))
    events = [event for event in document["traceEvents"] if event["ph"] != "M"]
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        _check_nesting(track)
    return document


def _check_nesting(track: list[dict[str, Any]]) -> None:
    """Slices of a track are inside one another or apart, as the viewers demand."""
    open_ends: list[float] = []
    for event in track:
        while open_ends and open_ends[-1] <= event["ts"] + 1e-6:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + 1e-6
        open_ends.append(end)


def slices(document: dict[str, Any], process: int = 1) -> list[tuple[str, int, float, float]]:
    """Name, track, start and duration in seconds."""
    return [
        (event["name"], event["tid"], event["ts"] / 1e6, event["dur"] / 1e6)
        for event in document["traceEvents"]
        if event["ph"] == "X" and event["pid"] == process
    ]


def test_requests_and_steps_have_tracks_with_their_phases(tmp_path: Path) -> None:
    """r0: tokens at 1, 2, 3 s; r1 waits from 0.5 to 1 s and gets its token at 2 s."""
    document = trace(small_run(tmp_path))
    assert sorted(slices(document)) == [
        ("decode", 3, 1.0, 2.0),
        ("prefill", 3, 0.0, 1.0),
        ("prefill", 4, 1.0, 1.0),
        ("queued", 4, 0.5, 0.5),
        ("r0", 3, 0.0, 3.0),
        ("r1", 4, 0.5, 1.5),
        ("step", 1, 0.0, 1.0),
        ("step", 1, 1.0, 1.0),
        ("step", 1, 2.0, 1.0),
    ]
    assert slices(document, process=2)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    }
    assert names == {
        (1, 0): "paged",
        (1, 1): "steps",
        (1, 2): "rejected",
        (1, 3): "requests 1",
        (1, 4): "requests 2",
        (2, 0): "contiguous-max",
        (2, 1): "steps",
        (2, 2): "rejected",
        (2, 3): "requests 1",
        (2, 4): "requests 2",
    }


def test_the_rejected_are_marked_where_they_arrive(tmp_path: Path) -> None:
    events = trace(small_run(tmp_path))["traceEvents"]
    assert [event for event in events if event["ph"] == "i" and event["pid"] == 1] == [
        {
            "ph": "i",
            "s": "t",
            "name": "r2",
            "pid": 1,
            "tid": 2,
            "ts": 750000.0,
            "args": {"reason": "prompt_too_long", "prompt_tokens": 20},
        }
    ]


def test_counters_follow_memory_and_batch(tmp_path: Path) -> None:
    """Paged, blocks of 4, 32 slots: r0 holds 4, 5, 6 tokens and r1 4 in the second step."""
    events = trace(small_run(tmp_path))["traceEvents"]
    counters = [event for event in events if event["ph"] == "C" and event["pid"] == 1]
    memory = [event["args"] for event in counters if event["name"] == "KV slots"]
    assert memory[1] == {
        "live": 9.0,
        "reservation": 1.0,
        "internal": 2.0,
        "external": 0.0,
        "usable_free": 20.0,
    }
    assert [sum(values.values()) for values in memory] == [32.0, 32.0, 32.0]
    batch = [(e["ts"], e["args"]) for e in counters if e["name"] == "batch"]
    assert batch == [
        (0.0, {"running": 1.0, "waiting": 0.0}),
        (1e6, {"running": 2.0, "waiting": 0.0}),
        (2e6, {"running": 1.0, "waiting": 0.0}),
    ]


def test_the_trace_says_that_times_of_preemptions_are_not_recorded(tmp_path: Path) -> None:
    document = trace(made_run(tmp_path, requests=[request(preemptions=2)]))
    assert "not recorded" in document["otherData"]["notes"][0]
    (event,) = (e for e in document["traceEvents"] if e["name"] == "r0")
    assert event["args"]["preemptions"] == 2


def test_a_request_still_there_at_the_end_lasts_until_then(tmp_path: Path) -> None:
    rows = [
        request("waits", outcome="unfinished", queue_s=None, first_token_s=None, finish_s=None),
        request("runs", outcome="unfinished", finish_s=None),
    ]
    document = trace(made_run(tmp_path, requests=rows, entry={"duration_s": 9.0}))
    assert sorted(slices(document)) == [
        ("decode", 4, 1.0, 8.0),
        ("prefill", 4, 0.5, 0.5),
        ("queued", 3, 0.0, 9.0),
        ("queued", 4, 0.0, 0.5),
        ("runs", 4, 0.0, 9.0),
        ("step", 1, 0.0, 1.0),
        ("waits", 3, 0.0, 9.0),
    ]


def test_beyond_the_cap_rows_are_thinned_out_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_perfetto, "MAX_REQUESTS", 2)
    monkeypatch.setattr(export_perfetto, "MAX_STEPS", 2)
    steps = [
        step(time_s=0.0, duration_s=1.0, decode_tokens=1, running=1),
        step(time_s=1.0, duration_s=3.0, decode_tokens=2, running=5),
        step(time_s=6.0, duration_s=1.0, decode_tokens=4, running=2),
    ]
    rows = [request(f"r{index}", arrival_s=0.0) for index in range(3)]
    document = trace(made_run(tmp_path, requests=rows, steps=steps))
    found = slices(document)
    assert [name for name, track, *_ in found if track > 2 and name[0] == "r"] == ["r0", "r2"]
    assert [row for row in found if row[1] == 1] == [
        ("2 steps", 1, 0.0, 4.0),
        ("step", 1, 6.0, 1.0),
    ]
    batch = [e["args"]["running"] for e in document["traceEvents"] if e["name"] == "batch"]
    assert batch == [4.0, 2.0]  # (1 * 1 s + 5 * 3 s) / 4 s
    merged = next(e for e in document["traceEvents"] if e["name"] == "2 steps")
    assert (merged["args"]["decode_tokens"], merged["args"]["busy_s"]) == (3, 4.0)
    assert document["otherData"]["notes"][1:] == [
        "paged: 1 of 2 requests is shown, in the order of arrival",
        "paged: a slice stands for up to 2 steps, and counters are their averages weighted by "
        "duration",
    ]


def test_a_run_without_rows_is_refused(tmp_path: Path) -> None:
    run = small_run(tmp_path, "record.mode=summary")
    with pytest.raises(InputError, match=r"kept no rows of 'paged'.*record\.mode: steps"):
        perfetto_export(run, ["paged"])


def test_a_time_series_is_drawn_too(tmp_path: Path) -> None:
    document = trace(small_run(tmp_path, "record={mode: series, interval_s: 1.5}"))
    assert [row for row in slices(document) if row[1] == 1] == [
        ("2 steps", 1, 0.0, 1.5),
        ("step", 1, 1.5, 1.5),
    ]


def test_hostile_ids_and_names_are_text_and_have_an_end(tmp_path: Path) -> None:
    hostile = "</script>\x00\u202e" + "x" * 10_000
    document = trace(made_run(tmp_path, requests=[request(hostile)], variant="\ud800=1"))
    names = {event["name"] for event in document["traceEvents"]}
    assert hostile[:199] + "…" in names
    assert document["traceEvents"][0]["args"]["name"] == "\ud800=1"


times = st.integers(0, 5 * 10**9)


@st.composite
def request_rows(draw: st.DrawFn) -> dict[str, object]:
    moments = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    arrival, _, first, finish = (moment / 10**9 for moment in moments)
    return request(
        draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
        arrival_s=arrival,
        queue_s=(moments[1] - moments[0]) / 10**9,
        first_token_s=first,
        finish_s=finish,
    )


@settings(max_examples=25)
@given(rows=st.lists(request_rows(), max_size=12))
def test_phases_sum_to_what_the_rows_say(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    document = trace(made_run(tmp_path_factory.mktemp("run"), requests=rows))
    totals: dict[str, float] = defaultdict(float)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["tid"] > 2:
            totals["whole" if "args" in event else event["name"]] += event["dur"] / 1e6
    expected = {
        "whole": sum(row["finish_s"] - row["arrival_s"] for row in rows),
        "queued": sum(row["queue_s"] for row in rows),
        "prefill": sum(r["first_token_s"] - r["arrival_s"] - r["queue_s"] for r in rows),
        "decode": sum(row["finish_s"] - row["first_token_s"] for row in rows),
    }
    assert {name: totals[name] for name in expected} == pytest.approx(expected, abs=1e-7)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30))
def test_intervals_of_one_lane_never_overlap_and_lanes_are_as_few_as_can_be(
    intervals: list[tuple[int, int]],
) -> None:
    lanes = _Lanes()
    ordered = sorted((start, start + length) for start, length in intervals)
    taken = [(lanes.take(start, end), start, end) for start, end in ordered]
    for index, (lane, start, _) in enumerate(taken):
        for other, _, end in taken[:index]:
            assert other != lane or end <= start
    busiest = max(
        (sum(s <= start < e or s == start for s, e in ordered) for start, _ in ordered), default=0
    )
    assert lanes.count <= busiest
