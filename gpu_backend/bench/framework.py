"""Framework fragmentation: per-request tensors in PyTorch's caching allocator, on one trace."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpu_backend import fragmentation
from gpu_backend.bench.bench import Bench
from gpu_backend.bench.results import Row
from gpu_backend.framework_memory import TorchFramework
from gpu_backend.kv_memories import KvShape
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler

# Two layers of a Llama-3-8B: tensors of the sizes that a whole model has, but fewer of them.
SHAPE = KvShape(layers=2, kv_heads=8, head_dim=128, element_bytes=2)
CAPACITY_TOKENS, REQUESTS, MAX_MODEL_LEN = 16_384, 60, 4096
TINY_CAPACITY_TOKENS, TINY_REQUESTS, TINY_MODEL_LEN = 512, 12, 128
STEP_S, RATE_PER_S = 0.02, 8.0


def measure(bench: Bench) -> Iterator[Row]:
    """A row per way of allocating: the framework beside our arena on the same events.

    On a GPU twice: with all its memory, and with as much as the arena has (`limit_bytes`).
    """
    capacity = TINY_CAPACITY_TOKENS if bench.tiny else CAPACITY_TOKENS
    arena_bytes = capacity * SHAPE.tensors * SHAPE.tensor_token_bytes
    events = trace_events(bench)
    on_gpu = bench.device.type == "cuda"
    for limit_bytes in (None, arena_bytes) if on_gpu else (None,):
        for name, policy in fragmentation.POLICIES.items():
            bench.check_time()
            with _limited(bench, limit_bytes):
                framework = TorchFramework(SHAPE, device=bench.device) if on_gpu else None
                report = fragmentation.compare(
                    events, SHAPE, policy, capacity_tokens=capacity, framework=framework
                )
            trace = {"events": len(events), "capacity_bytes": arena_bytes}
            yield {"policy": name, "limit_bytes": limit_bytes, **trace, **report}


@contextmanager
def _limited(bench: Bench, limit_bytes: int | None) -> Iterator[None]:
    """Lets this process have so many bytes of the device beside what it holds."""
    if limit_bytes is None:
        yield
        return
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved(bench.device) + limit_bytes
    torch.cuda.set_per_process_memory_fraction(allowed / bench.memory_bytes, bench.device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)


def trace_events(bench: Bench) -> list[fragmentation.Event]:
    """Requests of log-normal lengths through vLLM's scheduler on paged memory of that size."""
    draw = random.Random(bench.seed)
    tiny = bench.tiny
    longest = TINY_MODEL_LEN if tiny else MAX_MODEL_LEN
    capacity = TINY_CAPACITY_TOKENS if tiny else CAPACITY_TOKENS
    middle = longest / 16

    def length() -> int:
        return max(2, min(longest // 2 - 1, round(middle * draw.lognormvariate(0.0, 0.8))))

    at_ns, requests = 0, []
    for index in range(TINY_REQUESTS if tiny else REQUESTS):
        at_ns += round(draw.expovariate(RATE_PER_S) * 1e9)
        requests.append(Request(f"r{index}", at_ns, length(), length()))
    scheduler = VllmScheduler(
        PagedAllocator(capacity // 16, 16),
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        max_model_len=longest,
    )
    return list(fragmentation.events_of(requests, scheduler, step_s=STEP_S))
