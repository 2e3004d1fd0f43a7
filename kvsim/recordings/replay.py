"""Drives a scheduler by step index and writes rows in the recordings' format."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler

STALL_ROWS = 4
"""A recording ends after this many steps in a row that schedule nothing while nothing arrives."""


def build_scheduler(config: dict[str, Any], allocator: PagedAllocator) -> VllmScheduler:
    """The scheduler that a recording's config describes."""
    return VllmScheduler(
        allocator,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        watermark=config["watermark"],
        reserve_full_isl=config["scheduler_reserve_full_isl"],
        on_never_fits="block",
    )


class Replay:
    """Replays recorded requests: arrivals, then aborts, then one step, as the recorder did.

    Iterating yields rows; `totals` is complete afterwards.
    """

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.allocator = PagedAllocator(config["num_gpu_blocks"], config["block_size"])
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
        self._arrivals: dict[int, list[Request]] = {}
        self._aborts: dict[int, list[str]] = {}
        self._last_arrival = max((item["arrival_step"] for item in requests), default=-1)
        for item in requests:
            arrival = item["arrival_step"]
            request = Request(item["id"], arrival, item["prompt_tokens"], item["output_tokens"])
            self._arrivals.setdefault(arrival, []).append(request)
            if item.get("abort_step") is not None:
                self._aborts.setdefault(item["abort_step"], []).append(item["id"])
        self._event_steps = sorted({*self._arrivals, *self._aborts})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        step, empty_rows = 0, 0
        while True:
            row: dict[str, Any] = {"step": step}
            self._arrive(step, row)
            self._abort(step, row)
            works = self.scheduler.has_work()
            if works:
                self._step(row)
                empty_rows = 0 if row["sched"] else empty_rows + 1
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

    def _step(self, row: dict[str, Any]) -> None:
        plan = self.scheduler.schedule()
        row.update(describe(plan, self.scheduler, self.allocator))
        self.totals["preemptions"] += len(plan.preempted)
        self.totals["scheduled_tokens"] += plan.scheduled_tokens
        finished = self.scheduler.complete(plan)
        if finished:
            row["finished"] = [[sequence.request.request_id, "length"] for sequence in finished]
            self.totals["finished"] += len(finished)
        row["free_end"] = self.allocator.free_count()


def describe(plan: StepPlan, scheduler: VllmScheduler, allocator: PagedAllocator) -> dict[str, Any]:
    """One row as recorded after `schedule()`."""
    running = scheduler.running()
    row: dict[str, Any] = {
        "sched": [[_name(sequence), tokens] for sequence, tokens in plan.scheduled()],
        "waiting": plan.num_waiting,
        "free": allocator.free_count(),
        "running": [_name(sequence) for sequence in running],
        "computed": [scheduler.calendar.computed_tokens(sequence) for sequence in running],
        "blocks": [len(sequence.table) for sequence in running],
        "crc_free": zlib.crc32(",".join(map(str, allocator.pool.free_ids())).encode()),
        "crc_tables": zlib.crc32(";".join(_table(sequence) for sequence in running).encode()),
    }
    if plan.preempted:
        row["preempted"] = [_name(sequence) for sequence in plan.preempted]
    if plan.admitted:
        row["admitted"] = [
            [_name(sequence), 0, "resumed" if sequence.admissions > 1 else "new"]
            for sequence in plan.admitted
        ]
    return row


def _name(sequence: Sequence) -> str:
    return sequence.request.request_id


def _table(sequence: Sequence) -> str:
    return f"{_name(sequence)}:{','.join(map(str, sequence.table))}"
