from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.results import LogHistogram
from kvsim.results.intervals import t_quantile
from kvsim.results.merge import SeedOutcome, leaves, merge_seeds, merge_values
from tests.results.fakes import S

VALUES = st.lists(st.integers(0, 10**12), max_size=50)


def histogram(values_ns: list[int]) -> LogHistogram:
    made = LogHistogram()
    for value in values_ns:
        made.add(value)
    return made


def outcome(seed: int, ttft_s: list[int], **entry: Any) -> SeedOutcome:
    latencies = histogram([value * S for value in ttft_s])
    whole = {"stuck": None, "ttft_s": latencies.seconds(), **entry}
    return SeedOutcome(seed, whole, {"ttft_s": latencies})


@given(VALUES, VALUES, st.sampled_from([0, 0.5, 0.9, 0.99, 1]))
def test_merged_histograms_are_those_of_all_values(a: list[int], b: list[int], q: float) -> None:
    merged = histogram(a)
    merged.merge(histogram(b))
    whole = histogram(a + b)
    assert merged.seconds() == whole.seconds()
    assert (merged.count, merged.sum_ns) == (whole.count, whole.sum_ns)
    assert (merged.min_ns, merged.max_ns) == (whole.min_ns, whole.max_ns)
    assert merged.quantile(q) == whole.quantile(q)


def test_two_seeds_by_hand() -> None:
    """Mean batch (1 + 3) / 2; latencies 1, 1, 1 s and 5 s pooled: mean 2, p50 1, p99 5, 4 of them.

    The batch's half-width is t(1) * sqrt(2 * 1 / 2) = 12.706; the pooled mean 2 of seeds with means
    1 and 5 deviates by 1 and 3: 12.706 * sqrt(10 / 2).
    """
    merged = merge_seeds(
        [
            outcome(4, [1, 1, 1], batch={"mean": 1.0, "max": 2}, steps=7),
            outcome(9, [5], batch={"mean": 3.0, "max": 2}, steps=7),
        ]
    )
    assert merged["batch"] == {"mean": 2.0, "max": 2}
    assert merged["steps"] == 7
    assert type(merged["steps"]) is int
    pooled = merged["ttft_s"]
    assert (pooled["mean"], pooled["max"], pooled["count"]) == (2, 5, 4)
    assert (pooled["p50"], pooled["p99"]) == pytest.approx((1, 5), rel=1e-3)
    assert list(merged["intervals"]) == [f"ttft_s.{p}" for p in ("mean", "p50", "p90", "p99")] + [
        "batch.mean"
    ]
    t = t_quantile(1)
    assert merged["intervals"]["batch.mean"] == pytest.approx([2 - t, 2 + t])
    assert merged["intervals"]["ttft_s.mean"] == pytest.approx([2 - t * 5**0.5, 2 + t * 5**0.5])
    assert [entry["seed"] for entry in merged["per_seed"]] == [4, 9]
    assert merged["per_seed"][1]["ttft_s"]["mean"] == 5
    assert merged["per_seed"][0]["batch"] == {"mean": 1.0, "max": 2}


def test_a_figure_that_one_seed_lacks_is_undefined_and_has_no_interval() -> None:
    merged = merge_seeds([outcome(0, [1], batch={"mean": None}), outcome(1, [], batch={"mean": 2})])
    assert merged["batch"]["mean"] is None
    assert merged["ttft_s"]["mean"] == 1
    assert merged["intervals"] == {}


def test_a_reason_that_a_seed_never_met_counts_as_zero_there() -> None:
    merged = merge_seeds(
        [
            outcome(0, [1], requests={"rejected_by_reason": {"prompt_too_long": 4}}),
            outcome(1, [1], requests={"rejected_by_reason": {}}),
        ]
    )
    assert merged["requests"]["rejected_by_reason"] == {"prompt_too_long": 2}
    assert "requests.rejected_by_reason.prompt_too_long" in merged["intervals"]


def test_the_first_stuck_seed_is_reported() -> None:
    stuck = {"at_s": 3.0, "reason": "full"}
    merged = merge_seeds([outcome(5, [1]), outcome(6, [1], stuck=stuck)])
    assert merged["stuck"] == {"seed": 6, "at_s": 3.0, "reason": "full"}
    assert merge_seeds([outcome(5, [1]), outcome(6, [1])])["stuck"] is None


def test_what_all_seeds_share_stays_as_it_is() -> None:
    assert merge_values([0.1, 0.1, 0.1]) == 0.1
    assert merge_values(["fixed", "fixed"]) == "fixed"
    assert merge_values([[1, 2], [1, 2]]) == [1, 2]
    assert merge_values(["fixed", "linear"]) is None


def test_figures_are_the_numbers_of_an_entry_but_those_of_its_set_up() -> None:
    entry = {
        "steps": 3,
        "memory": {"by_time": {"live": 0.5}},
        "throughput": {"goodput_rps": None},
        "setup": {"num_blocks": 9},
        "stuck": None,
        "intervals": {"steps": [1, 2]},
        "per_seed": [{"seed": 0}],
        "flag": True,
    }
    assert dict(leaves(entry)) == {
        "steps": 3,
        "memory.by_time.live": 0.5,
        "throughput.goodput_rps": None,
    }


@given(st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=6), min_size=2, max_size=5))
def test_every_figure_lies_in_its_interval(seeds: list[list[int]]) -> None:
    merged = merge_seeds(
        [outcome(n, values, batch={"mean": float(sum(values))}) for n, values in enumerate(seeds)]
    )
    figures = dict(leaves(merged))
    for path, (low, high) in merged["intervals"].items():
        assert low < figures[path] < high
