"""vLLM's worked example of prefix caching, step by step.

The design page "Automatic Prefix Caching" of vLLM (docs/design/prefix_caching.md, section Example)
follows three requests through ten blocks of four tokens. Version 0.33 differs from the page's text
and pictures in two things (vllm/SPEC.md sections 3 and 4), so the tables below do too:

* Block 0 is the null block, which no table gets. A pool with ten usable blocks has eleven, and the
  page's block n is our block n + 1.
* A freed block without a content goes to the front of the free queue. The page appends all freed
  blocks to the back, so that at time 7 a cached block is evicted although others are free.

A table shows the state after `schedule()`; "free" is the free queue, the next block first; "cached"
are the blocks that a look-up can find, free or not; "held" says how many tables hold a block.
"""

from __future__ import annotations

from textwrap import dedent

from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler


class Engine:
    """A step at a time, with a table of its state."""

    def __init__(self, usable_blocks: int) -> None:
        self.allocator = PagedAllocator(usable_blocks + 1, block_size=4, eviction=LruOrder())
        self.scheduler = VllmScheduler(
            self.allocator, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64
        )

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.allocator.check_integrity(self.scheduler.running())
        return plan

    def complete(self, plan: StepPlan) -> list[str]:
        """Sample; returns the requests that are finished and freed."""
        ended = [one.request.request_id for one in self.scheduler.complete(plan)]
        self.allocator.check_integrity(self.scheduler.running())
        return ended

    def table(self) -> str:
        scheduler, pool, cache = self.scheduler, self.allocator.pool, self.allocator.cache
        assert cache is not None
        usable = range(1, pool.num_blocks)
        held = [f"{block}x{pool.ref_cnt(block)}" for block in usable if pool.ref_cnt(block)]
        lines = []
        for one in scheduler.running():
            tokens = scheduler.computed_tokens(one)
            lines.append(f"{one.request.request_id}: {tokens} tokens in {listed(one.table)}")
        lines += [
            f"held: {listed(held)}",
            f"free: {listed(pool.free_ids())}",
            f"cached: {listed([block for block in usable if block in cache])}",
        ]
        return "\n".join(lines)


def listed(items: list[int] | list[str]) -> str:
    return " ".join(map(str, items)) or "-"


def story(text: str) -> str:
    return dedent(text).strip()


# Prompts are described, not spelled out: a segment is the first tokens of a named text. Request 1
# shares 10 tokens with request 0, request 2 shares 12. Outputs have names so that their blocks,
# too, can be found by a later prompt, as in vLLM.
REQUEST_0 = Request("request 0", 0, 15, 4, segments=(("text", 15),), output_stream="answer 0")
REQUEST_1 = Request(
    "request 1", 3, 14, 2, segments=(("text", 10), ("question 1", 4)), output_stream="answer 1"
)
REQUEST_2 = Request(
    "request 2", 6, 29, 9, segments=(("text", 12), ("question 2", 17)), output_stream="answer 2"
)


def test_three_requests_in_ten_blocks() -> None:
    engine = Engine(usable_blocks=10)

    # Time 1: the cache is empty and request 0 comes in. Its 15 tokens take four blocks; three are
    # full and cached, the fourth has 3 of 4 tokens.
    engine.scheduler.add(REQUEST_0)
    plan = engine.schedule()
    assert engine.table() == story(
        """
        request 0: 15 tokens in 1 2 3 4
        held: 1x1 2x1 3x1 4x1
        free: 5 6 7 8 9 10
        cached: 1 2 3
        """
    )
    assert engine.complete(plan) == []

    # Time 2 (not on the page): the first output token fills the fourth block.
    plan = engine.schedule()
    assert engine.table() == story(
        """
        request 0: 16 tokens in 1 2 3 4
        held: 1x1 2x1 3x1 4x1
        free: 5 6 7 8 9 10
        cached: 1 2 3 4
        """
    )
    assert engine.complete(plan) == []

    # Time 3: the fourth block is full and cached, the next token asks for a new block.
    plan = engine.schedule()
    assert engine.table() == story(
        """
        request 0: 17 tokens in 1 2 3 4 5
        held: 1x1 2x1 3x1 4x1 5x1
        free: 6 7 8 9 10
        cached: 1 2 3 4
        """
    )
    assert engine.complete(plan) == []

    # Time 4: request 1 comes in with 14 tokens, the first 10 as in request 0. Only two blocks (8
    # tokens) hit: the third matches 2 of 4 tokens. It takes two new blocks for its other 6 tokens,
    # and fills the first of them.
    engine.scheduler.add(REQUEST_1)
    plan = engine.schedule()
    assert plan.hits == [8]
    assert [chunk.new_tokens for chunk in plan.chunks] == [6]
    assert engine.table() == story(
        """
        request 0: 18 tokens in 1 2 3 4 5
        request 1: 14 tokens in 1 2 6 7
        held: 1x2 2x2 3x1 4x1 5x1 6x1 7x1
        free: 8 9 10
        cached: 1 2 3 4 6
        """
    )

    # Time 5: request 0 is finished and freed, from its last block to its first. The page queues
    # blocks 5 4 3 behind 8 9 10 (there: 7 8 9 4 3 2). In 0.33 block 5, which has no content, goes
    # to the front. Request 1 still holds blocks 1 and 2.
    assert engine.complete(plan) == ["request 0"]
    assert engine.table() == story(
        """
        request 1: 14 tokens in 1 2 6 7
        held: 1x1 2x1 6x1 7x1
        free: 5 8 9 10 4 3
        cached: 1 2 3 4 6
        """
    )

    # Time 6: request 1 computes its one output token that needs a slot, is finished and freed.
    # (There: 7 8 9 4 3 2 6 5 1 0.)
    plan = engine.schedule()
    assert engine.complete(plan) == ["request 1"]
    assert engine.table() == story(
        """
        held: -
        free: 7 5 8 9 10 4 3 6 2 1
        cached: 1 2 3 4 6
        """
    )

    # Time 7: request 2 comes in with 29 tokens, the first 12 as in request 0. The blocks that hit,
    # 1 2 3, leave the queue before anything is allocated: they cannot be evicted by the very
    # request that uses them. The page then takes 7 8 9 4 3, and evicts its block 3. In 0.33 the
    # two blocks without a content come first, so five blocks are there without any eviction:
    # request 0's first output block (4) and request 1's own block (6) stay findable.
    engine.scheduler.add(REQUEST_2)
    plan = engine.schedule()
    assert plan.hits == [12]
    assert engine.table() == story(
        """
        request 2: 29 tokens in 1 2 3 7 5 8 9 10
        held: 1x1 2x1 3x1 5x1 7x1 8x1 9x1 10x1
        free: 4 6
        cached: 1 2 3 4 5 6 7 8 9
        """
    )
    assert engine.allocator.cache is not None
    assert engine.allocator.cache.evicted == 0
    assert engine.complete(plan) == []

    # Time 11: three output tokens later the last block is full, and the next token evicts the block
    # that was freed first: block 4, the tail of what request 0 left.
    for _ in range(4):
        plan = engine.schedule()
        engine.complete(plan)
    assert engine.table() == story(
        """
        request 2: 33 tokens in 1 2 3 7 5 8 9 10 4
        held: 1x1 2x1 3x1 4x1 5x1 7x1 8x1 9x1 10x1
        free: 6
        cached: 1 2 3 5 6 7 8 9 10
        """
    )
    assert engine.allocator.cache.evicted == 1

    # Every prompt token is accounted for: 15 + 14 + 29 asked for, 8 + 12 found, 2 of request 1's in
    # a block that begins alike and ends differently, and the rest never seen before.
    counts = engine.allocator.prefix_counts()
    assert counts == {
        "query_tokens": 58,
        "hit_tokens": 20,
        "never_seen_tokens": 36,
        "evicted_tokens": 0,
        "block_rounding_tokens": 2,
        "last_token_tokens": 0,
        "resumed_hit_tokens": 0,
        "evicted_blocks": 1,
    }


# The page's other example, "Duplicated blocks", numbered from 1: ABCDEF is asked for twice, and
# both times GHI is generated.
SAME = Request("first", 0, 6, 4, segments=(("ABCDEF", 6),), output_stream="GHI")


def test_a_block_that_turns_out_to_be_equal_stays_beside_the_older_one() -> None:
    engine = Engine(usable_blocks=6)

    # The first request has computed A to H.
    engine.scheduler.add(SAME)
    for _ in range(3):
        engine.complete(engine.schedule())
    assert engine.table() == story(
        """
        first: 8 tokens in 1 2
        held: 1x1 2x1
        free: 3 4 5 6
        cached: 1 2
        """
    )

    # The second one comes in and finds ABCD. Block 2 begins with EF too, but it is full, and what
    # the second request will generate is not known yet: it needs a block of its own.
    engine.scheduler.add(SAME._replace(request_id="second"))
    plan = engine.schedule()
    assert plan.hits == [4]
    assert engine.table() == story(
        """
        first: 9 tokens in 1 2 3
        second: 6 tokens in 1 4
        held: 1x2 2x1 3x1 4x1
        free: 5 6
        cached: 1 2
        """
    )
    assert engine.complete(plan) == ["first"]

    # Two steps later that block is full: EFGH is cached twice, for a table is append-only.
    engine.complete(engine.schedule())
    plan = engine.schedule()
    assert engine.table() == story(
        """
        second: 8 tokens in 1 4
        held: 1x1 4x1
        free: 3 5 6 2
        cached: 1 2 4
        """
    )
    assert engine.allocator.cache is not None
    assert engine.allocator.cache.num_keys() == 2

    # The page says that freeing the request ends the duplication. In 0.33 both stay until they are
    # evicted, and a look-up finds the one that was cached first.
    engine.complete(plan)
    assert engine.complete(engine.schedule()) == ["second"]
    assert engine.table() == story(
        """
        held: -
        free: 3 5 6 2 4 1
        cached: 1 2 4
        """
    )
    longer = (("ABCDEF", 6), ("GHI", 2), ("more", 1))
    engine.scheduler.add(Request("third", 0, 9, 1, segments=longer))
    plan = engine.schedule()
    assert plan.hits == [8]
    assert engine.table() == story(
        """
        third: 9 tokens in 1 2 3
        held: 1x1 2x1 3x1
        free: 5 6 4
        cached: 1 2 4
        """
    )
