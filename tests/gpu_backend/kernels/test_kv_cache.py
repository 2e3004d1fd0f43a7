"""Sizes and slots of the cache's tensors."""

from __future__ import annotations

import pytest
import torch

from gpu_backend.kv_cache import ArenaShape, PagedShape, allocate, blocks_that_fit, slots_of

LLAMA = PagedShape(layers=32, num_blocks=4, block_size=16, kv_heads=8, head_dim=128)


def test_a_block_of_llama_3_8b_is_two_mebibytes() -> None:
    assert LLAMA.bytes_per_block == 2 * 2**20
    assert LLAMA.total_bytes == 4 * LLAMA.bytes_per_block


@pytest.mark.parametrize(
    ("layout", "shape"), [("nhd", (5, 3, 2, 24)), ("hnd", (5, 2, 3, 24))], ids=["nhd", "hnd"]
)
def test_a_paged_cache_is_as_large_as_it_says(layout: str, shape: tuple[int, ...]) -> None:
    wanted = PagedShape(2, 5, 3, 2, 24, torch.float16, layout)  # type: ignore[arg-type]
    cache = allocate(wanted)
    tensors = cache.keys + cache.values
    assert {tuple(tensor.shape) for tensor in tensors} == {shape}
    assert len({tensor.data_ptr() for tensor in tensors}) == 4
    assert sum(tensor.nbytes for tensor in tensors) == wanted.total_bytes
    assert all(tensor.is_contiguous() for tensor in tensors)


def test_an_arena_is_as_large_as_it_says() -> None:
    wanted = ArenaShape(layers=3, slots=10, kv_heads=2, head_dim=24, dtype=torch.float32)
    cache = allocate(wanted)
    assert [tuple(key.shape) for key in cache.keys] == [(10, 2, 24)] * 3
    assert wanted.bytes_per_slot == 3 * 2 * 2 * 24 * 4
    assert sum(tensor.nbytes for tensor in cache.keys + cache.values) == wanted.total_bytes


def test_blocks_that_fit_into_a_budget() -> None:
    assert blocks_that_fit(10 * LLAMA.bytes_per_block + 5, LLAMA) == 10
    assert blocks_that_fit(-1, LLAMA) == 0


def test_slots_follow_the_block_table() -> None:
    assert slots_of([7, 2, 5], 3, 2, 8).tolist() == [23, 6, 7, 8, 15, 16]
    assert slots_of([7], 3, 1, 1).tolist() == []


@pytest.mark.parametrize(("begin", "end"), [(0, 4), (-1, 2), (3, 2)])
def test_positions_outside_the_blocks_are_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="not within 1 blocks"):
        slots_of([7], 3, begin, end)


def test_shapes_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        PagedShape(1, 1, 0, 1, 1)
    with pytest.raises(ValueError, match="slots must be at least 1, not -3"):
        ArenaShape(1, -3, 1, 1)
    with pytest.raises(ValueError, match="layout 'x' is none of nhd, hnd"):
        PagedShape(1, 1, 1, 1, 1, layout="x")  # type: ignore[arg-type]
