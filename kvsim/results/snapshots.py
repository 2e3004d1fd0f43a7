"""Physical maps of the memory at chosen moments of a run, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence, State
from kvsim.results.histogram import NS_PER_S
from kvsim.results.memory_views import Holder, MemoryView, memory_view

SNAPSHOTS_NAME = "snapshots.json"
REGULAR = "regular"
PREEMPTION, HELD_UP = "preemption", "held up"
EVENTS = (PREEMPTION, HELD_UP)
"""A step that preempts; one with which fragmentation begins to hold up the head of the queue."""
MOST = ("most external", "most allocated", "most waiting")
WHYS = (REGULAR, *EVENTS, *MOST)
"""Why a moment was chosen."""
MAX_REGULAR = 24
MAX_EVENTS = 12
"""Moments of each kind of event."""
MAX_MOMENTS = MAX_REGULAR + len(EVENTS) * MAX_EVENTS + len(MOST)
MAX_REQUESTS = 5_000
MAX_EXTENTS = 60_000
"""Per snapshot; what is beyond is counted in `left_out`."""
TOLERANCE = 0.01
"""A moment is the one of most x within this share of the run's maximum."""

_FIRST_INTERVAL_NS = 1_000_000
_CAPTURED_BLOCKS = 1 << 19
_MIN_REGULAR, _MIN_EVENTS = 4, 2
_MAX_ID = 200


class _Moment(NamedTuple):
    start_ns: int
    why: str
    waiting: int
    external_slots: int
    holders: list[Holder]
    rest: Any


class _Thinned:
    """The first moments of equal intervals; above `most` of them the interval doubles.

    So many moments of a long run cost `most` looks and the logarithm of its length more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._interval_ns = _FIRST_INTERVAL_NS
        self._next_ns = 0
        self.kept: list[_Moment] = []

    def wants(self, start_ns: int) -> bool:
        """Whether the interval of this time has no moment yet."""
        return start_ns >= self._next_ns

    def keep(self, moment: _Moment) -> None:
        """Add the moment of an interval that has none; those too many go."""
        kept = [*self.kept, moment]
        while len(kept) > self._most:
            self._interval_ns *= 2
            by_interval: dict[int, _Moment] = {}
            for one in kept:
                by_interval.setdefault(one.start_ns // self._interval_ns, one)
            kept = list(by_interval.values())
        self.kept = kept
        self._next_ns = (moment.start_ns // self._interval_ns + 1) * self._interval_ns


class SnapshotRecorder:
    """Takes the map after `schedule()` at regular moments, at events and at the run's extremes.

    Regular moments are the first steps of equal intervals; when more than 24 are kept (fewer, but
    4, for pools of more than 21,845 blocks, so that all of them together hold 524,288), every
    second one goes and the interval doubles. Events are the steps that preempt, and those with
    which the head of the queue begins to be held up by fragmentation: of each kind the first ones
    of equal intervals, thinned in the same way to 12 (fewer, but 2, for large pools). The moments
    of most external fragmentation, most allocated slots and most waiting requests are taken again
    whenever the value exceeds the one taken by more than 1 %: so they are the run's maximum within
    that, and the number of looks grows with the logarithm of the maximum only.

    `running` lists what holds memory (`Scheduler.running`); it is called only when a map is taken.
    """

    def __init__(self, allocator: Allocator, running: Callable[[], list[Sequence]]) -> None:
        self._allocator = allocator
        self._running = running
        self._view: MemoryView = memory_view(allocator)
        room = _CAPTURED_BLOCKS // allocator.num_blocks
        self._thinned = {
            REGULAR: _Thinned(min(MAX_REGULAR, max(_MIN_REGULAR, room))),
            **{
                why: _Thinned(min(MAX_EVENTS, max(_MIN_EVENTS, room // len(EVENTS))))
                for why in EVENTS
            },
        }
        self._was_held_up = False
        self._extremes: dict[str, _Moment] = {}
        self._thresholds = dict.fromkeys(MOST, 0.0)

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Take the map if this is a moment to keep."""
        taken = None
        begins = plan.head_held_up and not self._was_held_up
        self._was_held_up = plan.head_held_up
        for why, happens in ((REGULAR, True), (PREEMPTION, plan.preempted), (HELD_UP, begins)):
            if happens and self._thinned[why].wants(start_ns):
                taken = taken or self._take(plan, start_ns, why)
                self._thinned[why].keep(taken._replace(why=why))
        allocated = self._allocator.usage.allocated
        external = self._allocator.capacity_slots - allocated if plan.head_held_up else 0
        for why, value in zip(MOST, (external, allocated, plan.num_waiting), strict=True):
            if value > self._thresholds[why]:
                taken = taken or self._take(plan, start_ns, why)
                self._extremes[why] = taken._replace(why=why)
                self._thresholds[why] = value * (1 + TOLERANCE)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Nothing is taken: nothing runs."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Nothing is taken."""

    def rejected(self, request: Request, reason: str) -> None:
        """Nothing is taken."""

    def snapshots(self) -> dict[str, Any]:
        """The content of `snapshots.json`: moments in the order of time.

        `capacity_slots`, `block_size`, `kind`, `tolerance` of the extremes, and `snapshots` with
        `time_s`, `why`, `waiting` requests, `external_slots`, `requests` in running order, `free`,
        `shared` (`memory_views.Layout`) and `left_out` (requests, slots) where a limit was reached.
        """
        thinned = (one for kept in self._thinned.values() for one in kept.kept)
        moments = sorted(
            [*thinned, *self._extremes.values()],
            key=lambda moment: (moment.start_ns, WHYS.index(moment.why)),
        )
        return {
            "capacity_slots": self._allocator.capacity_slots,
            "block_size": self._allocator.block_size,
            "kind": self._view.kind,
            "tolerance": TOLERANCE,
            "snapshots": [self._describe(moment) for moment in moments],
        }

    def _take(self, plan: StepPlan, start_ns: int, why: str) -> _Moment:
        allocator, view = self._allocator, self._view
        free = allocator.capacity_slots - allocator.usage.allocated
        holders = [
            Holder(
                sequence.request.request_id,
                tokens_after_step(allocator, sequence),
                sequence.final_tokens,
                view.capture(sequence),
            )
            for sequence in self._running()
        ]
        external = free if plan.head_held_up else 0
        rest = view.capture_rest()
        return _Moment(start_ns, why, plan.num_waiting, external, holders, rest)

    def _describe(self, moment: _Moment) -> dict[str, Any]:
        layout = self._view.describe(moment.holders, moment.rest)
        listed: list[dict[str, Any]] = []
        extents = 0
        for request in layout.requests:
            extents += len(request["extents"])
            if extents > MAX_EXTENTS or len(listed) == MAX_REQUESTS:
                break
            listed.append({**request, "id": _short(request["id"])})
        rest = layout.requests[len(listed) :]
        slots = sum(extent[1] for request in rest for extent in request["extents"])
        return {
            "time_s": moment.start_ns / NS_PER_S,
            "why": moment.why,
            "waiting": moment.waiting,
            "external_slots": moment.external_slots,
            "requests": listed,
            "free": layout.free[:MAX_EXTENTS],
            "shared": layout.shared[:MAX_EXTENTS],
            "left_out": {"requests": len(rest), "slots": slots},
            **layout.extra,
        }


def tokens_after_step(allocator: Allocator, sequence: Sequence) -> int:
    """Computed tokens, this step's included; only a decode's own count is not current."""
    if sequence.state is State.DECODING:
        return allocator.live_tokens(sequence) + 1
    return sequence.computed


def snapshots_text(snapshots: Mapping[str, Any]) -> str:
    """The bytes of `snapshots.json`: ASCII, one line per snapshot."""
    head = {name: value for name, value in snapshots.items() if name != "snapshots"}
    lines = [json.dumps(one, separators=(",", ":")) for one in snapshots["snapshots"]]
    return json.dumps(head)[:-1] + ', "snapshots": [\n' + ",\n".join(lines) + "\n]}\n"


def _short(request_id: str) -> str:
    return request_id if len(request_id) <= _MAX_ID else request_id[: _MAX_ID - 1] + "…"
