"""A plain scheduler and block manager written from vllm/SPEC.md, the slow way.

It loops over every running request at every step and keeps everything explicitly. It shares no
code with kvsim: it is the oracle that the calendar is compared with, row for row.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RefRequest:
    """A request of the reference loop; `known` is prompt plus sampled tokens."""

    request_id: str
    prompt: int
    output: int
    known: int = 0
    computed: int = 0
    table: list[int] = field(default_factory=list)
    admissions: int = 0

    def __post_init__(self) -> None:
        self.known = self.prompt


class ReferenceLoop:
    """SPEC.md sections 2-4, 7, 8: synchronous, FCFS, no cache, one full group, no speculation."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.block_size: int = config["block_size"]
        self.max_num_seqs: int = config["max_num_seqs"]
        self.budget: int = config["max_num_batched_tokens"]
        self.max_model_len: int = config["max_model_len"]
        self.chunked: bool = config["enable_chunked_prefill"]
        self.threshold: int = config["long_prefill_token_threshold"]
        self.full_isl: bool = config["scheduler_reserve_full_isl"]
        self.watermark = int(config["watermark"] * config["num_gpu_blocks"])
        self.free = deque(range(1, config["num_gpu_blocks"]))
        self.waiting: deque[RefRequest] = deque()
        self.running: list[RefRequest] = []
        self.row: dict[str, Any] = {}
        self.scheduled: list[tuple[RefRequest, int]] = []

    def add(self, request: RefRequest) -> bool:
        if request.prompt >= self.max_model_len:
            return False
        self.waiting.append(request)
        return True

    def abort(self, request_id: str) -> None:
        for request in [*self.waiting, *self.running]:
            if request.request_id == request_id:
                if request in self.running:
                    self.running.remove(request)
                else:
                    self.waiting.remove(request)
                self.free_blocks(request)

    def free_blocks(self, request: RefRequest) -> None:
        for block in request.table:
            self.free.appendleft(block)
        request.table = []

    def need(self, request: RefRequest, tokens: int) -> int:
        return max(0, -(-tokens // self.block_size) - len(request.table))

    def allocate(self, request: RefRequest, tokens: int) -> None:
        for _ in range(self.need(request, tokens)):
            request.table.append(self.free.popleft())

    def schedule(self) -> dict[str, Any]:
        budget = self.budget
        count = len(self.running) + len(self.waiting)
        threshold = self.threshold if count > 1 else 0
        scheduled: list[tuple[RefRequest, int]] = []
        preempted: list[str] = []
        admitted: list[list[Any]] = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = request.known - request.computed
            if threshold > 0:
                tokens = min(tokens, threshold)
            tokens = min(tokens, budget, self.max_model_len - request.computed - 1)
            if tokens == 0:
                index += 1
                continue
            fits = True
            while self.need(request, request.computed + tokens) > len(self.free):
                victim = self.running.pop()
                self.free_blocks(victim)
                victim.computed = 0
                self.waiting.appendleft(victim)
                preempted.append(victim.request_id)
                if victim is request:
                    fits = False
                    break
            if not fits:
                break
            self.allocate(request, request.computed + tokens)
            scheduled.append((request, tokens))
            budget -= tokens
            index += 1
        while not preempted and budget > 0 and self.waiting:
            if len(self.running) >= self.max_num_seqs:
                break
            request = self.waiting[0]
            tokens = request.known
            if threshold > 0:
                tokens = min(tokens, threshold)
            if not self.chunked and tokens > budget:
                break
            tokens = min(tokens, budget)
            watermark = self.watermark if self.running else 0
            gate = request.known if self.full_isl else tokens
            if self.need(request, max(gate, tokens)) + watermark > len(self.free):
                break
            self.waiting.popleft()
            self.allocate(request, tokens)
            self.running.append(request)
            admitted.append([request.request_id, 0, "resumed" if request.admissions else "new"])
            request.admissions += 1
            scheduled.append((request, tokens))
            budget -= tokens
        for request, tokens in scheduled:
            request.computed += tokens
        self.scheduled = scheduled
        row: dict[str, Any] = {
            "sched": [[request.request_id, tokens] for request, tokens in scheduled],
            "waiting": len(self.waiting),
            "free": len(self.free),
            "running": [request.request_id for request in self.running],
            "computed": [request.computed for request in self.running],
            "blocks": [len(request.table) for request in self.running],
            "crc_free": crc(",".join(map(str, self.free))),
            "crc_tables": crc(
                ";".join(f"{r.request_id}:{','.join(map(str, r.table))}" for r in self.running)
            ),
        }
        if preempted:
            row["preempted"] = preempted
        if admitted:
            row["admitted"] = admitted
        return row

    def complete(self) -> list[str]:
        finished = []
        for request, _ in self.scheduled:
            if request.computed < request.known:
                continue
            request.known += 1
            if request.known >= min(request.prompt + request.output, self.max_model_len):
                finished.append(request.request_id)
                self.running.remove(request)
                self.free_blocks(request)
        return finished


def crc(text: str) -> int:
    return zlib.crc32(text.encode())
