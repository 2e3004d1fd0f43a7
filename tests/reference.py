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
        self.left = self.cap = 0
        self.describe_rows = True
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
        self.left = self.budget
        count = len(self.running) + len(self.waiting)
        self.cap = self.threshold if self.threshold and count > 1 else self.max_model_len
        self.scheduled = []
        preempted = self.serve_running()
        admitted = [] if preempted else self.serve_waiting()
        for request, tokens in self.scheduled:
            request.computed += tokens
        if not self.describe_rows:
            return {}
        row: dict[str, Any] = {
            "sched": [[request.request_id, tokens] for request, tokens in self.scheduled],
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

    def serve_running(self) -> list[str]:
        preempted: list[str] = []
        index = 0
        while index < len(self.running) and self.left > 0:
            request = self.running[index]
            index += 1
            tokens = min(request.known - request.computed, self.cap, self.left)
            tokens = min(tokens, self.max_model_len - request.computed - 1)
            if tokens == 0:
                continue
            while self.need(request, request.computed + tokens) > len(self.free):
                victim = self.running.pop()
                self.free_blocks(victim)
                victim.computed = 0
                self.waiting.appendleft(victim)
                preempted.append(victim.request_id)
                if victim is request:
                    return preempted
            self.allocate(request, request.computed + tokens)
            self.scheduled.append((request, tokens))
            self.left -= tokens
        return preempted

    def serve_waiting(self) -> list[list[Any]]:
        admitted: list[list[Any]] = []
        while self.left > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            tokens = min(request.known, self.cap)
            if not self.chunked and tokens > self.left:
                break
            tokens = min(tokens, self.left)
            watermark = self.watermark if self.running else 0
            gate = request.known if self.full_isl else tokens
            if self.need(request, gate) + watermark > len(self.free):
                break
            self.waiting.popleft()
            self.allocate(request, tokens)
            self.running.append(request)
            admitted.append([request.request_id, 0, "resumed" if request.admissions else "new"])
            request.admissions += 1
            self.scheduled.append((request, tokens))
            self.left -= tokens
        return admitted

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
