"""The requests of a workload as columns, the conversations among them, and their load over time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.core.request import Request
from kvsim.workload.base import NS_PER_S, Workload
from kvsim.workload.chunks import PER_SCOPE, UNIQUE
from kvsim.workload.trace import TraceWorkload

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
MAX_INTERVALS = 300
_DAY_S = 86_400
_WIDTHS_S = (
    *(digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0 * hours for hours in (1, 2, 3, 6, 12)),
)
"""Widths of intervals that people read easily; beyond them come whole days."""


class Sessions(NamedTuple):
    """Conversations: requests of which each continues another one."""

    basis: str
    """How they are known: a sentence without a full stop."""
    turns: Ints
    """Requests of each session."""
    think_s: Floats
    """Of each request that continues another: seconds from that one's arrival to its own."""


class Demand(NamedTuple):
    """The requests of a workload in arrival order."""

    arrivals_ns: Ints | None
    """From the start of the workload; None where the source holds lengths only."""
    prompt_tokens: Ints
    output_tokens: Ints
    sessions: Sessions | None
    """None where the source says nothing of them."""
    segments: int
    """Segments of all prompts: what an analysis of shared prefixes has to go through."""

    def __len__(self) -> int:
        return len(self.prompt_tokens)


class Intervals(NamedTuple):
    """What arrives in intervals of one width, the first of which starts at `start_s`."""

    width_s: float
    start_s: float
    requests: Ints
    prompt_tokens: Ints
    output_tokens: Ints


def demand_of(workload: Workload, *, timed: bool = True) -> Demand:
    """Read all requests once. A session is told by parents, repeated answers, or a WEKA id.

    `timed` is false where the arrivals are made up and only the lengths mean something.
    """
    links = _Links(scoped=isinstance(workload, TraceWorkload) and workload.kind == "weka")
    rows = []
    segments = 0
    for request in workload:
        rows.append((request.arrival_ns, request.prompt_tokens, request.output_tokens))
        segments += len(request.segments or ())
        links.add(request)
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    arrivals, prompts, outputs = table.T
    return Demand(arrivals if timed else None, prompts, outputs, links.sessions(arrivals), segments)


class _Links:
    """Which request continues which."""

    def __init__(self, *, scoped: bool) -> None:
        self._scoped = scoped
        self._names: dict[str, int] = {}
        self._answers: dict[Hashable, int] = {}
        self._scopes: dict[int, int] = {}
        self._parents: list[int] = []
        self._without: list[int] = []
        """Requests of which a source with session ids does not say the session."""
        self._basis: dict[str, None] = {}

    def add(self, request: Request) -> None:
        """The next request in arrival order."""
        place = len(self._parents)
        parent = self._scope(request, place) if self._scoped else self._parent(request)
        self._parents.append(parent)
        self._names[request.request_id] = place
        if request.output_stream is not None:
            self._answers[request.output_stream] = place

    def _parent(self, request: Request) -> int:
        if request.fork is not None:
            self._basis["the trace names each request's parent"] = None
            return self._names.get(request.fork.parent_id, -1)
        if self._answers:
            for stream, _ in reversed(request.segments or ()):
                if stream in self._answers:
                    self._basis["a prompt repeats the answer to an earlier one"] = None
                    return self._answers[stream]
        return -1

    def _scope(self, request: Request, place: int) -> int:
        """The request before it in the session whose number its chunk ids carry."""
        stream: Any = request.segments[0][0] if request.segments else UNIQUE
        if not isinstance(stream, int) or stream == UNIQUE:
            self._without.append(place)
            return -1
        self._basis["the trace gives each request's session"] = None
        scope = stream // PER_SCOPE
        before = self._scopes.get(scope, -1)
        self._scopes[scope] = place
        return before

    def sessions(self, arrivals_ns: Ints) -> Sessions | None:
        """All sessions; a request without others is one of its own."""
        if not self._basis:
            return None
        roots: list[int] = []
        for place, parent in enumerate(self._parents):
            roots.append(place if parent < 0 else roots[parent])
        counts = np.bincount(roots, minlength=len(roots))
        counts[self._without] = 0
        parents = np.array(self._parents, dtype=np.int64)
        later = np.flatnonzero(parents >= 0)
        think = (arrivals_ns[later] - arrivals_ns[parents[later]]) / NS_PER_S
        return Sessions(", or ".join(self._basis), counts[counts > 0], think)


def intervals(demand: Demand, most: int = MAX_INTERVALS) -> Intervals | None:
    """Arrivals in at most `most` intervals of a width that is easy to read.

    None where there are no arrival times, or all requests arrive at once.
    """
    arrivals = demand.arrivals_ns
    if arrivals is None or not len(arrivals) or arrivals[0] == arrivals[-1]:
        return None
    width_ns = _width_ns(int(arrivals[0]), int(arrivals[-1]), most)
    first = int(arrivals[0]) // width_ns
    places = arrivals // width_ns - first
    count = int(places[-1]) + 1

    def totals(values: Ints) -> Ints:
        found = np.zeros(count, dtype=np.int64)
        np.add.at(found, places, values)
        return found

    return Intervals(
        width_ns / NS_PER_S,
        first * width_ns / NS_PER_S,
        np.bincount(places, minlength=count),
        totals(demand.prompt_tokens),
        totals(demand.output_tokens),
    )


def _width_ns(first: int, last: int, most: int) -> int:
    for width_s in _WIDTHS_S:
        width = round(width_s * NS_PER_S)
        if last // width - first // width < most:
            return width
    days = -(-(last - first) // (most * _DAY_S * NS_PER_S))
    while last // (days * _DAY_S * NS_PER_S) - first // (days * _DAY_S * NS_PER_S) >= most:
        days += 1
    return days * _DAY_S * NS_PER_S
