from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.request import Request, State
from kvsim.errors import InputError
from kvsim.results import RequestsRecorder, SeriesRecorder, StepsRecorder, SummaryRecorder, Tee
from kvsim.results.rows import REQUEST_COLUMNS, STEP_COLUMNS
from tests.results.fakes import CAPACITY, FakeAllocator, S, plan, sequence, states


def rows(recorder: Any) -> list[dict[str, Any]]:
    columns = recorder.columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def two_steps(recorder: Any, allocator: FakeAllocator) -> None:
    """Steps at 0..1.5 s and 1.5..2 s, idle to 4.25 s, a step to 4.5 s."""
    allocator.set(allocated=160, internal_tail=10)
    busy = plan(num_running=4, num_waiting=2, prefill_tokens=100, live_tokens=100)
    busy.preempted = [sequence()]
    recorder.step(busy, 0, 3 * S // 2)
    allocator.set(allocated=320)
    decoding = plan(num_running=2, num_decodes=2, decode_context_tokens=50, live_tokens=300)
    recorder.step(decoding, 3 * S // 2, S // 2)
    allocator.set()
    recorder.idle(2 * S, 9 * S // 4)
    recorder.step(plan(num_running=1, prefill_tokens=5), 17 * S // 4, S // 4)


def test_a_step_row_is_the_state_after_schedule() -> None:
    allocator = FakeAllocator()
    recorder = StepsRecorder(allocator)
    two_steps(recorder, allocator)
    found = rows(recorder)
    assert [row["time_s"] for row in found] == [0, 1.5, 4.25]
    assert found[0] == {
        "time_s": 0,
        "duration_s": 1.5,
        "steps": 1,
        "running": 4,
        "waiting": 2,
        "prefill_tokens": 100,
        "decode_tokens": 0,
        "context_tokens": 0,
        "allocated_slots": 160,
        "logical_slots": 160,
        "live_slots": 100,
        "reservation_slots": 50,
        "internal_slots": 10,
        "external_slots": 0,
        "usable_free_slots": CAPACITY - 160,
        "reservation_tail_slots": 50,
        "reservation_ahead_slots": 0,
        "internal_tail_slots": 10,
        "over_reservation_slots": 0,
        "roundup_slots": 0,
        "cached_slots": 0,
        "largest_free_extent_tokens": CAPACITY - 160,
        "preemptions": 1,
    }
    assert (found[1]["decode_tokens"], found[1]["context_tokens"]) == (2, 50)


def test_a_series_row_averages_over_its_interval_and_counts_starts() -> None:
    """Interval 1 s: the step at 0..1.5 fills the first row and half of the second."""
    allocator = FakeAllocator()
    recorder = SeriesRecorder(allocator, interval_ns=S)
    two_steps(recorder, allocator)
    found = rows(recorder)
    assert [row["time_s"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["duration_s"] for row in found] == [1, 1, 1, 1, 0.5]
    assert [row["steps"] for row in found] == [1, 1, 0, 0, 1]
    assert [row["running"] for row in found] == [4, 3, 0, 0, 0.5]
    assert [row["waiting"] for row in found] == [2, 1, 0, 0, 0]
    assert [row["live_slots"] for row in found] == [100, 200, 0, 0, 0]
    assert [row["reservation_tail_slots"] for row in found] == [50, 35, 0, 0, 0]
    assert [row["context_tokens"] for row in found] == [0, 25, 0, 0, 0]
    assert [row["prefill_tokens"] for row in found] == [100, 0, 0, 0, 5]
    assert [row["decode_tokens"] for row in found] == [0, 2, 0, 0, 0]
    assert [row["preemptions"] for row in found] == [1, 0, 0, 0, 0]
    assert [row["largest_free_extent_tokens"] for row in found] == [840, 760, 1000, 1000, 1000]


def test_a_step_without_duration_counts_in_the_interval_of_its_start() -> None:
    recorder = SeriesRecorder(FakeAllocator(), interval_ns=S)
    recorder.step(plan(num_running=1), 0, S)
    recorder.step(plan(prefill_tokens=3), S, 0)
    first, second = rows(recorder)
    assert (first["steps"], first["prefill_tokens"]) == (1, 0)
    assert (second["time_s"], second["steps"], second["prefill_tokens"]) == (1, 1, 3)
    assert second["live_slots"] != second["live_slots"], "NaN: no time to average over"


def test_both_kinds_of_rows_have_the_same_columns() -> None:
    allocator = FakeAllocator()
    series = SeriesRecorder(allocator, interval_ns=S)
    assert tuple(series.columns()) == tuple(StepsRecorder(allocator).columns()) == STEP_COLUMNS


@given(st.data(), st.booleans())
def test_rows_and_series_integrate_to_the_summary(
    data: st.DataObject, reserves_ahead: bool
) -> None:
    drawn = data.draw(st.lists(states(reserves_ahead=reserves_ahead), min_size=1, max_size=6))
    allocator = FakeAllocator(reserves_ahead=reserves_ahead)
    summary = SummaryRecorder(allocator)
    steps = StepsRecorder(allocator)
    series = SeriesRecorder(allocator, interval_ns=S // 3)
    tee = Tee(summary, steps, series)
    now = 0
    for state in drawn:
        allocator.set(**state["usage"])
        allocator.extent = state["extent"]
        tee.step(plan(**state["plan"]), now, state["duration"])
        now += state["duration"]
    if not now:
        return
    by_time = summary.summary()["memory"]["by_time"]
    for name in ("live", "reservation", "internal", "external", "usable_free"):
        for recorder in (steps, series):
            total = sum(
                row[f"{name}_slots"] * row["duration_s"]
                for row in rows(recorder)
                if row["duration_s"]
            )
            assert total == pytest.approx(by_time[name] * CAPACITY * now / S, rel=1e-9, abs=1e-9)


def test_a_series_that_would_not_end_is_refused_with_a_way_out() -> None:
    recorder = SeriesRecorder(FakeAllocator(), interval_ns=10, max_rows=3)
    with pytest.raises(InputError, match=r"more than 3 rows.*Choose a longer interval"):
        recorder.idle(0, 1000)
    with pytest.raises(InputError, match="must be >= 1 ns, got 0"):
        SeriesRecorder(FakeAllocator(), interval_ns=0)


def test_a_request_row_says_what_became_of_it_and_why() -> None:
    recorder = RequestsRecorder()
    done = sequence("a", prompt=7, output=3, arrived=S, scheduled=2 * S, first=3 * S, end=5 * S)
    done.preemptions = 2
    done.cached_tokens = 4
    recorder.request(done, "finished")
    left = sequence("b", output=0, scheduled=-1)
    left.state = State.WAITING
    recorder.request(left, "unfinished")
    recorder.rejected(Request("c", 4 * S, 99, 9), "too long")
    found = rows(recorder)
    assert tuple(recorder.columns()) == REQUEST_COLUMNS
    assert found[0] == {
        "request_id": "a",
        "outcome": "finished",
        "reason": None,
        "arrival_s": 1,
        "queue_s": 1,
        "first_token_s": 3,
        "finish_s": 5,
        "prompt_tokens": 7,
        "output_tokens": 3,
        "cached_tokens": 4,
        "preemptions": 2,
        "held_up_by_fragmentation": False,
    }
    assert (found[1]["reason"], found[1]["queue_s"], found[1]["finish_s"]) == (
        "waiting",
        None,
        None,
    )
    assert (found[2]["outcome"], found[2]["reason"], found[2]["arrival_s"]) == (
        "rejected",
        "too long",
        4,
    )
