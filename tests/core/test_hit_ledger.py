"""Why a prompt token is not found in the prefix cache: one example for each cause."""

from __future__ import annotations

from kvsim.core.hit_ledger import HitCounts
from kvsim.core.paged import PagedAllocator
from tests.core.shadow_cache import admit, admit_and_release, cached, counts_of, sequence


def test_tokens_nobody_had_computed_are_never_seen() -> None:
    allocator = cached()
    admit(allocator, sequence(10))
    admit(allocator, sequence((("a", 7),)))
    assert counts_of(allocator) == HitCounts(query_tokens=17, never_seen_tokens=17)


def test_a_block_that_differs_before_its_end_is_a_matter_of_rounding() -> None:
    allocator = cached()
    admit(allocator, sequence((("a", 11), ("x", 3))))
    before = counts_of(allocator)
    admit(allocator, sequence((("a", 11), ("y", 5))))
    assert change(before, allocator) == HitCounts(
        query_tokens=16, hit_tokens=8, block_rounding_tokens=3, never_seen_tokens=5
    )


def test_the_last_block_of_a_prompt_known_as_a_whole_is_due_to_its_last_token() -> None:
    allocator = cached()
    admit(allocator, sequence((("a", 12),)))
    before = counts_of(allocator)
    admit(allocator, sequence((("a", 12),)))
    assert change(before, allocator) == HitCounts(
        query_tokens=12, hit_tokens=8, last_token_tokens=4
    )


def test_whole_blocks_that_were_there_before_are_evicted() -> None:
    allocator = cached(4)
    admit_and_release(allocator, sequence((("a", 14),)))
    admit_and_release(allocator, sequence(8))
    before = counts_of(allocator)
    assert allocator.cache is not None
    assert allocator.cache.evicted == 1
    admit(allocator, sequence((("a", 14),)))
    assert change(before, allocator) == HitCounts(
        query_tokens=14, hit_tokens=8, evicted_tokens=4, block_rounding_tokens=2
    )


def test_a_resumed_request_is_counted_apart() -> None:
    allocator = cached()
    one = sequence((("a", 10),))
    admit(allocator, one)
    before = counts_of(allocator)
    allocator.release(one, resumes=True)
    assert admit(allocator, one) == 8
    assert counts_of(allocator) == before
    counts = allocator.prefix_counts()
    assert counts is not None
    assert counts["resumed_hit_tokens"] == 8


def test_nothing_is_called_evicted_where_the_token_behind_a_block_belongs_to_it() -> None:
    """EAGLE: the first 8 tokens are equal, the ninth is not, so the second block differs."""
    allocator = cached(hash_lookahead=1)
    admit(allocator, sequence((("a", 8), ("x", 4))))
    before = counts_of(allocator)
    assert admit(allocator, sequence((("a", 8), ("y", 4)))) == 4
    assert change(before, allocator) == HitCounts(
        query_tokens=12, hit_tokens=4, block_rounding_tokens=4, never_seen_tokens=4
    )


def change(before: HitCounts, allocator: PagedAllocator) -> HitCounts:
    after = counts_of(allocator)
    return HitCounts(*(new - old for new, old in zip(after, before, strict=True)))


def test_a_hit_may_end_where_the_tokens_that_were_computed_end() -> None:
    """EAGLE: a block has a content once the token behind it is known, computed or not."""
    allocator = cached(block_size=3, hash_lookahead=1)
    one, two = sequence((("a", 30), ("x", 1))), sequence((("a", 30), ("y", 1)))
    assert allocator.admit(one, allocator.lookup(one), 6, 31, 0)
    before = counts_of(allocator)
    assert admit(allocator, two) == 6
    assert change(before, allocator) == HitCounts(
        query_tokens=31, hit_tokens=6, never_seen_tokens=25
    )
