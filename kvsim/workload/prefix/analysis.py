"""Hit rates of a workload at any capacity of the prefix cache, and why the rest is lost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvsim.errors import InputError
from kvsim.workload.base import Workload
from kvsim.workload.checks import check_blocks_fit_chunks, check_integer
from kvsim.workload.prefix.belady import best_hit_blocks
from kvsim.workload.prefix.chunk_shares import ChunkShares, chunk_shares
from kvsim.workload.prefix.lru import lru_hit_blocks
from kvsim.workload.prefix.references import References
from kvsim.workload.prefix.rounding import split_seen
from kvsim.workload.prefix.stack import StackCurve, stack_curve
from kvsim.workload.prefix.trace import Bools, PrefixTrace

MAX_BLOCK_SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Where the prompt tokens of all requests went: the parts sum to `total`.

    See `PREFIX_DEFINITIONS` for what each is.
    """

    hit: int
    evicted: int
    never_seen: int
    rounding: int
    last_token: int
    rejected: int

    @property
    def total(self) -> int:
        """All prompt tokens of the workload."""
        return (
            self.hit
            + self.evicted
            + self.never_seen
            + self.rounding
            + self.last_token
            + self.rejected
        )


class PrefixAnalysis:
    """What prefix caches of `block_size`-token blocks would find in the prompts of a workload.

    The model is one request in flight, in arrival order; `PREFIX_DEFINITIONS` says it in words.
    Capacities are in blocks that requests can use.

    Raises `InputError` for a workload that says nothing about shared prefixes, and for blocks that
    neither divide the chunks of its trace nor are multiples of them.
    """

    def __init__(self, workload: Workload, block_size: int) -> None:
        check_integer(block_size, "block_size", 1, MAX_BLOCK_SIZE)
        if not workload.shares_prefixes:
            raise InputError(
                "does not say which prompts share a prefix",
                where=workload.source,
                fix="Give a trace with ids of its prompts' chunks, such as hash_ids; RAGPulse's"
                " also need the chunks' lengths",
            )
        check_blocks_fit_chunks(block_size, workload.chunk_tokens)
        self.block_size = block_size
        self.chunk_tokens = workload.chunk_tokens
        self.trace = PrefixTrace.of(workload)
        self.prompt_tokens = int(self.trace.prompts.sum())
        self.references = References.of(self.trace, block_size)
        self.largest = int(self.references.needs.max())
        """Blocks of the largest request; a smaller cache rejects it."""

    @cached_property
    def bound(self) -> PromptTokens:
        """What a cache that never evicts finds."""
        return self._explained(None, None)

    @cached_property
    def enough(self) -> int:
        """The least capacity, in blocks, at which LRU finds as much as the bound.

        Where a prompt is repeated whole and then continued (see `is_one_pass`) it can take a few
        blocks more.
        """
        return max(self._stack[0].enough, self.largest)

    @property
    def is_one_pass(self) -> bool:
        """Whether one pass gave LRU at all capacities that hold every request.

        Not where a prompt ended with a block, was repeated whole, so that its last block was cached
        twice, and was continued later: which copy is found then depends on the capacity. Such a
        workload is replayed for each capacity asked for.
        """
        return self._stack[1] == 0

    @property
    def chunks(self) -> ChunkShares | None:
        """Reuse in the trace's own chunks; None where those have no common size."""
        return None if self.chunk_tokens is None else chunk_shares(self.trace, self.chunk_tokens)

    def lru_hit_tokens(self, capacity: int) -> int:
        """Prompt tokens found with LRU eviction: read off the curve, or replayed if need be."""
        if capacity >= self.largest and self.is_one_pass:
            return self._stack[0].hit_blocks(capacity) * self.block_size
        return lru_hit_blocks(self.references, capacity) * self.block_size

    def best_hit_tokens(self, capacity: int) -> int:
        """The most prompt tokens any eviction rule could find; one pass for each capacity."""
        return best_hit_blocks(self.references, capacity) * self.block_size

    def lru(self, capacity: int) -> PromptTokens:
        """Where the prompt tokens go with LRU eviction."""
        hit = self.lru_hit_tokens(capacity)
        if capacity >= self.largest:
            full = self.bound
            lost = full.hit - hit
            return PromptTokens(hit, lost, full.never_seen, full.rounding, full.last_token, 0)
        return self._explained(self.references.needs <= capacity, hit)

    def capacities(self, count: int) -> list[int]:
        """At most `count` capacities from the largest request to `enough`, evenly in logarithm."""
        grid = np.geomspace(self.largest, self.enough, max(count, 1))
        return sorted(set(np.rint(grid).astype(np.int64).tolist()))

    @cached_property
    def _stack(self) -> tuple[StackCurve, int]:
        return stack_curve(self.references)

    def _explained(self, fits: Bools | None, hit: int | None) -> PromptTokens:
        """Of the requests that fit (default all); `hit` defaults to what was ever seen."""
        prompts, size = self.trace.prompts, self.block_size
        if fits is None:
            fits = np.ones(len(prompts), dtype=np.bool_)
        seen = self.trace.seen_tokens(fits)
        found, rounding, last_token = split_seen(seen, prompts, size)
        hit = found if hit is None else hit
        return PromptTokens(
            hit=hit,
            evicted=found - hit,
            never_seen=int((prompts - seen)[fits].sum()),
            rounding=rounding,
            last_token=last_token,
            rejected=int(prompts[~fits].sum()),
        )
