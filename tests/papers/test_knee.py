"""Normalized latencies and the rate at which they reach a limit, on servers solved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

import pytest

from kvsim.core.request import Request
from kvsim.papers import FIGURES, Job, fig12, knee, orca, reproduce
from kvsim.papers.knee import knee_rps, normalized_latencies
from kvsim.papers.target import NoResultError
from kvsim.scenario import Scenario
from kvsim.scenario.lengths import PoissonArrivals
from kvsim.scenario.traffic import LawWorkload

S = 1_000_000_000


def server(scheduler: str, batch: int) -> Scenario:
    """Every step takes a second; memory for everyone."""
    return Scenario.model_validate(
        {
            "version": 1,
            "engine": {"scheduler": scheduler, "max_num_seqs": batch, "max_model_len": 64},
            "memory": {
                "kind": "contiguous",
                "reserve": "oracle",
                "placement": "first_fit",
                "num_blocks": 1000,
            },
            "clock": {"kind": "fixed", "step_s": 1.0},
            "workload": {
                "num_requests": 1,
                "arrivals": {"kind": "all_at_once"},
                "lengths": {
                    "prompt": {"kind": "constant", "tokens": 1},
                    "output": {"kind": "constant", "tokens": 1},
                },
            },
        }
    )


def test_latency_is_end_to_end_over_output_tokens() -> None:
    requests = [Request("a", 0, 4, 4), Request("b", 0, 4, 2)]
    assert sorted(normalized_latencies(server("orca", 2), requests)) == [1.0, 1.0]


def test_a_static_batch_gives_every_answer_back_at_its_end() -> None:
    """a and b end with the batch at 4 s, c runs alone from 4 to 6 s."""
    requests = [Request("a", 0, 4, 4), Request("b", 0, 4, 2), Request("c", 0, 4, 2)]
    assert normalized_latencies(server("static", 2), requests) == [2.0, 1.0, 3.0]


def test_the_knee_of_a_queue_is_where_its_mean_says() -> None:
    """One server, 10 s each, 100 arrivals 1/r apart: the k-th waits k (10 - 1/r).

    The mean of (10 + wait) / 10 is 2 where 49.5 (10 - 1/r) = 10.
    """

    def requests(rate: float) -> Iterator[Request]:
        return (Request(f"r{k}", round(k * S / rate), 1, 10) for k in range(100))

    found = knee_rps(server("orca", 1), requests, limit_s=2.0, rates_rps=(0.02, 1.0), halvings=12)
    assert found == pytest.approx(1 / (10 - 10 / 49.5), rel=1e-3)


def every_second(rate: float) -> Iterator[Request]:
    """Ten requests of 4 tokens; with room for all, each takes 1 s/token at any rate."""
    return (Request(f"r{k}", round(k * S / rate), 4, 4) for k in range(10))


def test_a_server_that_never_saturates_has_no_knee() -> None:
    with pytest.raises(NoResultError, match=r"no knee: up to 8 requests/s take less than 2\.5 s"):
        knee_rps(server("orca", 10), every_second, limit_s=2.5, rates_rps=(1.0, 8.0))


def test_a_server_that_always_saturates_has_no_knee() -> None:
    with pytest.raises(NoResultError, match=r"no knee: 1 requests/s already take 0\.5 s/token"):
        knee_rps(server("orca", 10), every_second, limit_s=0.5, rates_rps=(1.0, 8.0))


@pytest.mark.parametrize("latency_s", [0.0, 100.0])
@pytest.mark.parametrize("name", ["sosp23-fig12-13b", "sosp23-fig12-66b", "orca-osdi22"])
def test_a_figure_without_knees_fails_in_every_number(
    name: str, latency_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knee, "normalized_latencies", lambda *arguments: [latency_s])
    figure = replace(FIGURES[name], seeds=(0,))
    (found,) = reproduce([figure], lengths="preset", workers=1)
    assert not found.passed
    assert [problem.partition(": no knee")[0] for problem in found.problems] == [
        f"seed 0, {part}" for part in figure.parts
    ]
    assert {row.passed for row in found.results} == {False, None}


@pytest.mark.parametrize("name", ["sosp23-fig12-13b", "sosp23-fig12-66b", "orca-osdi22"])
def test_the_rates_searched_are_the_same_for_every_system(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A latency of 1 s/token per 1 request/s: all systems have the same knee, none the paper's."""
    rates: list[float] = []

    def law(*args: object, rate_rps: float, **rest: object) -> tuple[()]:
        rates.append(rate_rps)
        return ()

    def orca_law(workload: LawWorkload, *, seed: int) -> SimpleNamespace:
        assert isinstance(workload.arrivals, PoissonArrivals)
        rates.append(workload.arrivals.rate_rps)
        return SimpleNamespace(workload=())

    monkeypatch.setattr(fig12, "Sosp23Workload", law)
    monkeypatch.setattr(orca, "build_workload", orca_law)
    monkeypatch.setattr(knee, "normalized_latencies", lambda *arguments: [rates[-1]])
    figure = FIGURES[name]
    found = [figure.measure(Job(name, part, 0, "preset"))[part] for part in figure.parts]
    limit = 0.19 if name == "orca-osdi22" else 1.0
    assert found == pytest.approx([limit] * len(found), rel=0.01)
    assert len(set(found)) == 1


def test_a_request_that_does_not_finish_stops_the_measurement() -> None:
    with pytest.raises(NoResultError, match="request long was rejected: prompt_too_long"):
        normalized_latencies(server("orca", 1), [Request("long", 0, 100, 1)])


def test_a_run_is_cut_short_only_where_the_rest_cannot_change_the_answer() -> None:
    """One server, 10 s each, all at once: answers after 10, 20, ... 1,000 s; means 0.5 k^2 / 100.

    The mean of the first k, the others counted as 0, reaches 20 s/token at the 63rd answer, and
    every second one is looked at.
    """
    requests = [Request(f"r{k}", 0, 1, 10) for k in range(100)]
    whole = normalized_latencies(server("orca", 1), requests)
    cut = normalized_latencies(server("orca", 1), requests, lambda found: fmean(found) >= 20)
    assert whole == [float(k) for k in range(1, 101)]
    assert cut == whole[:64] + [0.0] * 36
    never = normalized_latencies(server("orca", 1), requests, lambda found: fmean(found) >= 51)
    assert never == whole
    late = [*requests, Request("long", 10**12, 100, 1)]
    with pytest.raises(NoResultError, match="request long was rejected: prompt_too_long"):
        normalized_latencies(server("orca", 1), late, lambda found: fmean(found) >= 1)
