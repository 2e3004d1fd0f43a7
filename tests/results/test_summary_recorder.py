"""The summary's figures, computed by hand beside them. Durations are nanoseconds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.accounting import split
from kvsim.errors import InputError
from kvsim.results import SummaryRecorder
from tests.results.fakes import CAPACITY, FakeAllocator, S, plan, sequence, states


def three_steps(window: tuple[int, int] | None = None) -> dict[str, Any]:
    """Paged, 100 slots: steps at 0..10 and 10..30, idle to 60, a step at 60..70."""
    allocator = FakeAllocator(capacity=100)
    recorder = SummaryRecorder(allocator, window=window)
    allocator.set(allocated=16, internal_tail=2)
    recorder.step(plan(live_tokens=10, num_running=1, prefill_tokens=10), 0, 10)
    allocator.set(allocated=48, internal_tail=5)
    busy = plan(live_tokens=40, num_running=3, num_decodes=1, prefill_tokens=29)
    recorder.step(busy, 10, 20)
    allocator.set()
    recorder.idle(30, 30)
    allocator.set(allocated=32, cached=8)
    recorder.step(plan(live_tokens=32, num_running=2, prefill_tokens=32), 60, 10)
    return recorder.summary()


def test_by_time_weights_by_duration_and_counts_idle_time() -> None:
    by_time = three_steps()["memory"]["by_time"]
    assert by_time["live"] == (10 * 10 + 40 * 20 + 32 * 10) / 7000
    assert by_time["internal"] == (2 * 10 + 5 * 20) / 7000
    assert by_time["reservation"] == (4 * 10 + 3 * 20) / 7000
    assert by_time["detail"]["reservation"] == {"tail": by_time["reservation"], "ahead": 0}
    assert by_time["external"] == 0
    assert by_time["usable_free"] == (84 * 10 + 52 * 20 + 100 * 30 + 68 * 10) / 7000
    assert by_time["detail"]["usable_free"]["cached"] == 8 * 10 / 7000


def test_by_iteration_weighs_each_step_once() -> None:
    summary = three_steps()
    by_iteration = summary["memory"]["by_iteration"]
    assert by_iteration["live"] == 82 / 300
    assert by_iteration["usable_free"] == (84 + 52 + 68) / 300
    assert summary["batch"] == {
        "mean": 2.0,
        "max": 3,
        "mean_by_time": (1 * 10 + 3 * 20 + 2 * 10) / 70,
    }
    assert summary["memory"]["empty_tail_slots_per_sequence"] == (6 / 1 + 8 / 3 + 0) / 3
    assert summary["steps"] == 3
    assert summary["duration_s"] == 70 / 1e9
    assert summary["tokens"]["scheduled"] == 10 + 30 + 32


def test_the_largest_free_extent_of_a_paged_pool_is_its_free_slots() -> None:
    extent = three_steps()["memory"]["largest_free_extent_tokens"]
    assert extent == {"mean": (84 * 10 + 52 * 20 + 100 * 30 + 68 * 10) / 70, "min": 52}


def test_a_window_counts_overlaps_by_time_and_starts_by_iteration() -> None:
    """Window 5..65: half of the first and of the last step; the first starts before it."""
    summary = three_steps(window=(5, 65))
    memory = summary["memory"]
    assert memory["by_time"]["live"] == (10 * 5 + 40 * 20 + 32 * 5) / 6000
    assert memory["by_time"]["usable_free"] == (84 * 5 + 52 * 20 + 100 * 30 + 68 * 5) / 6000
    assert memory["by_iteration"]["live"] == (40 + 32) / 200
    assert summary["batch"]["mean"] == 2.5
    assert summary["batch"]["mean_by_time"] == (1 * 5 + 3 * 20 + 2 * 5) / 60
    assert memory["empty_tail_slots_per_sequence"] == (8 / 3 + 0) / 2
    assert summary["measured"]["steps"] == 2
    assert summary["measured"]["duration_s"] == 60 / 1e9
    assert summary["steps"] == 3, "the whole run"
    assert summary["tokens"]["scheduled"] == 72, "the whole run"


def test_a_step_longer_than_the_window_fills_it_by_time_only() -> None:
    memory = three_steps(window=(12, 20))["memory"]
    assert memory["by_time"]["live"] == 0.4
    assert memory["by_iteration"]["live"] is None
    assert memory["paper"]["tokens"] is None
    assert memory["largest_free_extent_tokens"]["mean"] == 52


@pytest.mark.parametrize(("window", "steps"), [((0, 10), 1), ((10, 30), 1), ((30, 60), 0)])
def test_a_window_holds_its_start_and_not_its_end(window: tuple[int, int], steps: int) -> None:
    assert three_steps(window=window)["measured"]["steps"] == steps


def test_a_token_delivered_at_the_start_of_a_window_is_outside_and_at_its_end_inside() -> None:
    """Deliveries at 10, 30 and 70; the last step starts inside 10..70, the first ends at 10."""
    recorder = SummaryRecorder(FakeAllocator(), window=(10, 70))
    for start, end, decodes in ((0, 10, 1), (10, 30, 2), (30, 70, 4), (70, 90, 8)):
        recorder.step(plan(num_decodes=decodes), start, end - start)
    assert recorder.summary()["itl_s"]["count"] == 6


def test_a_step_without_duration_at_the_end_of_a_window_is_outside() -> None:
    recorder = SummaryRecorder(FakeAllocator(), window=(0, 10))
    recorder.step(plan(num_running=1), 0, 10)
    recorder.step(plan(num_running=5), 10, 0)
    assert recorder.summary()["batch"]["max"] == 1


@pytest.mark.parametrize("window", [(5, 5), (-1, 5), (7, 5)])
def test_an_empty_window_is_refused(window: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="0 <= from < to"):
        SummaryRecorder(FakeAllocator(), window=window)


def test_free_slots_are_external_only_while_the_head_is_held_up() -> None:
    allocator = FakeAllocator(capacity=100, reserves_ahead=True)
    recorder = SummaryRecorder(allocator)
    allocator.set(allocated=64, over_reservation=10, roundup=4, cached=0)
    allocator.extent = 20
    recorder.step(plan(live_tokens=30, num_running=2, num_waiting=1, head_held_up=True), 0, 10)
    allocator.extent = 36
    short = plan(live_tokens=32, num_running=2, num_waiting=1, head_short_of_memory=True)
    recorder.step(short, 10, 30)
    summary = recorder.summary()
    by_time = summary["memory"]["by_time"]
    assert by_time["external"] == 36 * 10 / 4000
    assert by_time["usable_free"] == 36 * 30 / 4000
    assert by_time["detail"]["reservation"] == {"tail": 0, "ahead": (20 * 10 + 18 * 30) / 4000}
    assert by_time["detail"]["internal"] == {"tail": 0, "over_reservation": 0.1, "roundup": 0.04}
    assert summary["memory"]["by_iteration"]["external"] == 0.18
    assert summary["memory"]["largest_free_extent_tokens"] == {"mean": 32.0, "min": 20}
    assert (summary["held_up_steps"], summary["short_of_memory_steps"]) == (1, 1)


def test_the_paper_rule_puts_free_pool_and_rounding_into_others() -> None:
    """Two steps of one reserved extent: prompt + output 40, reserved 60, extent 64 of 100."""
    allocator = FakeAllocator(capacity=100, reserves_ahead=True)
    recorder = SummaryRecorder(allocator)
    allocator.set(allocated=64, over_reservation=21, roundup=4, final_tokens=40, reserved_tokens=60)
    for step, live in enumerate((20, 30)):
        recorder.step(plan(live_tokens=live, num_running=1), 10 * step, 10)
    assert recorder.summary()["memory"]["paper"] == {
        "tokens": 0.25,
        "reservation": 0.15,
        "internal": 0.2,
        "external_and_others": 0.4,
    }


def test_the_paper_rule_knows_no_reservation_without_reserved_memory() -> None:
    paper = three_steps()["memory"]["paper"]
    assert paper["tokens"] == 82 / 300
    assert paper["reservation"] == paper["internal"] == 0
    assert paper["external_and_others"] == 218 / 300


FIVE = ("live", "reservation", "internal", "external", "usable_free")


@given(st.data(), st.booleans(), st.integers(1, 3))
def test_integrated_terms_equal_the_sum_of_every_steps_terms(
    data: st.DataObject, reserves_ahead: bool, repeat: int
) -> None:
    """Enough steps to fill the buffer more than once, when repeated."""
    drawn = data.draw(st.lists(states(reserves_ahead=reserves_ahead), min_size=1, max_size=8))
    allocator = FakeAllocator(reserves_ahead=reserves_ahead)
    recorder = SummaryRecorder(allocator)
    exact = dict.fromkeys((*FIVE, "cached", "over_reservation", "duration"), 0)
    empty_tails = []
    now = 0
    for state in drawn * (repeat * 64):
        allocator.set(**state["usage"])
        allocator.extent = state["extent"]
        step = plan(**state["plan"])
        terms = split(
            allocator.usage,
            live_tokens=step.live_tokens,
            capacity=CAPACITY,
            reserves_ahead=reserves_ahead,
            held_up=step.head_held_up,
        )
        for name in (*FIVE, "cached", "over_reservation"):
            exact[name] += getattr(terms, name) * state["duration"]
        if step.num_running:
            empty_tails.append((terms.reservation_tail + terms.internal_tail) / step.num_running)
        exact["duration"] += state["duration"]
        recorder.step(step, now, state["duration"])
        now += state["duration"]
    memory = recorder.summary()["memory"]
    if empty_tails:
        mean = sum(empty_tails) / len(empty_tails)
        assert memory["empty_tail_slots_per_sequence"] == pytest.approx(mean, rel=1e-9)
    by_time = memory["by_time"]
    whole = CAPACITY * exact["duration"]
    if not whole:
        assert by_time["live"] is None
        return
    for name in FIVE:
        assert by_time[name] == exact[name] / whole
    assert by_time["detail"]["usable_free"]["cached"] == exact["cached"] / whole
    assert by_time["detail"]["internal"]["over_reservation"] == exact["over_reservation"] / whole
    assert abs(sum(by_time[name] for name in FIVE) - 1) < 1e-12
    by_iteration = memory["by_iteration"]
    assert abs(sum(by_iteration[name] for name in FIVE) - 1) < 1e-12


@given(st.data())
def test_windows_that_tile_the_run_add_up_to_it(data: st.DataObject) -> None:
    """Every step's overlap lies in exactly one of two neighbouring windows, its start in one."""
    drawn = data.draw(st.lists(states(reserves_ahead=True), min_size=1, max_size=6))
    end = sum(state["duration"] for state in drawn)
    if end < 2:
        return
    cut = data.draw(st.integers(1, end - 1))
    totals = []
    for window in (None, (0, cut), (cut, end + 1)):
        allocator = FakeAllocator(reserves_ahead=True)
        recorder = SummaryRecorder(allocator, window=window)
        now = 0
        for state in drawn:
            allocator.set(**state["usage"])
            allocator.extent = state["extent"]
            recorder.step(plan(**state["plan"]), now, state["duration"])
            now += state["duration"]
        summary = recorder.summary()
        measured_ns = round(summary["measured"]["duration_s"] * 1e9)
        shares = [summary["memory"]["by_time"][name] or 0 for name in FIVE]
        totals.append(
            [share * measured_ns for share in shares]
            + [
                (summary["memory"]["by_iteration"][name] or 0) * summary["measured"]["steps"]
                for name in FIVE
            ]
            + [summary["measured"]["steps"], summary["itl_s"]["count"]]
        )
    whole, first, second = totals
    assert whole == pytest.approx([a + b for a, b in zip(first, second, strict=True)])


def test_counts_that_contradict_each_other_stop_the_summary() -> None:
    allocator = FakeAllocator(capacity=100)
    recorder = SummaryRecorder(allocator)
    allocator.set(allocated=16)
    recorder.step(plan(live_tokens=17, num_running=1), 0, 10)
    with pytest.raises(AssertionError, match=r"capacity 100 x weight 10"):
        recorder.summary()


def test_itl_counts_every_decode_of_a_step_and_the_wait_of_a_resumed_request() -> None:
    recorder = SummaryRecorder(FakeAllocator())
    new, resumed = sequence(), sequence()
    resumed.last_token_ns = 100
    recorder.step(plan(joined=[new], num_running=1), 0, 100)
    recorder.step(plan(num_decodes=3, num_running=3), 100, 20)
    recorder.step(plan(num_decodes=1, joined=[resumed], num_running=2), 120, 30)
    itl = recorder.summary()["itl_s"]
    assert itl["count"] == 5
    assert itl["mean"] == (3 * 20 + 30 + 50) / 5 / 1e9
    assert itl["p50"] == 20 / 1e9
    assert itl["max"] == 50 / 1e9


def test_preemptions_and_recomputed_tokens_are_counted() -> None:
    recorder = SummaryRecorder(FakeAllocator(), window=(50, 60))
    recorder.step(plan(preempted=[sequence(), sequence()]), 0, 50)
    recorder.step(plan(prefill_tokens=7, recomputed_tokens=5), 50, 10)
    recorder.step(plan(prefill_tokens=4, recomputed_tokens=4), 60, 10)
    summary = recorder.summary()
    assert summary["preemptions"] == 2
    assert summary["tokens"]["recomputed"] == 9


def test_the_time_integral_of_the_batch_is_the_sum_of_residences() -> None:
    """Little's law, realised: A runs 0..40, B 10..40, C 25..60, in steps of unequal length."""
    recorder = SummaryRecorder(FakeAllocator())
    for start, end, running in ((0, 10, 1), (10, 25, 2), (25, 40, 3), (40, 60, 1)):
        recorder.step(plan(num_running=running), start, end - start)
    residences = (40 - 0) + (40 - 10) + (60 - 25)
    batch = recorder.summary()["batch"]
    assert batch["mean_by_time"] * 60 == pytest.approx(residences, rel=1e-12)


def test_summary_may_be_asked_twice() -> None:
    recorder = SummaryRecorder(FakeAllocator())
    recorder.step(plan(num_running=1, num_decodes=1), 0, 10)
    assert recorder.summary() == recorder.summary()


def test_steps_with_a_queue_are_counted_with_the_limit_they_reach() -> None:
    recorder = SummaryRecorder(FakeAllocator(), max_num_seqs=8, max_num_batched_tokens=64)
    rows = [(0, 8, 60, 4), (1, 8, 0, 8), (2, 7, 57, 7), (3, 8, 0, 8), (4, 1, 63, 0)]
    for second, (waiting, running, prefill, decodes) in enumerate(rows):
        step = plan(
            num_waiting=waiting, num_running=running, prefill_tokens=prefill, num_decodes=decodes
        )
        recorder.step(step, second * S, S)
    summary = recorder.summary()
    assert summary["queued_steps"] == 4
    assert summary["queued_steps_at_max_num_seqs"] == 2
    assert summary["queued_steps_at_token_budget"] == 1
