"""Requests, tokens, throughput and latencies of a summary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvsim.core.request import Request, State
from kvsim.errors import InputError
from kvsim.results import Slo, SummaryRecorder, Tee
from tests.results.fakes import FakeAllocator, S, plan, sequence

SHAPE = {
    "requests": {
        "submitted",
        "finished",
        "rejected",
        "rejected_by_reason",
        "aborted",
        "unfinished",
        "held_up_by_fragmentation",
    },
    "tokens": {"prompt", "output", "scheduled", "recomputed"},
    "steps": None,
    "duration_s": None,
    "memory": {
        "capacity_slots",
        "by_time",
        "by_iteration",
        "paper",
        "empty_tail_slots_per_sequence",
        "largest_free_extent_tokens",
    },
    "batch": {"mean", "max"},
    "preemptions": None,
    "throughput": {
        "requests_per_s",
        "output_tokens_per_s",
        "total_tokens_per_s",
        "goodput_rps",
    },
    "ttft_s": {"mean", "p50", "p90", "p99"},
    "tpot_s": {"mean", "p50", "p90", "p99"},
    "itl_s": {"mean", "p50", "p90", "p99"},
    "e2e_s": {"mean", "p50", "p90", "p99"},
    "queue_s": {"mean", "p50", "p90", "p99"},
    "normalized_latency_s_per_token": {"mean", "p50", "p90", "p99"},
}
"""Names others rely on; more may be there."""


def run(**settings: Any) -> dict[str, Any]:
    """Ten seconds; A: 5 tokens at 1..5 s; B: 1 token at 8 s; one of each other fate."""
    recorder = SummaryRecorder(FakeAllocator(), **settings)
    recorder.step(plan(joined=[sequence("a")]), 0, S)
    for second in range(1, 5):
        recorder.step(plan(num_decodes=1), second * S, S)
    recorder.step(plan(joined=[sequence("b", prompt=30)]), 5 * S, 3 * S)
    recorder.step(plan(), 8 * S, 2 * S)
    a = sequence("a", output=5, arrived=0, scheduled=S // 2, first=S, end=5 * S)
    b = sequence("b", prompt=30, output=1, arrived=4 * S, scheduled=7 * S, first=8 * S, end=8 * S)
    b.held_up_by_fragmentation = True
    recorder.request(a, "finished")
    recorder.request(b, "finished")
    recorder.request(sequence("c", first=S), "aborted")
    left = sequence("d")
    left.state = State.DECODING
    recorder.request(left, "unfinished")
    recorder.rejected(Request("e", 0, 9, 9), "never_fits: needs 9 blocks, the pool has 8")
    return recorder.summary()


def test_the_names_that_others_rely_on_are_there() -> None:
    summary = run()
    for name, keys in SHAPE.items():
        assert keys is None or keys <= summary[name].keys(), name
        assert name in summary
    for name in ("by_time", "by_iteration"):
        terms = summary["memory"][name]
        assert terms.keys() == {
            "live",
            "reservation",
            "internal",
            "external",
            "usable_free",
            "detail",
        }
        assert {key: set(value) for key, value in terms["detail"].items()} == {
            "reservation": {"tail", "ahead"},
            "internal": {"tail", "over_reservation", "roundup"},
            "usable_free": {"cached"},
        }
    assert summary["memory"]["paper"].keys() == {
        "tokens",
        "reservation",
        "internal",
        "external_and_others",
    }
    assert summary["memory"]["largest_free_extent_tokens"].keys() == {"mean", "min"}


def test_every_request_is_accounted_for() -> None:
    assert run()["requests"] == {
        "submitted": 5,
        "finished": 2,
        "truncated": 0,
        "rejected": 1,
        "rejected_by_reason": {"never_fits": 1},
        "aborted": 1,
        "unfinished": 1,
        "unfinished_by_reason": {"decoding": 1},
        "held_up_by_fragmentation": 1,
    }


def test_tokens_are_those_of_finished_requests_and_rates_those_delivered() -> None:
    summary = run()
    assert (summary["tokens"]["prompt"], summary["tokens"]["output"]) == (40, 6)
    assert summary["throughput"] == {
        "requests_per_s": 0.2,
        "output_tokens_per_s": 0.6,
        "total_tokens_per_s": 4.6,
        "goodput_rps": None,
    }


def test_latencies_are_those_of_finished_requests() -> None:
    summary = run()
    assert summary["ttft_s"]["mean"] == (1 + 4) / 2
    assert summary["e2e_s"]["mean"] == (5 + 4) / 2
    assert summary["queue_s"]["mean"] == (0.5 + 3) / 2
    assert summary["normalized_latency_s_per_token"]["mean"] == (5 / 5 + 4 / 1) / 2
    assert summary["ttft_s"]["p99"] == pytest.approx(4, rel=1e-3)


def test_time_outside_the_engine_adds_to_ttft_and_end_to_end_only() -> None:
    inside, outside = run(), run(frontend_ns=S // 4, slo=Slo(ttft_s=1.2))
    for name, added in (("ttft_s", 0.25), ("e2e_s", 0.25), ("queue_s", 0), ("tpot_s", 0)):
        assert outside[name]["mean"] == inside[name]["mean"] + added, name
    assert outside["throughput"]["goodput_rps"] == 0, "a's first token comes after 1.25 s"


def test_tpot_is_undefined_for_a_single_token() -> None:
    tpot = run()["tpot_s"]
    assert (tpot["count"], tpot["mean"]) == (1, 1.0)
    recorder = SummaryRecorder(FakeAllocator())
    recorder.request(sequence(output=1, first=5, end=5), "finished")
    assert recorder.summary()["tpot_s"]["p50"] is None


def test_a_window_counts_arrivals_for_latency_and_ends_for_throughput() -> None:
    summary = run(window=(S, 5 * S))
    assert summary["ttft_s"]["mean"] == 4, "only b arrives inside"
    assert summary["measured"]["finished"] == 1, "only a ends inside, at its very end"
    assert summary["throughput"]["requests_per_s"] == 1 / 4
    assert summary["throughput"]["output_tokens_per_s"] == 4 / 4, "those at 2, 3, 4 and 5 s"
    assert summary["throughput"]["total_tokens_per_s"] == 4 / 4, "no first token is inside"
    assert summary["requests"]["finished"] == 2, "the whole run"


@pytest.mark.parametrize(("window", "arrivals"), [((4 * S, 6 * S), 1), ((0, 4 * S), 1)])
def test_an_arrival_at_the_start_of_a_window_is_inside_and_at_its_end_is_not(
    window: tuple[int, int], arrivals: int
) -> None:
    assert run(window=window)["ttft_s"]["count"] == arrivals


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_s=1), 1),
        (Slo(ttft_s=4), 2),
        (Slo(tpot_s=1), 2),
        (Slo(tpot_s=0.9), 1),
        (Slo(ttft_s=4, tpot_s=1, e2e_s=4), 1),
        (Slo(ttft_s=0.5, tpot_s=1), 0),
    ],
)
def test_goodput_counts_requests_that_meet_all_objectives(slo: Slo, good: int) -> None:
    """A limit may be met exactly; one token has no TPOT to miss."""
    assert run(slo=slo)["throughput"]["goodput_rps"] == good / 10


def test_goodput_is_undefined_without_a_single_objective() -> None:
    assert run(slo=Slo())["throughput"]["goodput_rps"] is None


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_an_impossible_objective_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"slo\.ttft_s must be > 0"):
        SummaryRecorder(FakeAllocator(), slo=Slo(ttft_s=value))


def test_a_run_without_steps_is_valid_json_with_nulls() -> None:
    summary = SummaryRecorder(FakeAllocator()).summary()
    parsed = json.loads(json.dumps(summary, allow_nan=False))
    assert parsed["batch"]["mean"] is None
    assert parsed["memory"]["by_time"]["live"] is None
    assert parsed["memory"]["largest_free_extent_tokens"] == {"mean": None, "min": None}
    assert parsed["throughput"]["requests_per_s"] is None
    assert parsed["requests"]["submitted"] == 0


def test_reasons_are_counted_by_kind_whatever_their_details() -> None:
    recorder = SummaryRecorder(FakeAllocator())
    for number in range(1000):
        recorder.rejected(Request("x", 0, 1, 1), f"never_fits: needs {number} slots")
    recorder.rejected(Request("x", 0, 1, 1), "prompt_too_long")
    requests = recorder.summary()["requests"]
    assert requests["rejected_by_reason"] == {"never_fits": 1000, "prompt_too_long": 1}


def test_an_open_ended_window_ends_with_the_run() -> None:
    measured = run(window=(S, 2**63 - 1))["measured"]
    assert (measured["from_s"], measured["to_s"], measured["duration_s"]) == (1, 10, 9)


def test_a_tee_hands_everything_to_each_recorder() -> None:
    recorders = [SummaryRecorder(FakeAllocator()) for _ in range(2)]
    tee = Tee(*recorders)
    tee.step(plan(num_running=1), 0, 10)
    tee.idle(10, 5)
    tee.request(sequence(first=10, end=10), "finished")
    tee.rejected(Request("x", 0, 1, 1), "no")
    first, second = (recorder.summary() for recorder in recorders)
    assert first == second
    assert first["requests"]["submitted"] == 2
    assert first["duration_s"] == 15 / 1e9
