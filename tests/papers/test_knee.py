"""Normalized latencies and the rate at which they reach a limit, on servers solved by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvsim.core.request import Request
from kvsim.papers.knee import knee_rps, normalized_latencies
from kvsim.papers.target import NoResultError
from kvsim.scenario import Scenario

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


def test_a_request_that_does_not_finish_stops_the_measurement() -> None:
    with pytest.raises(NoResultError, match="request long was rejected: prompt_too_long"):
        normalized_latencies(server("orca", 1), [Request("long", 0, 100, 1)])
