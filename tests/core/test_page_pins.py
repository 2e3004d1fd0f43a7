"""One kept block pins a page of every tensor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.page_pins import PagePins

MIB = 1 << 20


def pins(blocks_per_page: int = 64) -> PagePins:
    """36 layers in pages of 2 MiB (https://github.com/anthony-chaudhary/fak/issues/10721)."""
    return PagePins(page_bytes=2 * MIB, layers=36, blocks_per_page=blocks_per_page)


def test_one_retained_block_pins_144_mib_in_36_layers() -> None:
    """The report's figure: a page of 2 MiB in each of 72 tensors."""
    assert pins().page_set_bytes == 144 * MIB
    assert pins().pinned_bytes([5]) == pins().pinned_bytes([0, 5, 63]) == 144 * MIB
    assert pins().pinned_bytes([63, 64]) == 288 * MIB
    assert pins().pinned_bytes([]) == 0


def test_whole_pages_free_ten_times_more_than_lru_while_survivors_are_scattered() -> None:
    """Twenty pages of 64 blocks; one block of nearly every page was used lately.

    The oldest half of the blocks frees by LRU just the one page without a survivor.
    """
    memory = pins()
    last_used = {block: block for block in range(20 * 64)}
    for page in range(1, 20):
        last_used[page * 64 + page] = 10_000 + page
    half = len(last_used) // 2
    lru = memory.evict(last_used, half, order="lru")
    aware = memory.evict(last_used, half, order="page_aware")
    assert len(lru.blocks) == len(aware.blocks) == half
    assert (lru.page_sets, aware.page_sets) == (1, 10)
    assert aware.page_sets * memory.page_set_bytes >= 10 * lru.page_sets * memory.page_set_bytes


def test_what_lru_left_behind_is_freed_page_by_page_block_by_block() -> None:
    """Survivors alone, one per page: each block given up frees 144 MiB."""
    memory = pins()
    survivors = {page * 64 + 7: page for page in range(10)}
    freed = memory.evict(survivors, 4, order="page_aware")
    assert (freed.blocks, freed.page_sets) == ([7, 71, 135, 199], 4)


def test_a_page_with_a_held_block_is_given_up_last() -> None:
    memory = pins(blocks_per_page=2)
    freed = memory.evict({0: 1, 2: 8, 3: 9, 4: 5, 5: 6}, 5, order="page_aware", held=[1])
    assert freed.blocks == [4, 5, 2, 3, 0]
    assert freed.page_sets == 2
    first = memory.evict({0: 1, 2: 8, 3: 9}, 1, order="lru", held=[1])
    assert (first.blocks, first.page_sets) == ([0], 0)


def test_fewer_cached_blocks_come_before_older_ones() -> None:
    memory = pins(blocks_per_page=4)
    freed = memory.evict({0: 1, 1: 2, 4: 50, 8: 40}, 3, order="page_aware")
    assert freed.blocks == [8, 4, 0]
    assert freed.page_sets == 2


CACHED = st.dictionaries(st.integers(0, 60), st.integers(0, 100), max_size=40)


@given(cached=CACHED, held=st.sets(st.integers(61, 90)), count=st.integers(-2, 45))
def test_both_orders_give_up_as_many_blocks_and_page_aware_frees_no_less(
    cached: dict[int, int], held: set[int], count: int
) -> None:
    memory = pins(blocks_per_page=4)
    lru = memory.evict(cached, count, order="lru", held=held)
    aware = memory.evict(cached, count, order="page_aware", held=held)
    expected = min(max(count, 0), len(cached))
    assert len(set(lru.blocks)) == len(set(aware.blocks)) == expected
    assert aware.page_sets >= lru.page_sets
    kept = cached.keys() - set(aware.blocks)
    before = memory.pinned_page_sets([*cached, *held])
    assert aware.page_sets == before - memory.pinned_page_sets([*kept, *held])


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        pins().evict({1: 1}, 1, order="fifo")
    with pytest.raises(ValueError, match="block 1 is both held and free to evict"):
        pins().evict({1: 1, 2: 1}, 1, order="lru", held=[1])
    with pytest.raises(ValueError, match=r"layers \(=0\) must be >= 1"):
        PagePins(page_bytes=MIB, layers=0, blocks_per_page=4)
