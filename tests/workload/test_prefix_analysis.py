"""The prefix analysis equals a plain cache, block by block, at every capacity."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload import TraceWorkload
from kvsim.workload.prefix import (
    PREFIX_DEFINITIONS,
    PrefixAnalysis,
    PrefixTrace,
    PromptTokens,
    References,
    best_hit_blocks,
    chunk_shares,
    lru_hit_blocks,
    stack_curve,
)
from tests.workload.plain_cache import plain_hits, token_names
from tests.workload.shared_prompts import Listed, asks, shared_prompts
from tests.workload.test_prefix_information import DATA

block_sizes = st.integers(1, 4)
ALL = 10_000
"""More blocks than any of these workloads could fill."""


def found(requests: list[Request], capacity: int, block_size: int) -> int:
    return sum(hit or 0 for hit in plain_hits(requests, capacity, block_size))


def test_the_plain_cache_hits_three_of_four_cached_blocks_and_computes_the_last_again() -> None:
    """A prompt of exactly 4 cached blocks (vllm/SPEC.md, section 5)."""
    prompt = asks(0, [("a", 16)], 1)
    assert plain_hits([prompt, prompt], 10, 4) == [0, 12]


def test_the_plain_cache_evicts_the_tail_first_and_rejects_what_is_too_large() -> None:
    requests = [
        asks(0, [("a", 12)], 2),  # 4 blocks, the last one partial
        asks(1, [("b", 4)], 1),
        asks(2, [("a", 20)], 1),
        asks(3, [("a", 13)], 1),
    ]
    assert plain_hits(requests, 4, 4) == [0, 0, None, 12]
    # Two blocks more for b: the free partial one, then the third of a.
    requests[1] = asks(1, [("b", 8)], 1)
    assert plain_hits(requests, 4, 4) == [0, 0, None, 8]


@given(shared_prompts(), block_sizes)
@settings(max_examples=150)
def test_lru_equals_the_plain_cache_at_every_capacity(
    requests: list[Request], block_size: int
) -> None:
    analysis = PrefixAnalysis(Listed(requests), block_size)
    for capacity in range(1, max(analysis.enough, analysis.largest) + 3):
        hit = found(requests, capacity, block_size)
        assert analysis.lru_hit_tokens(capacity) == hit
        assert lru_hit_blocks(analysis.references, capacity) * block_size == hit


@given(shared_prompts(), block_sizes)
@settings(max_examples=150)
def test_one_pass_gives_every_capacity_that_holds_every_request(
    requests: list[Request], block_size: int
) -> None:
    analysis = PrefixAnalysis(Listed(requests), block_size)
    if not analysis.is_one_pass:
        return
    curve, _ = stack_curve(analysis.references)
    hits = [curve.hit_blocks(c) for c in range(analysis.largest, analysis.enough + 3)]
    assert hits == sorted(hits)
    for capacity, hit in enumerate(hits, analysis.largest):
        assert hit * block_size == found(requests, capacity, block_size)


def test_a_copy_found_before_its_original_is_evicted_is_replayed_exactly() -> None:
    """Whether the first or the second copy of a's block 2 is found depends on the capacity."""
    requests = [
        asks(0, [("a", 4)], 1),
        asks(1, [("b", 2)], 1),
        asks(2, [("a", 4)], 1),
        asks(3, [("c", 2)], 1),
        asks(4, [("a", 5)], 1),
        asks(5, [("c", 3)], 1),
        asks(6, [("b", 3)], 1),
    ]
    analysis = PrefixAnalysis(Listed(requests), 2)
    assert not analysis.is_one_pass
    curve, copies = stack_curve(analysis.references)
    assert copies == 1
    by_curve = [2 * curve.hit_blocks(c) for c in range(3, 9)]
    exact = [analysis.lru_hit_tokens(c) for c in range(3, 9)]
    assert exact == [found(requests, c, 2) for c in range(3, 9)]
    assert exact != by_curve


@given(shared_prompts(), block_sizes)
def test_the_bound_is_what_a_cache_without_eviction_finds(
    requests: list[Request], block_size: int
) -> None:
    analysis = PrefixAnalysis(Listed(requests), block_size)
    assert analysis.bound.hit == found(requests, ALL, block_size)
    assert analysis.lru_hit_tokens(ALL) == analysis.bound.hit
    assert analysis.best_hit_tokens(ALL) == analysis.bound.hit
    if analysis.is_one_pass:
        assert analysis.lru_hit_tokens(analysis.enough) == analysis.bound.hit


@given(shared_prompts(most=8), block_sizes)
def test_every_prompt_token_has_one_cause(requests: list[Request], block_size: int) -> None:
    analysis = PrefixAnalysis(Listed(requests), block_size)
    for capacity in range(1, analysis.enough + 3):
        tokens = analysis.lru(capacity)
        assert tokens.total == analysis.prompt_tokens
        assert min(getattr(tokens, name) for name in PromptTokens.__slots__) >= 0
        assert tokens == _causes(requests, capacity, block_size)


def _causes(requests: list[Request], capacity: int, block_size: int) -> PromptTokens:
    """The causes request by request, from their definitions."""
    hits = plain_hits(requests, capacity, block_size)
    earlier: list[list[tuple[object, int]]] = []
    parts = dict.fromkeys(PromptTokens.__slots__, 0)
    for request, hit in zip(requests, hits, strict=True):
        prompt = request.prompt_tokens
        if hit is None:
            parts["rejected"] += prompt
            continue
        names = token_names(request)
        seen = max((_common(names[:prompt], other) for other in earlier), default=0)
        blocks = seen // block_size
        looked_up = min(blocks, (prompt - 1) // block_size)
        parts["hit"] += hit
        parts["evicted"] += looked_up * block_size - hit
        parts["last_token"] += (blocks - looked_up) * block_size
        parts["rounding"] += seen - blocks * block_size
        parts["never_seen"] += prompt - seen
        earlier.append(names)
    return PromptTokens(**parts)


def _common(one: list[tuple[object, int]], other: list[tuple[object, int]]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _best(requests: list[Request], capacity: int, block_size: int) -> int:
    """The most blocks any choice of evictions finds, by trying all of them."""
    served = [r for r in requests if -(-len(token_names(r)) // block_size) <= capacity]
    names = [
        [tuple(token_names(r)[:end]) for end in range(block_size, len(token_names(r)) + 1)]
        for r in served
    ]
    blocks = [every[::block_size] for every in names]

    @cache
    def rest(rank: int, cached: frozenset[object]) -> int:
        if rank == len(served):
            return 0
        mine = blocks[rank]
        looked_up = mine[: (served[rank].prompt_tokens - 1) // block_size]
        hits = sum(1 for _ in itertools.takewhile(cached.__contains__, looked_up))
        others = cached - set(mine)
        need = -(-len(token_names(served[rank])) // block_size)
        kept = min(len(others), capacity - need)
        return hits + max(
            rest(rank + 1, frozenset(choice) | set(mine))
            for choice in itertools.combinations(others, kept)
        )

    return rest(0, frozenset())


@given(shared_prompts(most=5), st.integers(2, 4), st.integers(1, 10))
@settings(max_examples=150)
def test_best_is_the_most_that_any_eviction_could_find(
    requests: list[Request], block_size: int, capacity: int
) -> None:
    references = References.of(PrefixTrace.of(requests), block_size)
    assert best_hit_blocks(references, capacity) == _best(requests, capacity, block_size)


@given(shared_prompts(), block_sizes)
def test_best_is_never_below_lru_nor_above_the_bound(
    requests: list[Request], block_size: int
) -> None:
    analysis = PrefixAnalysis(Listed(requests), block_size)
    for capacity in range(analysis.largest, analysis.enough + 3):
        best = analysis.best_hit_tokens(capacity)
        assert analysis.lru_hit_tokens(capacity) <= best <= analysis.bound.hit


def test_an_item_is_a_run_of_blocks_that_the_same_requests_use() -> None:
    """Blocks of 4: a prompt of 40 tokens, its first 24 alone, and 24 with another end."""
    requests = [
        asks(0, [("a", 24), ("b", 16)], 1),
        asks(1, [("a", 24)], 5),
        asks(2, [("a", 24), ("c", 3)], 3, "out"),
        asks(3, [("a", 24), ("c", 3), ("out", 3)], 1),
    ]
    references = References.of(PrefixTrace.of(requests), 4)
    used = [
        [
            (int(references.weights[references.items[i]]), bool(references.made[i]))
            for i in range(references.starts[row], references.starts[row + 1])
        ]
        for row in range(4)
    ]
    # Blocks 0 to 4, block 5 (made by the request that ends with it), then each one's own.
    assert used == [
        [(5, False), (1, False), (3, False), (1, True)],
        [(5, False), (1, True)],
        [(5, False), (1, False), (1, True)],
        [(5, False), (1, False), (1, False)],
    ]
    assert references.rest.tolist() == [0, 1, 0, 0]
    assert references.needs.tolist() == [10, 7, 8, 8]
    assert references.partial.tolist() == [0, 0, 1, 1]


def test_chunks_and_blocks_that_hold_each_other_agree() -> None:
    """Two chunks of 8 shared, one of 8 not; blocks of 4, 8 and 16."""
    requests = [asks(i, [("a", 8), ("b", 8), (i, 8)], 1) for i in range(3)]
    hits = {
        size: PrefixAnalysis(Listed(requests, chunk_tokens=8), size).bound.hit
        for size in (4, 8, 16)
    }
    assert hits == {4: 32, 8: 32, 16: 32}
    one_chunk = [asks(i, [("a", 8), (i, 8)], 1) for i in range(3)]
    bound = PrefixAnalysis(Listed(one_chunk, chunk_tokens=8), 16).bound
    assert (bound.hit, bound.rounding, bound.never_seen) == (0, 16, 32)
    with pytest.raises(InputError, match="chunks of 8 tokens or be a multiple of them, got 12"):
        PrefixAnalysis(Listed(requests, chunk_tokens=8), 12)


def test_answers_are_found_by_the_prompts_that_repeat_them() -> None:
    """The last sampled token has no KV: 8 of the 9 tokens of the answer are cached."""
    requests = [
        asks(0, [("q", 8)], 9, "answer"),
        asks(1, [("q", 8), ("answer", 9), ("more", 7)], 1),
    ]
    bound = PrefixAnalysis(Listed(requests), 8).bound
    assert (bound.hit, bound.never_seen, bound.rounding) == (16, 16, 0)
    assert PrefixAnalysis(Listed(requests), 4).bound.hit == 16


def test_shares_of_chunks_on_rows_written_by_hand() -> None:
    """Prompts of 1000, 600 and 513 tokens that share their first chunk, and one of 5 alone."""
    workload = TraceWorkload(DATA / "mooncake.jsonl")
    shares = chunk_shares(PrefixTrace.of(workload), 512)
    assert shares.chunks == 2 / 6
    assert shares.full_chunk_tokens == 2 / 3
    assert shares.mean_of_requests == pytest.approx((512 / 600 + 512 / 513) / 4)
    analysis = PrefixAnalysis(workload, 16)
    assert analysis.chunks == shares
    assert analysis.bound == PromptTokens(
        hit=1024, evicted=0, never_seen=2118 - 1024, rounding=0, last_token=0, rejected=0
    )
    # 1009 tokens get KV in the first request: 64 blocks.
    assert analysis.largest == 64
    assert analysis.lru(63).rejected == 1000
    assert analysis.lru(64).hit == 1024
    assert analysis.capacities(5)[0] == 64


def test_a_workload_that_says_nothing_about_prefixes_is_refused() -> None:
    workload = TraceWorkload(DATA / "azure_2023.csv")
    with pytest.raises(InputError, match=r"azure_2023.csv: does not say which prompts share"):
        PrefixAnalysis(workload, 16)


def test_segments_that_do_not_make_up_the_prompt_are_refused() -> None:
    request = Request("r0", 0, 5, 1, segments=(("a", 4),))
    with pytest.raises(InputError, match="segments: the segments of 'r0' have 4 tokens, its prom"):
        PrefixTrace.of([request])


def test_every_cause_is_defined() -> None:
    assert set(PromptTokens.__slots__) <= set(PREFIX_DEFINITIONS)
