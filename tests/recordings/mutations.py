"""Rules of the scheduler, each broken in one way; a recording must notice (see test_mutations)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvsim.core.block_pool import BlockPool
from kvsim.core.eviction import LruOrder
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.speculative_scheduler import Speculation, SpeculativeScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.core.waiting import LeastUrgent, PriorityQueue

Mutation = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: dict[str, tuple[str, Mutation]] = {}
"""Name -> (recording that notices, what breaks the rule)."""


def breaks(name: str, recording: str) -> Callable[[Mutation], Mutation]:
    def register(mutation: Mutation) -> Mutation:
        MUTATIONS[name] = recording, mutation
        return mutation

    return register


@breaks("a preempted request goes to the front of the queue", "b1_tight_preempt")
def _(patch: pytest.MonkeyPatch) -> None:
    preempt = VllmScheduler._preempt

    def to_the_back(self: VllmScheduler, victim: Any, plan: Any) -> None:
        preempt(self, victim, plan)
        self.waiting.remove(victim)
        self.waiting.add(victim)

    patch.setattr(VllmScheduler, "_preempt", to_the_back)


@breaks("the last block of a table is reused first", "b2_tight_no_full_isl")
def _(patch: pytest.MonkeyPatch) -> None:
    give_back = BlockPool.give_back

    def forwards(self: BlockPool, table: list[int], *rest: Any) -> int:
        return give_back(self, table[::-1], *rest)

    patch.setattr(BlockPool, "give_back", forwards)


@breaks("the whole known sequence must fit at admission", "b1_tight_preempt")
def _(patch: pytest.MonkeyPatch) -> None:
    admit = PagedAllocator.admit

    def no_gate(self: Any, sequence: Any, hit: Any, new: int, known: int, keep: int) -> bool:
        return admit(self, sequence, hit, new, 0, keep)

    patch.setattr(PagedAllocator, "admit", no_gate)


@breaks("the watermark is off while nothing runs", "b5_watermark_idle_big")
def _(patch: pytest.MonkeyPatch) -> None:
    admit = PagedAllocator.admit

    def always(self: Any, sequence: Any, hit: Any, new: int, known: int, keep: int) -> bool:
        return admit(self, sequence, hit, new, known, keep or 24)

    patch.setattr(PagedAllocator, "admit", always)


@breaks("nothing is admitted in a step that preempted", "b2_tight_no_full_isl")
def _(patch: pytest.MonkeyPatch) -> None:
    close = VllmScheduler._close

    def admit_anyway(self: VllmScheduler, plan: Any) -> Any:
        if plan.preempted:
            self._admit(plan, self.max_model_len)
        return close(self, plan)

    patch.setattr(VllmScheduler, "_close", admit_anyway)


@breaks("the chunk threshold is off for a lone request", "e2_long_prefill_threshold")
def _(patch: pytest.MonkeyPatch) -> None:
    def capped(self: VllmScheduler) -> int:
        return self.long_prefill_token_threshold or self.max_model_len

    patch.setattr(VllmScheduler, "_chunk_limit", capped)


@breaks("the tail of a cached chain is evicted before its head", "c1_chat_apc_tight")
def _(patch: pytest.MonkeyPatch) -> None:
    add = LruOrder.add

    def head_first(self: LruOrder, blocks: Any) -> None:
        add(self, reversed(list(blocks)))

    patch.setattr(LruOrder, "add", head_first)


@breaks("the last token of a cached prompt is computed", "c4_full_hits")
def _(patch: pytest.MonkeyPatch) -> None:
    lookup = PagedAllocator.lookup

    def whole(self: PagedAllocator, sequence: Any) -> Any:
        sequence.tokens += 1
        hit = lookup(self, sequence)
        sequence.tokens -= 1
        return hit if hit.tokens < sequence.tokens else hit._replace(tokens=sequence.tokens - 1)

    patch.setattr(PagedAllocator, "lookup", whole)


@breaks("of equal blocks the oldest is found", "c4_full_hits")
def _(patch: pytest.MonkeyPatch) -> None:
    def newest(self: PrefixCache, keys: Any) -> list[int]:
        run: list[int] = []
        for key in keys:
            found = self._blocks.get(key)
            if found is None:
                break
            run.append(found[-1] if isinstance(found, list) else found)
        return run

    patch.setattr(PrefixCache, "find_run", newest)


@breaks("hit blocks that nobody holds count as needed", "c1_chat_apc_tight")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "count_free", lambda self, blocks: len(blocks))


@breaks("equal priority and arrival: the first in running order falls", "d1_priority_preempt")
def _(patch: pytest.MonkeyPatch) -> None:
    def choose(self: LeastUrgent, members: Any) -> Any:
        return max(
            members.values(), key=lambda s: (s.request.priority, s.request.arrival_ns, s.order)
        )

    patch.setattr(LeastUrgent, "choose", choose)


@breaks("request ids are compared as text", "z25")
def _(patch: pytest.MonkeyPatch) -> None:
    add = PriorityQueue.add

    def by_number(self: PriorityQueue, sequence: Any) -> None:
        request = sequence.request
        digits = "".join(filter(str.isdigit, request.request_id)).zfill(9)
        sequence.request = request._replace(request_id=digits)
        add(self, sequence)
        sequence.request = request

    patch.setattr(PriorityQueue, "add", by_number)
    patch.setattr(PriorityQueue, "requeue", by_number)


@breaks("a token in flight reaches its request after a preemption", "k2_async_tight")
def _(patch: pytest.MonkeyPatch) -> None:
    complete = VllmScheduler.complete

    def lost(self: VllmScheduler, plan: Any) -> Any:
        self._undelivered.clear()
        return complete(self, plan)

    patch.setattr(VllmScheduler, "complete", lost)


@breaks(
    "asynchronous: a block gets its content once its tokens are known", "k3_async_chat_apc_tight"
)
def _(patch: pytest.MonkeyPatch) -> None:
    init = PagedAllocator.__init__

    def ahead(self: Any, *args: Any, **settings: Any) -> None:
        init(self, *args, **{**settings, "seals_ahead": True})

    patch.setattr(PagedAllocator, "__init__", ahead)


@breaks("window frees wait for the step in flight", "k4_async_hybrid_apc")
def _(patch: pytest.MonkeyPatch) -> None:
    append = GroupedAllocator.append

    def early(self: Any, sequence: Any, computed: int, new: int, known: int, late: int = 0) -> bool:
        return append(self, sequence, computed, new, known, 0)

    patch.setattr(GroupedAllocator, "append", early)


@breaks("retention: which blocks of a window are cached", "i4_hybrid_apc")
def _(patch: pytest.MonkeyPatch) -> None:
    init = GroupedAllocator.__init__

    def dense(self: Any, *args: Any, **settings: Any) -> None:
        init(self, *args, **{**settings, "retention_interval": None})

    patch.setattr(GroupedAllocator, "__init__", dense)


@breaks("drafts of a model need slots ahead", "j2_spec_draft_model")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Speculation, "lookahead_tokens", 0)


@breaks("eagle: the next token belongs to a block's content", "j4_spec_eagle_apc")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Speculation, "hash_lookahead", 0)


@breaks("a draft model's own token costs budget", "j2_spec_draft_model")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Speculation, "draft_slots", 0)


@breaks("a lone token beside drafts is padded", "z04")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpeculativeScheduler, "_may_pad", lambda self, hit: False)
