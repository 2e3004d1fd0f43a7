"""Drives the scheduler by step index and writes rows as the recordings have them."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from tests.reference.request import RefRequest
from tests.reference.scheduler import Output, ReferenceScheduler
from tests.reference.settings import Settings
from tests.reference.tokens import prompt_tokens

DEPTH = 2
"""Outputs in flight with async scheduling (section 1)."""
STALL_ROWS = 4
"""A recording ends after so many steps in a row that schedule nothing while nothing arrives."""


class ReferenceReplay:
    """Iterating yields the rows of a recording; `totals` is complete afterwards.

    Or call `row` with the steps 0, 1, 2, ... oneself.
    """

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.settings = Settings.of(config)
        self.scheduler = ReferenceScheduler(self.settings)
        self.pool = self.scheduler.manager.pool
        self.requests = requests
        self.batch_queue: deque[Output] = deque()
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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        last_arrival = max((item["arrival_step"] for item in self.requests), default=-1)
        step = empty_rows = 0
        while True:
            row = self.row(step)
            if len(row) > 1:  # section 9: idle steps give no row
                self.totals["steps"] += 1
                yield row
            is_idle = "free_end" not in row
            if is_idle and last_arrival <= step:
                break
            empty_rows = 0 if is_idle or row.get("sched") else empty_rows + 1
            step += 1
            if empty_rows >= STALL_ROWS and last_arrival < step:
                waiting = self.scheduler.waiting_in_order()
                self.totals["stalled"] = [request.request_id for request in waiting]
                break
        self.totals["last_step"] = step

    def row(self, step: int) -> dict[str, Any]:
        """Section 9: arrivals, then aborts, then one turn of the engine's loop."""
        row: dict[str, Any] = {"step": step}
        self._arrive(row)
        self._abort(row)
        if self.settings.async_scheduling:
            self._async_step(row)
        else:
            self._sync_step(row)
        return row

    def _arrive(self, row: dict[str, Any]) -> None:
        for item in self.requests:
            if item["arrival_step"] != row["step"]:
                continue
            request = RefRequest(
                item["id"],
                item["prompt_tokens"],
                item["output_tokens"],
                priority=item.get("priority") or 0,
                arrival=item["arrival_step"],
            )
            if self.settings.enable_prefix_caching:
                request.prompt_ids = prompt_tokens(item, self.settings.hash_id_tokens)
            if not self.scheduler.add(request):
                row.setdefault("rejected", []).append([request.request_id, "prompt_too_long"])
                self.totals["rejected"] += 1

    def _abort(self, row: dict[str, Any]) -> None:
        for item in self.requests:
            if item.get("abort_step") == row["step"] and self.scheduler.abort(item["id"]):
                row.setdefault("aborted", []).append(item["id"])

    # Section 1: the engine's two loops

    def _sync_step(self, row: dict[str, Any]) -> None:
        """`EngineCore.step`; the flush step is left out (section 9)."""
        if self.scheduler.waiting or self.scheduler.running:
            self._update(self._schedule(row), row)

    def _async_step(self, row: dict[str, Any]) -> None:
        """`step_with_batch_queue`: processes unless there is room and something to schedule."""
        if self.scheduler.has_requests():
            output = self._schedule(row)
            self.batch_queue.append(output)
            more = output.chunks or self.scheduler.has_requests()
            if more and len(self.batch_queue) < DEPTH:
                row["upd"] = None
                row["free_end"] = len(self.pool.free)
                return
        if self.batch_queue:
            oldest = self.batch_queue.popleft()
            row["upd"] = oldest.step
            self._update(oldest, row)

    def _schedule(self, row: dict[str, Any]) -> Output:
        evicted_before = self.pool.evicted
        output = self.scheduler.schedule(row["step"])
        evicted = self.pool.evicted - evicted_before
        row.update(describe(self.scheduler, output))
        if evicted:
            row["evicted"] = evicted
        self.totals["evicted_blocks"] += evicted
        self.totals["preemptions"] += len(output.preempted)
        # section 5: hits count on admission only
        self.totals["hit_tokens"] += sum(hit for _, hit, _ in output.admitted)
        self.totals["scheduled_tokens"] += sum(chunk.tokens for chunk in output.chunks)
        return output

    def _update(self, output: Output, row: dict[str, Any]) -> None:
        update = self.scheduler.update(output)
        if update.finished:
            row["finished"] = update.finished
        if update.drafts:
            row["drafts"] = update.drafts
        row["free_end"] = len(self.pool.free)
        self.totals["finished"] += len(update.finished)


def describe(scheduler: ReferenceScheduler, output: Output) -> dict[str, Any]:
    """The part of a row that is taken after `schedule`."""
    running = scheduler.running
    pool = scheduler.manager.pool
    row: dict[str, Any] = {
        "sched": [[chunk.request.request_id, chunk.tokens] for chunk in output.chunks],
        "waiting": len(scheduler.waiting),
        "free": len(pool.free),
        "running": [request.request_id for request in running],
        "computed": [request.computed for request in running],
        "blocks": [_block_counts(request) for request in running],
        "crc_free": _crc(",".join(str(block.block_id) for block in pool.free)),
        "crc_tables": _crc(";".join(_tables(request) for request in running)),
    }
    if scheduler.settings.enable_prefix_caching:
        row["hashes"] = len(pool.cache)
    if output.preempted:
        row["preempted"] = output.preempted
    if output.admitted:
        row["admitted"] = output.admitted
    return row


def _block_counts(request: RefRequest) -> int | list[int]:
    """Without nulls; a list where there are several groups."""
    counts = [sum(not block.is_null for block in table) for table in request.tables]
    return counts if len(counts) > 1 else counts[0]


def _tables(request: RefRequest) -> str:
    tables = [",".join(str(block.block_id) for block in table) for table in request.tables]
    return f"{request.request_id}:{'|'.join(tables)}"


def _crc(text: str) -> int:
    return zlib.crc32(text.encode())
