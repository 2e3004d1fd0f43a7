"""The other side of a server: who sends requests, and when."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy
from simpy.events import URGENT, Event

from kvsim.core.request import Request


class Clients:
    """Sends a workload's requests at their times, at most `max_concurrency` at once.

    With a limit, a request whose time has come waits until another one leaves, and arrives at that
    instant. `send` must call `left` for a request that it refuses.
    """

    def __init__(
        self,
        env: simpy.Environment,
        workload: Iterable[Request],
        send: Callable[[Request], None],
        *,
        max_concurrency: int | None,
    ) -> None:
        self._env = env
        self._requests = iter(workload)
        self._next = next(self._requests, None)
        self._send = send
        self._limit = max_concurrency
        self._in_flight = 0
        self._sending = False
        self._room: Event | None = None

    def may_send(self) -> bool:
        """Whether a request can still arrive although none leaves."""
        return self._next is not None and self._has_room()

    def left(self, count: int) -> None:
        """`count` requests reached their end: their clients send the next ones that are due."""
        self._in_flight -= count
        if self._limit is None or self._sending:
            return
        self._send_due()
        if self._room is not None and (self._next is None or self._has_room()):
            self._room.succeed()
            self._room = None

    def unsent(self) -> Iterable[Request]:
        """Requests that were never sent, in order; they count as sent from now on."""
        while self._next is not None:
            yield self._next
            self._next = next(self._requests, None)

    def run(self) -> Generator[Event, Any, None]:
        """The SimPy process."""
        while self._next is not None:
            if self._next.arrival_ns > self._env.now:
                yield self._at(self._next.arrival_ns)
            self._send_due()
            if self._next is not None and not self._has_room():
                self._room = self._env.event()
                yield self._room

    def _has_room(self) -> bool:
        return self._limit is None or self._in_flight < self._limit

    def _send_due(self) -> None:
        now_ns = int(self._env.now)
        self._sending = True
        while (
            (request := self._next) is not None
            and request.arrival_ns <= now_ns
            and self._has_room()
        ):
            self._next = next(self._requests, None)
            self._in_flight += 1
            late = request.arrival_ns < now_ns
            self._send(request._replace(arrival_ns=now_ns) if late else request)
        self._sending = False

    def _at(self, time_ns: int) -> Event:
        """An event at an absolute time that comes before step ends at the same instant."""
        event = self._env.event()
        event._ok, event._value = True, None
        self._env.schedule(event, priority=URGENT, delay=time_ns - self._env.now)
        return event
