"""Writing, copying and swapping cached blocks: the same bits in the right place, nothing else."""

from __future__ import annotations

import pytest
import torch

from gpu_backend import ops, reference
from gpu_backend.kv_cache import PagedShape, allocate

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
IDS = ["fp32", "fp16", "bf16"]


def caches(
    layout: str = "nhd", dtype: torch.dtype = torch.float32, block_size: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = PagedShape(1, 7, block_size, 2, 24, dtype, layout)  # type: ignore[arg-type]
    cache = allocate(shape)
    for tensor in (cache.keys[0], cache.values[0]):
        tensor.copy_(torch.randn(tensor.shape))
    return cache.keys[0], cache.values[0]


def same(*pairs: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return all(torch.equal(found, expected) for found, expected in pairs)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_new_tokens_go_to_their_slots(block_size: int, layout: str, dtype: torch.dtype) -> None:
    key_cache, value_cache = caches(layout, dtype, block_size)
    expected_key, expected_value = key_cache.clone(), value_cache.clone()
    key, value = torch.randn(2, 5, 2, 24).to(dtype)
    slots = torch.tensor([6, -1, 0, 7 * block_size - 1, 3])
    ops.reshape_and_cache(key, value, key_cache, value_cache, slots, layout=layout)
    reference.reshape_and_cache(key, value, expected_key, expected_value, slots, layout=layout)
    assert same((key_cache, expected_key), (value_cache, expected_value))


def test_keys_and_values_may_be_views_of_a_fused_projection() -> None:
    key_cache, value_cache = caches()
    fused = torch.randn(4, 6, 24)
    key, value = fused[:, 2:4], fused[:, 4:]
    slots = torch.tensor([5, 4, 20, 0])
    ops.reshape_and_cache(key, value, key_cache, value_cache, slots, layout="nhd")
    assert same((key_cache.flatten(0, 1)[slots], key), (value_cache.flatten(0, 1)[slots], value))


def test_a_token_wider_than_one_tile() -> None:
    key_cache, value_cache = torch.zeros(2, 3, 2, 9, 128)
    key, value = torch.randn(2, 2, 9, 128)
    slots = torch.tensor([3, 1])
    ops.reshape_and_cache(key, value, key_cache, value_cache, slots, layout="nhd")
    assert same((key_cache.flatten(0, 1)[slots], key), (value_cache.flatten(0, 1)[slots], value))


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
def test_blocks_are_copied(dtype: torch.dtype) -> None:
    key_cache, value_cache = caches(dtype=dtype, block_size=24)
    expected_key, expected_value = key_cache.clone(), value_cache.clone()
    pairs = torch.tensor([[0, 6], [3, 1], [0, 2]])
    ops.copy_blocks(key_cache, value_cache, pairs)
    reference.copy_blocks(expected_key, expected_value, pairs)
    assert same((key_cache, expected_key), (value_cache, expected_value))


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
def test_swapped_blocks_come_back_elsewhere(layout: str, dtype: torch.dtype) -> None:
    key_cache, value_cache = caches(layout, dtype, block_size=24)
    gone, back = torch.tensor([5, 0, 3]), torch.tensor([1, 6, 2])
    buffer = ops.swap_out_blocks(key_cache, value_cache, gone)
    assert torch.equal(buffer, reference.swap_out_blocks(key_cache, value_cache, gone))
    expected_key, expected_value = key_cache.clone(), value_cache.clone()
    ops.swap_in_blocks(buffer, key_cache, value_cache, back)
    reference.swap_in_blocks(buffer, expected_key, expected_value, back)
    assert same((key_cache, expected_key), (value_cache, expected_value))


def test_a_buffer_is_filled_in_place() -> None:
    key_cache, value_cache = caches()
    blocks = torch.tensor([5, 0])
    buffer = torch.full((2, 2, 3, 2, 24), float("nan"))
    assert ops.swap_out_blocks(key_cache, value_cache, blocks, out=buffer) is buffer
    assert same((buffer[0], key_cache[blocks]), (buffer[1], value_cache[blocks]))


def test_nothing_to_do() -> None:
    key_cache, value_cache = caches()
    before = key_cache.clone()
    none = torch.empty(0, dtype=torch.int64)
    empty = torch.empty(0, 2, 24)
    ops.reshape_and_cache(empty, empty, key_cache, value_cache, none, layout="nhd")
    ops.copy_blocks(key_cache, value_cache, none.reshape(0, 2))
    ops.swap_in_blocks(
        ops.swap_out_blocks(key_cache, value_cache, none), key_cache, value_cache, none
    )
    assert torch.equal(key_cache, before)
