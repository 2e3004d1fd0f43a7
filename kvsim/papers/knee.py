"""The request rate at which a system's normalized latency reaches a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import sqrt
from statistics import fmean

from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.papers.target import NoResultError
from kvsim.scenario import Scenario, build_server
from kvsim.sim import run_replica

NS_PER_S = 1_000_000_000
RATES_RPS = (0.05, 12.8)
"""Searched for every knee of every system: they come from no paper."""


Enough = Callable[[list[float]], bool]
"""Whether latencies that are at least these decide what is asked."""
LOOKS = 50
"""Times in a run at which `Enough` is asked."""


class EnoughError(Exception):
    """The rest of a run need not be run."""


class NormalizedLatencies:
    """Collects end-to-end latency / output tokens of every request, in seconds per token.

    With `whole_batches` an answer is given back when its batch ends, as FasterTransformer does: a
    static scheduler admits the next batch in the step after that. Of `count` requests, raises
    `EnoughError` once it is `enough` that those without an answer take no time at all.
    """

    def __init__(
        self, *, whole_batches: bool, count: int = 0, enough: Enough = lambda values: False
    ) -> None:
        self._whole_batches = whole_batches
        self._count = count
        self._enough = enough
        self._look_every = max(count // LOOKS, 1)
        self._batch: list[Sequence] = []
        self._step_end_ns = 0
        self._values: list[float] = []

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """See `Recorder`."""
        if plan.admitted:
            self._deliver()
        self._step_end_ns = start_ns + duration_ns

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Nothing."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """See `Recorder`. Every request must finish."""
        if outcome != "finished":
            raise NoResultError(f"request {sequence.request.request_id} is {outcome}")
        if self._whole_batches:
            self._batch.append(sequence)
        else:
            self._add(sequence, sequence.finished_ns)

    def rejected(self, request: Request, reason: str) -> None:
        """See `Recorder`. No request may be rejected."""
        raise NoResultError(f"request {request.request_id} was rejected: {reason}")

    def values(self) -> list[float]:
        """All latencies; to be read once the run has ended."""
        self._deliver()
        return self._values

    def at_least(self) -> list[float]:
        """What the latencies of all requests cannot be below: 0 of those without an answer."""
        return self._values + [0.0] * (self._count - len(self._values))

    def _deliver(self) -> None:
        for sequence in self._batch:
            self._add(sequence, self._step_end_ns)
        self._batch.clear()

    def _add(self, sequence: Sequence, end_ns: int) -> None:
        output = sequence.tokens - sequence.request.prompt_tokens
        self._values.append((end_ns - sequence.arrived_ns) / NS_PER_S / output)
        if len(self._values) % self._look_every == 0 and self._enough(self.at_least()):
            raise EnoughError


def normalized_latencies(
    settings: Scenario, requests: Iterable[Request], enough: Enough = lambda values: False
) -> list[float]:
    """Of every request, in seconds per token. A static scheduler gives back whole batches.

    The run ends when it is `enough` that the requests without an answer take no time; they count
    as 0 then. Raises `NoResultError` if a request is rejected, or if one never ends in a run that
    is not cut short.
    """
    server = build_server(settings)
    requests = list(requests)
    recorder = NormalizedLatencies(
        whole_batches=settings.engine.scheduler == "static", count=len(requests), enough=enough
    )
    for request in requests:
        reason = server.scheduler.refuse(request)
        if reason is not None:
            recorder.rejected(request, reason)
    try:
        run_replica(requests, server.scheduler, server.sizing.clock, recorder)
        return recorder.values()
    except EnoughError:
        return recorder.at_least()


def knee_rps(
    settings: Scenario,
    requests_at: Callable[[float], Iterable[Request]],
    *,
    limit_s: float,
    rates_rps: tuple[float, float] = RATES_RPS,
    halvings: int = 6,
    average: Callable[[list[float]], float] = fmean,
) -> float:
    """The rate at which the average of the normalized latencies reaches `limit_s`.

    Doubles the lower of `rates_rps` until the limit is reached, then halves the ratio of the two
    rates that enclose the knee so many times: the geometric middle of what is left is within
    2 ** 0.5 ** (halvings + 1) of it. `average` must not fall when a latency rises: runs are cut
    short by that. Raises `NoResultError` if the limit is reached at the lower rate already, or at
    no rate up to the higher one.
    """

    def saturates(rate: float) -> bool:
        def enough(latencies: list[float]) -> bool:
            return average(latencies) >= limit_s

        return enough(normalized_latencies(settings, requests_at(rate), enough))

    lowest, highest = rates_rps
    low = lowest
    if saturates(low):
        raise NoResultError(f"no knee: {low:g} requests/s already take {limit_s:g} s/token")
    while not saturates(2 * low):
        low *= 2
        if 2 * low > highest:
            raise NoResultError(
                f"no knee: up to {low:g} requests/s take less than {limit_s:g} s/token"
            )
    high = 2 * low
    for _ in range(halvings):
        middle = sqrt(low * high)
        if saturates(middle):
            high = middle
        else:
            low = middle
    return sqrt(low * high)
