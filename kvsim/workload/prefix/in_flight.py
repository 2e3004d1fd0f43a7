"""What a prefix cache finds when several requests run at once, by the engine itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.workload.base import Workload

BUDGET_TOKENS = 8192
"""Tokens of a step: vLLM's default on large GPUs."""
_LONGEST = 1 << 40


def hit_tokens_in_flight(
    workload: Workload,
    *,
    blocks: int,
    block_size: int,
    in_flight: int,
    advance: Callable[[int], None] = lambda requests: None,
) -> int:
    """Prompt tokens found by vLLM's scheduler with up to `in_flight` requests, in trace order.

    The cache has `blocks` usable blocks under LRU; requests that are larger than it are rejected.
    A request enters as soon as another one leaves, so arrival times play no part. Prompts
    computed beside each other miss what the other has not computed yet, and running requests pin
    their blocks: that is the difference from one request at a time.
    """
    allocator = PagedAllocator(blocks, block_size, null_block=False, eviction=LruOrder())
    scheduler = VllmScheduler(
        allocator,
        max_num_seqs=in_flight,
        max_num_batched_tokens=max(BUDGET_TOKENS, in_flight),
        max_model_len=_LONGEST,
    )
    requests = (request for request in workload if scheduler.refuse(request) is None)
    open_requests = 0
    while True:
        for request in islice(requests, 2 * in_flight - open_requests):
            scheduler.add(request)
            open_requests += 1
        if not scheduler.has_work():
            break
        left = len(scheduler.complete(scheduler.schedule()))
        open_requests -= left
        if left:
            advance(left)
    counts = allocator.prefix_counts()
    assert counts is not None
    return counts["hit_tokens"]
