"""The queue in front of a scheduler (vllm/SPEC.md sections 2b and 2c)."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol

from kvsim.core.request import Sequence


class WaitingQueue(Protocol):
    """Sequences without memory, in the order in which they are admitted."""

    def add(self, sequence: Sequence) -> None:
        """Take a request that arrives."""

    def requeue(self, sequence: Sequence) -> None:
        """Take back a preempted sequence."""

    def head(self) -> Sequence:
        """The next one; the queue is not empty."""

    def pop(self) -> Sequence:
        """Take out the next one."""

    def remove(self, sequence: Sequence) -> None:
        """Take out one that is in the queue."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """In order."""
        ...


class FcfsQueue(deque[Sequence]):
    """First come first served; a preempted sequence goes to the front."""

    add = deque.append
    requeue = deque.appendleft
    pop = deque.popleft

    def head(self) -> Sequence:
        """The one that came first."""
        return self[0]


class PriorityQueue:
    """Smallest (priority, arrival, request id) first; ids are compared as text."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, str], int, Sequence]] = []
        self._next = 0

    def add(self, sequence: Sequence) -> None:
        """File by priority."""
        request = sequence.request
        key = (request.priority, request.arrival_ns, request.request_id)
        heapq.heappush(self._heap, (key, self._next, sequence))
        self._next += 1

    requeue = add

    def head(self) -> Sequence:
        """The most urgent one."""
        return self._heap[0][2]

    def pop(self) -> Sequence:
        """Take out the most urgent one."""
        return heapq.heappop(self._heap)[2]

    def remove(self, sequence: Sequence) -> None:
        """Take out one, looking through all: rare."""
        self._heap = [item for item in self._heap if item[2] is not sequence]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (item[2] for item in sorted(self._heap, key=lambda item: item[:2]))


class LastAdmitted:
    """First come first served: the victim is the one admitted last."""

    def admitted(self, sequence: Sequence, members: Mapping[int, Sequence]) -> None:
        """Nothing to remember."""

    def choose(self, members: dict[int, Sequence]) -> Sequence:
        """The last of the running."""
        return members[next(reversed(members))]


class LeastUrgent:
    """The victim is the greatest (priority, arrival), the first in running order on a tie.

    The request id is not looked at (vllm/SPEC.md section 2a).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []

    def admitted(self, sequence: Sequence, members: Mapping[int, Sequence]) -> None:
        """Remember a sequence that runs from now on."""
        if len(self._heap) > 2 * len(members) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in members]
            heapq.heapify(self._heap)
        request = sequence.request
        heapq.heappush(self._heap, (-request.priority, -request.arrival_ns, sequence.order))

    def choose(self, members: dict[int, Sequence]) -> Sequence:
        """Entries of sequences that no longer run are dropped as they come up."""
        heap = self._heap
        while heap[0][2] not in members:
            heapq.heappop(heap)
        return members[heap[0][2]]
