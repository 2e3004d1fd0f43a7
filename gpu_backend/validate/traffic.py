"""The requests of a validation's runs: the scenario's own, at the rate of a load."""

from __future__ import annotations

from itertools import islice

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.scenario.build_workload import build_workload
from kvsim.scenario.settings import Scenario


def first_requests(scenario: Scenario, seed: int, strict_traces: bool) -> list[Request]:
    """The first `validation.requests` of the workload. Raises InputError for fewer than two."""
    traffic = build_workload(scenario.workload, seed=seed, strict_traces=strict_traces)
    requests = list(islice(traffic.workload, scenario.validation.requests))
    if len(requests) < 2:
        raise InputError(
            f"the workload has {len(requests)} requests, a validation needs 2 and more",
            where="workload",
            fix="Generate more, or name a longer trace",
        )
    return requests


def all_at_once(requests: list[Request]) -> list[Request]:
    """The requests of a closed loop: all are due from the start."""
    return [request._replace(arrival_ns=0) for request in requests]


def at_rate(requests: list[Request], rate_rps: float) -> list[Request]:
    """The same order and the same gaps, stretched to so many arrivals per second."""
    first, last = requests[0].arrival_ns, requests[-1].arrival_ns
    if last == first:
        raise InputError(
            "all requests arrive at once: there is no open loop to stretch",
            where="workload.arrivals",
            fix="Choose arrivals with gaps, for example {kind: poisson, rate_rps: 1}",
        )
    wanted = (len(requests) - 1) / rate_rps * 1e9
    scale = wanted / (last - first)
    return [
        request._replace(arrival_ns=round((request.arrival_ns - first) * scale))
        for request in requests
    ]
