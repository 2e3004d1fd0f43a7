"""Drives a scheduler by step index and writes rows in the recordings' format."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any

from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.recordings.build import RecordedAllocator, build_allocator, build_scheduler
from kvsim.recordings.prompts import Segments, segments_of

STALL_ROWS = 4
"""A recording ends after this many steps in a row that schedule nothing while nothing arrives."""


class Replay:
    """Replays recorded requests: arrivals, then aborts, then one step, as the recorder did.

    Iterating yields rows; `totals` is complete afterwards.
    """

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.allocator = build_allocator(config)
        self.scheduler = build_scheduler(config, self.allocator)
        self.totals: dict[str, Any] = {
            "steps": 0,
            "last_step": 0,
            "finished": 0,
            "rejected": 0,
            "preemptions": 0,
            "hit_tokens": 0,
            "scheduled_tokens": 0,
            "evicted_blocks": 0,
            "stalled": None,
        }
        self._in_flight: deque[tuple[int, StepPlan]] = deque()
        self._just_left = False
        """Whether a request left since the last `schedule()`: the real loop runs once more."""
        self._arrivals: dict[int, list[Request]] = {}
        self._aborts: dict[int, list[str]] = {}
        self._last_arrival = max((item["arrival_step"] for item in requests), default=-1)
        chunk = config.get("hash_id_tokens") or 1
        prompts = [segments_of(item, chunk, f"request {item['id']}") for item in requests]
        repeated = {stream for segments in prompts for stream, _ in segments or ()}
        for item, segments in zip(requests, prompts, strict=True):
            request = _request(item, segments, repeated)
            self._arrivals.setdefault(item["arrival_step"], []).append(request)
            if item.get("abort_step") is not None:
                self._aborts.setdefault(item["abort_step"], []).append(item["id"])
        self._event_steps = sorted({*self._arrivals, *self._aborts})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        step, empty_rows = 0, 0
        while True:
            row: dict[str, Any] = {"step": step}
            self._arrive(step, row)
            self._abort(step, row)
            if self.scheduler.is_async:
                works = self._async_step(step, row)
            else:
                works = self._sync_step(step, row)
            if works:
                row["free_end"] = self.allocator.free_count()
            empty_rows = empty_rows + 1 if works and not row.get("sched") else 0
            if len(row) > 1:
                self.totals["steps"] += 1
                yield row
            if not works and self._last_arrival <= step:
                break
            step = step + 1 if works else self._next_event(step)
            if empty_rows >= STALL_ROWS and self._last_arrival < step:
                waiting = self.scheduler.waiting
                self.totals["stalled"] = [sequence.request.request_id for sequence in waiting]
                break
        self.totals["last_step"] = step

    def _next_event(self, step: int) -> int:
        """The next step at which something arrives or is cancelled; idle steps have no row."""
        index = bisect_right(self._event_steps, step)
        return self._event_steps[index] if index < len(self._event_steps) else step + 1

    def _arrive(self, step: int, row: dict[str, Any]) -> None:
        rejected = []
        for request in self._arrivals.get(step, ()):
            reason = self.scheduler.refuse(request)
            if reason is None:
                self.scheduler.add(request)
            else:
                rejected.append([request.request_id, reason])
        if rejected:
            row["rejected"] = rejected
            self.totals["rejected"] += len(rejected)

    def _abort(self, step: int, row: dict[str, Any]) -> None:
        aborted = [name for name in self._aborts.get(step, ()) if self.scheduler.abort(name)]
        if aborted:
            row["aborted"] = aborted
            self._just_left = True

    def _sync_step(self, step: int, row: dict[str, Any]) -> bool:
        if not self.scheduler.has_work():
            return False
        self._complete(self._schedule(row), row)
        return True

    def _async_step(self, step: int, row: dict[str, Any]) -> bool:
        """One turn of the loop with two batches in flight (vllm/SPEC.md section 1).

        The oldest output is processed unless there is room for one more and something to schedule.
        """
        if self.scheduler.has_work() or self._just_left:
            self._just_left = False
            plan = self._schedule(row)
            self._in_flight.append((step, plan))
            more = row["sched"] or self.scheduler.has_work()
            if more and len(self._in_flight) < 2:
                row["upd"] = None
                return True
        elif not self._in_flight:
            return False
        row["upd"], plan = self._in_flight.popleft()
        self._complete(plan, row)
        return True

    def _schedule(self, row: dict[str, Any]) -> StepPlan:
        cache = self.allocator.cache
        evicted = cache.evicted if cache else 0
        plan = self.scheduler.schedule()
        row.update(describe(plan, self.scheduler, self.allocator))
        if cache and cache.evicted > evicted:
            row["evicted"] = cache.evicted - evicted
            self.totals["evicted_blocks"] += row["evicted"]
        self.totals["preemptions"] += len(plan.preempted)
        self.totals["scheduled_tokens"] += plan.scheduled_tokens
        self.totals["hit_tokens"] += sum(plan.hits)
        return plan

    def _complete(self, plan: StepPlan, row: dict[str, Any]) -> None:
        finished = self.scheduler.complete(plan)
        if finished:
            row["finished"] = [[_name(sequence), "length"] for sequence in finished]
            self.totals["finished"] += len(finished)
            self._just_left = True
        drafts = [
            [_name(outcome.sequence), outcome.verified_tokens, outcome.accepted_tokens]
            for outcome in plan.outcomes
            if outcome.verified_tokens
        ]
        if drafts:
            row["drafts"] = drafts


def _request(item: dict[str, Any], segments: Segments | None, repeated: set[Any]) -> Request:
    name = item["id"]
    output = f"out:{name}"
    return Request(
        name,
        item["arrival_step"],
        item["prompt_tokens"],
        item["output_tokens"],
        priority=item.get("priority") or 0,
        segments=segments,
        output_stream=output if output in repeated else None,
    )


def describe(
    plan: StepPlan, scheduler: VllmScheduler, allocator: RecordedAllocator
) -> dict[str, Any]:
    """One row as recorded after `schedule()`."""
    running = scheduler.running()
    row: dict[str, Any] = {
        "sched": [[_name(sequence), tokens] for sequence, tokens in plan.scheduled()],
        "waiting": plan.num_waiting,
        "free": allocator.free_count(),
        "running": [_name(sequence) for sequence in running],
        "computed": [scheduler.computed_tokens(sequence) for sequence in running],
        "blocks": [_blocks(sequence) for sequence in running],
        "crc_free": zlib.crc32(",".join(map(str, allocator.pool.free_ids())).encode()),
        "crc_tables": zlib.crc32(";".join(_tables(sequence) for sequence in running).encode()),
    }
    if allocator.cache:
        row["hashes"] = allocator.cache.num_keys()
    if plan.preempted:
        row["preempted"] = [_name(sequence) for sequence in plan.preempted]
    if plan.admitted:
        row["admitted"] = [
            [_name(sequence), hit, "resumed" if sequence.admissions > 1 else "new"]
            for sequence, hit in zip(plan.admitted, plan.hits, strict=True)
        ]
    return row


def _name(sequence: Sequence) -> str:
    return sequence.request.request_id


def _group_tables(sequence: Sequence) -> list[list[int]]:
    return sequence.tables or [sequence.table]


def _blocks(sequence: Sequence) -> int | list[int]:
    counts = [len(table) - table.count(0) for table in _group_tables(sequence)]
    return counts if len(counts) > 1 else counts[0]


def _tables(sequence: Sequence) -> str:
    tables = "|".join(",".join(map(str, table)) for table in _group_tables(sequence))
    return f"{_name(sequence)}:{tables}"
