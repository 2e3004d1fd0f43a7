from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from gpu_backend.cpu import copy_blocks, reshape_and_cache
from tests.gpu_backend_cpu.batches import Array


def _caches() -> tuple[Array, Array]:
    key = np.full((5, 2, 3, 8), np.nan, np.float32)
    return key, key.copy()


def _tokens(count: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, count, 2, 8), dtype=np.float32)
    return key, value


def test_tokens_go_to_their_slots_and_nowhere_else() -> None:
    key, value = _tokens(4)
    caches = _caches()
    reshape_and_cache(key, value, *caches, np.array([7, -1, 0, 14]))
    for cache, new in zip(caches, (key, value), strict=True):
        wanted = np.full_like(cache, np.nan)
        wanted[2, :, 1], wanted[0, :, 0], wanted[4, :, 2] = new[0], new[2], new[3]
        np.testing.assert_array_equal(cache, wanted)


def test_an_arena_is_a_cache_of_one_block() -> None:
    key, value = _tokens(2)
    for arenas in (np.zeros((2, 10, 2, 8), np.float32), np.zeros((2, 2, 10, 8), np.float32)):
        k, v = arenas if arenas.shape[1] == 10 else arenas.swapaxes(1, 2)
        reshape_and_cache(key, value, k[None], v[None], np.array([9, 3]), layout="nhd")
        np.testing.assert_array_equal(k[[9, 3]], key)
        np.testing.assert_array_equal(v[[9, 3]], value)
        assert not k[[0, 1, 2, 4, 5, 6, 7, 8]].any()


def test_a_slot_past_the_end_is_refused_before_any_write() -> None:
    key, value = _tokens(2)
    caches = _caches()
    with pytest.raises(IndexError, match="names slot 15, the cache has 15"):
        reshape_and_cache(key, value, *caches, np.array([0, 15]))
    assert np.isnan(caches[0]).all()


def test_blocks_are_copied_in_order() -> None:
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal((2, 5, 2, 3, 8), dtype=np.float32)
    before = key.copy(), value.copy()
    copy_blocks(key, value, np.array([[0, 3], [3, 1]]))
    for cache, old in zip((key, value), before, strict=True):
        np.testing.assert_array_equal(cache, old[[0, 0, 2, 0, 4]])


def test_a_block_that_does_not_exist_is_refused_before_any_copy() -> None:
    key, value = _caches()
    key[1] = 1
    with pytest.raises(IndexError, match=r"names blocks 0 .. 5 of 0 .. 4"):
        copy_blocks(key, value, np.array([[1, 0], [0, 5]]))
    assert np.isnan(key[0]).all()


def test_no_pairs_and_no_tokens_change_nothing() -> None:
    caches = _caches()
    copy_blocks(*caches, np.empty((0, 2), np.int64))
    reshape_and_cache(*_tokens(0), *caches, np.empty(0, np.int64))
    assert np.isnan(caches[0]).all()
