"""Runs vLLM's scheduler step by step over a list of requests and writes down what it decides.

The loops are those of vLLM's engine core: one batch at a time, or two in flight with async
scheduling. The model is a stand-in that returns one token per sampled request, and per accepted
draft; time is the number of the step.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.vllm_recorder.engine import Engine, build
from tools.vllm_recorder.errors import EngineFailedError, RecordError
from tools.vllm_recorder.tokens import Tokens

STALL_ROWS = 4
"""The recording ends after this many steps in a row that schedule nothing while nothing arrives."""
MAX_PREFILLS_WITHOUT_TOKEN = 10
MIN_STEPS_WITHOUT_TOKEN = 10_000
"""Requests can be admitted and preempted for ever. A prefill takes a step per token at most."""
BATCHES_IN_FLIGHT = 2
"""With async scheduling."""
Row = dict[str, Any]


@dataclass
class Batch:
    """A scheduled step whose output is not processed yet."""

    step: int
    output: Any
    samples: list[str]
    """Requests that sample in this step; the others are in the middle of their prompt."""
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request -> (drafts verified, drafts accepted)."""


class Recorder:
    """One run; `rows()` is its rows, `totals` is complete afterwards."""

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.engine: Engine = build(config)
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
        self._config = config
        self._spec = config["spec"]
        self._tokens = Tokens(config["hash_id_tokens"])
        self._verifications: dict[str, int] = {}
        self._in_flight: deque[Batch] = deque()
        self._preempted: list[str] = []
        self._evicted = 0
        self._last_token = 0
        self._patience = (
            MIN_STEPS_WITHOUT_TOKEN + MAX_PREFILLS_WITHOUT_TOKEN * config["max_model_len"]
        )
        self._arrivals: dict[int, list[dict[str, Any]]] = {}
        self._aborts: dict[int, list[str]] = {}
        for request in requests:
            self._arrivals.setdefault(request["arrival_step"], []).append(request)
            if request.get("abort_step") is not None:
                self._aborts.setdefault(request["abort_step"], []).append(request["id"])
        self._events = sorted({*self._arrivals, *self._aborts})
        self._last_arrival = max(self._arrivals, default=-1)
        self._watch()

    def _watch(self) -> None:
        """Note preemptions in their order and evictions: the scheduler's output has neither."""
        scheduler, pool = self.engine.scheduler, self.engine.pool
        try:
            preempt, evict = scheduler._preempt_request, pool._maybe_evict_cached_block
        except AttributeError as error:
            raise RecordError(f"this vLLM cannot be watched: {error}") from error

        def note_preemption(request: Any, *args: Any, **options: Any) -> Any:
            self._preempted.append(request.request_id)
            return preempt(request, *args, **options)

        def note_eviction(block: Any) -> Any:
            evicted = evict(block)
            self._evicted += bool(evicted)
            return evicted

        scheduler._preempt_request = note_preemption
        pool._maybe_evict_cached_block = note_eviction

    def rows(self) -> Iterator[Row]:
        """The rows, once."""
        step = empty_rows = 0
        while True:
            row: Row = {"step": step}
            works = self._take_step(step, row)
            if works:
                empty_rows = 0 if row.get("sched") else empty_rows + 1
            if len(row) > 1:
                self.totals["steps"] += 1
                yield row
            if not works and self._last_arrival <= step:
                break
            step = step + 1 if works else self._next_event(step)
            if step - max(self._last_token, self._last_arrival) > self._patience:
                raise EngineFailedError(f"no end: not one token in {self._patience} steps")
            if empty_rows >= STALL_ROWS and self._last_arrival < step:
                waiting = self.engine.scheduler.waiting
                self.totals["stalled"] = [request.request_id for request in waiting]
                break
        self.totals["last_step"] = step

    def _take_step(self, step: int, row: Row) -> bool:
        """Arrivals, aborts, then one step of the engine if it has work."""
        try:
            self._arrive(step, row)
            self._abort(step, row)
            scheduler = self.engine.scheduler
            if self._config["async_scheduling"]:
                works = bool(self._in_flight) or scheduler.has_requests()
                if works:
                    self._step_async(step, row)
            else:
                works = scheduler.has_unfinished_requests()
                if works:
                    self._step_sync(step, row)
        except RecordError:
            raise
        # Whatever vLLM raises is the outcome, and its assertions have no common class.
        except Exception as error:
            raise EngineFailedError(
                f"vLLM itself failed at step {step}: {type(error).__name__}: {error}"
            ) from error
        return works

    def _next_event(self, step: int) -> int:
        """The next step at which something arrives or is cancelled; idle steps have no row."""
        index = bisect_right(self._events, step)
        return self._events[index] if index < len(self._events) else step + 1

    def _arrive(self, step: int, row: Row) -> None:
        rejected = []
        for request in self._arrivals.get(step, ()):
            if self.engine.refuses(request["prompt_tokens"]):
                rejected.append([request["id"], "prompt_too_long"])
            else:
                self.engine.add(request, self._tokens.prompt(request))
        if rejected:
            row["rejected"] = rejected
            self.totals["rejected"] += len(rejected)

    def _abort(self, step: int, row: Row) -> None:
        aborted = [name for name in self._aborts.get(step, ()) if self.engine.abort(name)]
        if aborted:
            row["aborted"] = aborted

    def _step_sync(self, step: int, row: Row) -> None:
        batch = self._schedule(step, row)
        self._update(batch, row)
        row["free_end"] = self.engine.pool.get_num_free_blocks()
        if self._spec is not None and batch.samples:
            drafts = [0] * self._spec["num_speculative_tokens"]
            self.engine.propose({name: list(drafts) for name in batch.samples})

    def _step_async(self, step: int, row: Row) -> None:
        scheduler = self.engine.scheduler
        oldest = None
        if scheduler.has_requests():
            batch = self._schedule(step, row)
            self._in_flight.append(batch)
            more = bool(batch.output.num_scheduled_tokens) or scheduler.has_requests()
            if len(self._in_flight) >= BATCHES_IN_FLIGHT or not more:
                oldest = self._in_flight.popleft()
        else:
            oldest = self._in_flight.popleft()
        row["upd"] = oldest.step if oldest is not None else None
        if oldest is not None:
            self._update(oldest, row)
        row["free_end"] = self.engine.pool.get_num_free_blocks()

    def _schedule(self, step: int, row: Row) -> Batch:
        scheduler = self.engine.scheduler
        before = {
            request.request_id: request.num_output_placeholders for request in scheduler.running
        }
        self._preempted.clear()
        self._evicted = 0
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        admitted = [
            [
                request.request_id,
                request.num_computed_tokens - scheduled[request.request_id],
                "resumed" if request.num_preemptions else "new",
            ]
            for request in scheduler.running
            if request.request_id not in before
        ]
        self._describe(row, scheduled, admitted)
        self.totals["preemptions"] += len(self._preempted)
        self.totals["hit_tokens"] += sum(hit for _, hit, _ in admitted)
        self.totals["scheduled_tokens"] += sum(scheduled.values())
        self.totals["evicted_blocks"] += self._evicted
        requests = scheduler.requests
        samples = [
            name
            for name in scheduled
            if requests[name].num_computed_tokens >= requests[name].num_tokens + before.get(name, 0)
        ]
        return Batch(step, output, samples, self._verify(output.scheduled_spec_decode_tokens))

    def _describe(self, row: Row, scheduled: dict[str, int], admitted: list[list[Any]]) -> None:
        scheduler, pool = self.engine.scheduler, self.engine.pool
        running = scheduler.running
        names = [request.request_id for request in running]
        row["sched"] = [list(item) for item in scheduled.items()]
        row["waiting"] = scheduler.get_request_counts()[1]
        if self._preempted:
            row["preempted"] = list(self._preempted)
        if admitted:
            row["admitted"] = admitted
        if self._evicted:
            row["evicted"] = self._evicted
        row["free"] = pool.get_num_free_blocks()
        row["running"] = names
        row["computed"] = [request.num_computed_tokens for request in running]
        if self._config["enable_prefix_caching"]:
            row["hashes"] = len(pool.cached_block_hash_to_block)
        tables = [scheduler.kv_cache_manager.get_block_ids(name) for name in names]
        held = [[sum(block != 0 for block in group) for group in table] for table in tables]
        row["blocks"] = [counts[0] if len(counts) == 1 else counts for counts in held]
        queue = pool.free_block_queue.get_all_free_blocks()
        row["crc_free"] = _crc(",".join(str(block.block_id) for block in queue))
        row["crc_tables"] = _crc(
            ";".join(
                f"{name}:{'|'.join(','.join(map(str, group)) for group in table)}"
                for name, table in zip(names, tables, strict=True)
            )
        )

    def _verify(self, drafts: dict[str, list[int]]) -> dict[str, tuple[int, int]]:
        """How many drafts of each request the model accepts, by the config's pattern."""
        verified: dict[str, tuple[int, int]] = {}
        for name, ids in drafts.items():
            pattern = self._spec["accept_pattern"]
            count = self._verifications.get(name, 0)
            self._verifications[name] = count + 1
            padding = ids[0] < 0
            accepted = 0 if padding else min(pattern[count % len(pattern)], len(ids))
            verified[name] = len(ids), accepted
        return verified

    def _update(self, batch: Batch, row: Row) -> None:
        if batch.samples:
            self._last_token = batch.step
        sampled: dict[str, list[int]] = {}
        for name in batch.samples:
            request = self.engine.scheduler.requests.get(name)
            if request is not None:
                start = request.num_output_tokens
                count = 1 + batch.drafts.get(name, (0, 0))[1]
                sampled[name] = [
                    self._tokens.output(name, position) for position in range(start, start + count)
                ]
        finished = self.engine.update(batch.output, sampled)
        if batch.drafts:
            row["drafts"] = [[name, *counts] for name, counts in batch.drafts.items()]
        if finished:
            row["finished"] = finished
            self.totals["finished"] += len(finished)


def _crc(text: str) -> int:
    return zlib.crc32(text.encode())
