from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from gpu_backend import cpu
from gpu_backend.cpu import attention
from gpu_backend.cpu.plan import SPLIT, Work, plan_work
from tests.gpu_backend_cpu.batches import RUBBISH, Array, Batch, Shape, expected, make_batch

GQA, MHA = Shape(8, 2, 64), Shape(3, 3, 64)
SHAPES = [GQA, MHA, Shape(6, 2, 64), Shape(4, 1, 80), Shape(8, 2, 128), Shape(7, 1, 256)]
BLOCK_SIZES = [1, 3, 16, 31, 64, 128]
GAPS = np.zeros((10, 2, 32, 64), np.float32)[:, :, ::2]
"""A cache of which every second row belongs to something else."""
CLOSE = 3e-6
"""Largest deviation from float64, with keys, values and queries of variance 1."""


def decode(batch: Batch, kind: str, **options: Any) -> Array:
    call = cpu.paged_decode if kind == "paged" else cpu.contiguous_decode
    scale = batch.query.shape[2] ** -0.5
    memory = getattr(batch, kind)
    call(batch.query, *memory, batch.contexts, scale=scale, out=batch.out, **options)
    return batch.out


def prefill(batch: Batch, kind: str, **options: Any) -> Array:
    call = cpu.paged_prefill if kind == "paged" else cpu.contiguous_prefill
    scale = batch.query.shape[2] ** -0.5
    ranges = batch.query_start, batch.contexts
    call(batch.query, *getattr(batch, kind), *ranges, scale=scale, out=batch.out, **options)
    return batch.out


def deviation(found: Array, wanted: Array) -> float:
    """Largest absolute difference; infinite if anything is NaN."""
    difference = np.abs(found - wanted).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def decode_batch(shape: Shape, size: int, **options: Any) -> Batch:
    return make_batch(shape, [0, 1, size, 2 * size + 3, 33, SPLIT + 7], size, **options)


def mixed_batch(shape: Shape, size: int) -> Batch:
    """Decodes, whole prompts, a chunk behind a prefix, and a prompt of several query tiles."""
    contexts = [0, 1, size, 2 * size + 3, 33, 700, 300]
    return make_batch(shape, contexts, size, queries=[1, 1, min(size, 5), 3, 33, 1, 150])


@pytest.mark.parametrize("kind", ["paged", "contiguous"])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_decode_agrees_with_float64(size: int, window: int, kind: str) -> None:
    batch = decode_batch(GQA, size)
    found = decode(batch, kind, window=window)
    assert deviation(found, expected(batch, window=window)) < CLOSE


@pytest.mark.parametrize("kind", ["paged", "contiguous"])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_prefill_agrees_with_float64(size: int, window: int, kind: str) -> None:
    batch = mixed_batch(GQA, size)
    found = prefill(batch, kind, window=window)
    assert deviation(found, expected(batch, window=window)) < CLOSE


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.heads}/{shape[1]}x{shape.dim}")
def test_every_head_size_and_group_agrees_with_float64(shape: Shape) -> None:
    for batch, run in ((decode_batch(shape, 16), decode), (mixed_batch(shape, 16), prefill)):
        assert deviation(run(batch, "paged", window=40), expected(batch, window=40)) < CLOSE


def test_a_long_context_is_joined_from_its_pieces() -> None:
    batch = make_batch(GQA, [4 * SPLIT, 4 * SPLIT + 1, 5], 16)
    assert deviation(decode(batch, "paged"), expected(batch)) < CLOSE


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    batch = decode_batch(GQA, 16, spread=200.0)
    assert deviation(decode(batch, "paged"), expected(batch)) < 1e-4


def test_blocks_before_the_window_are_not_read() -> None:
    batch = make_batch(GQA, [100], 16)
    batch.key_cache[batch.table[0, :5]] = np.nan
    batch.table[0, :5] = RUBBISH
    assert deviation(decode(batch, "paged", window=20), expected(batch, window=20)) < CLOSE


def test_sequences_may_share_blocks() -> None:
    batch = make_batch(GQA, [64, 64], 16)
    batch.table[1, :2] = batch.table[0, :2]
    for side in (batch.keys, batch.values):
        side[1][:32] = side[0][:32]
    assert deviation(decode(batch, "paged"), expected(batch)) < CLOSE


def test_the_layout_in_memory_changes_no_bit() -> None:
    batch = decode_batch(GQA, 16)
    paged, contiguous = decode(batch, "paged").copy(), decode(batch, "contiguous").copy()
    nhd = [np.ascontiguousarray(cache.swapaxes(1, 2)) for cache in batch.paged[:2]]
    changed = batch._replace(key_cache=nhd[0], value_cache=nhd[1])
    np.testing.assert_array_equal(decode(changed, "paged", layout="nhd"), paged)
    key, value = (np.ascontiguousarray(arena) for arena in batch.contiguous[:2])
    changed = batch._replace(key_arena=key, value_arena=value)
    np.testing.assert_array_equal(decode(changed, "contiguous"), contiguous)


def test_the_number_of_threads_changes_no_bit() -> None:
    for batch, run in ((decode_batch(GQA, 16), decode), (mixed_batch(GQA, 16), prefill)):
        one = run(batch, "paged", num_threads=1).copy()
        for threads in (2, 3, None):
            batch.out[:] = np.nan
            np.testing.assert_array_equal(run(batch, "paged", num_threads=threads), one)


def test_addresses_need_more_than_32_bits() -> None:
    batch = make_batch(Shape(4, 1, 64), [300], 128)
    count = 2**31 // (128 * 64) + 8
    try:
        caches = [np.empty((count, 1, 128, 64), np.float32) for _ in range(2)]  # pages on demand
    except MemoryError:
        pytest.skip("needs 17 GB of addresses")
    last = np.arange(count - 3, count, dtype=np.int32)[None]
    for cache, own in zip(caches, batch.paged[:2], strict=True):
        cache[last[0]] = own[batch.table[0, :3]]
    cpu.paged_decode(batch.query, *caches, last, batch.contexts, scale=1 / 8, out=batch.out)
    assert deviation(batch.out, expected(batch)) < CLOSE


def test_torch_tensors_are_used_in_place() -> None:
    torch = pytest.importorskip("torch")
    batch = decode_batch(GQA, 16)
    tensors = [torch.from_numpy(array) for array in (batch.query, *batch.paged, batch.contexts)]
    out = torch.from_numpy(batch.out)
    assert cpu.paged_decode(*tensors, scale=1 / 8, out=out) is out
    assert deviation(batch.out, expected(batch)) < CLOSE
    fresh = cpu.paged_decode(*tensors, scale=1 / 8)
    assert torch.equal(fresh, out)


def _longer(work: Work) -> Work:
    work.items[:, 5] += 1  # one key past the end: its weight comes from NaN
    return work


def _forgetful(work: Work) -> Work:
    work.splits[:, 2] -= 1  # the last piece is not joined
    return work


def _clairvoyant(work: Work) -> Work:
    work.items[:, 3] += 1  # every position sees the next one's key
    return work


def _misplaced(work: Work) -> Work:
    work.items[:, 4] = np.maximum(work.items[:, 4] - 1, 0)  # pieces overlap by one key
    return work


@pytest.mark.parametrize(
    ("mutate", "run"),
    [
        (lambda work: work, None),
        (_longer, decode),
        (_forgetful, decode),
        (_misplaced, decode),
        (_clairvoyant, prefill),
    ],
    ids=["none", "tail", "reduce", "overlap", "causal"],
)
def test_a_mutation_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[Work], Work],
    run: Callable[..., Array] | None,
) -> None:
    monkeypatch.setattr(
        attention, "plan_work", lambda *args, **options: mutate(plan_work(*args, **options))
    )
    batch = make_batch(GQA, [SPLIT + 7, 40], 16, queries=[1, 1] if run is not prefill else [30, 1])
    if run is decode or run is None:
        batch.contexts[1] = 0  # its table would otherwise end in rubbish
    found = (run or decode)(batch, "contiguous")
    assert (deviation(found, expected(batch)) < CLOSE) == (run is None)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"contexts": np.array([33, 500], np.int32)}, ValueError, "within 0 .. 96 tokens"),
        ({"contexts": np.array([33, -1], np.int32)}, ValueError, "within 0 .. 96 tokens, got -1"),
        ({"contexts": np.array([33.0, 1.0])}, TypeError, "context_lens must hold integers"),
        ({"table": np.full((2, 6), 99, np.int32)}, ValueError, "sequence 0 names a block outside"),
        ({"table": np.zeros((2, 6), np.int64)}, TypeError, "block_table must be int32, got int64"),
        ({"query": np.zeros((2, 7, 64), np.float32)}, ValueError, "one of kv_heads"),
        ({"query": np.zeros((2, 8, 64))}, TypeError, "query must be float32, got float64"),
        ({"out": np.zeros((2, 8, 32), np.float32)}, ValueError, r"shape \[2, 8, 64\]"),
        ({"key_cache": GAPS, "value_cache": GAPS}, ValueError, "must lie in one piece"),
        ({"value_cache": GAPS}, ValueError, "in memory in the same order"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    change: dict[str, Array], error: type[Exception], message: str
) -> None:
    batch = make_batch(GQA, [33, 50], 16)._replace(**change)
    with pytest.raises(error, match=message):
        decode(batch, "paged")


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="layout must be one of nhd, hnd, got 'dnh'"):
        decode(make_batch(GQA, [33], 16), "paged", layout="dnh")


def test_a_prefill_longer_than_its_context_is_refused() -> None:
    batch = make_batch(GQA, [33, 2], 16, queries=[1, 3])
    with pytest.raises(ValueError, match="sequence 1 has 3 queries in a context of 2 tokens"):
        prefill(batch, "paged")


def test_an_extent_past_the_arena_is_refused() -> None:
    batch = make_batch(GQA, [33], 16)
    with pytest.raises(ValueError, match=r"sequence 0 needs slots 10 .. 43 of 36"):
        decode(batch._replace(starts=np.array([10])), "contiguous")


def test_a_second_process_finds_the_kernels_compiled() -> None:
    cpu.warm_up(3, 3, 64)
    program = (
        "from gpu_backend.cpu import warm_up\n"
        "from gpu_backend.cpu.kernels import attention_kernel, reduce_kernel\n"
        "warm_up(3, 3, 64)\n"
        "for kernel in (attention_kernel(64, 1), attention_kernel(64, 4), reduce_kernel(64)):\n"
        "    assert kernel.stats.cache_hits and not kernel.stats.cache_misses, kernel.stats\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
