"""Prefill and mixed batches against float64, in the interpreter, all that is unused poisoned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpu_backend import ops, reference
from gpu_backend.configs import PrefillConfig
from tests.gpu_backend.kernels.poisoned import Shape, assert_equal, batch

TILES = PrefillConfig(rows=16, tile=16, warps=1, stages=1)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def check_paged(shape: Shape, contexts: list[int], queries: list[int]) -> None:
    case = batch(shape, contexts, queries)
    arguments = (*case.paged, case.query_start, case.context_lens)
    options = shape.paged_options
    found = ops.paged_prefill(*arguments, **options, out=case.out, config=TILES)
    assert_equal(found, reference.paged_prefill(*arguments, **options))


def check_contiguous(shape: Shape, contexts: list[int], queries: list[int]) -> None:
    case = batch(shape, contexts, queries)
    arguments = (*case.contiguous, case.query_start, case.context_lens)
    found = ops.contiguous_prefill(*arguments, **shape.options, out=case.out, config=TILES)
    assert_equal(found, reference.contiguous_prefill(*arguments, **shape.options))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("block_size", [3, 16])
def test_a_mixed_batch(block_size: int, window: int, layout: str, dtype: torch.dtype) -> None:
    shape = Shape(block_size=block_size, layout=layout, dtype=dtype, window=window)
    # A decode, a whole prompt, nothing, a chunk after a cached prefix, an empty sequence.
    check_paged(shape, [19, 11, 7, 21, 0], [1, 11, 0, 9, 0])


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_the_usual_head_sizes(head_dim: int) -> None:
    check_paged(Shape(head_dim=head_dim, dtype=FP16, kv_heads=1), [18, 3], [6, 3])


@pytest.mark.parametrize("group", [1, 3, 7, 16, 20])
def test_any_number_of_query_heads_per_kv_head(group: int) -> None:
    check_paged(Shape(group=group, kv_heads=1), [18, 3], [6, 2])


def test_soft_cap() -> None:
    check_paged(Shape(soft_cap=0.7), [19, 5], [4, 5])


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("window", [0, 9])
def test_contiguous_prefill(window: int, dtype: torch.dtype) -> None:
    check_contiguous(Shape(window=window, dtype=dtype), [19, 11, 7, 21, 0], [1, 11, 0, 9, 0])


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_of_one_query_each_is_a_decode(seed: int) -> None:
    shape = Shape(group=4, block_size=5)
    case = batch(shape, [1, 17, 30, 8], seed=seed)
    options = shape.paged_options
    decoded = ops.paged_decode(*case.paged, case.context_lens, **options)
    prefilled = ops.paged_prefill(*case.paged, case.query_start, case.context_lens, **options)
    assert_equal(prefilled, decoded.double())


def test_rows_past_the_last_sequence_are_left_alone() -> None:
    case = batch(Shape(), [6, 3], [4, 3])
    query = torch.cat([case.query, case.query[:3]])
    out = torch.full_like(query, 5.0)
    arguments = (*case.paged[1:], case.query_start, case.context_lens)
    ops.paged_prefill(query, *arguments, **case.shape.paged_options, out=out)
    assert bool((out[7:] == 5).all())
    expected = reference.paged_prefill(*case.paged, *arguments[-2:], **case.shape.paged_options)
    assert_equal(out[:7], expected)


def test_many_sequences_find_their_tiles() -> None:
    queries = [0, 3, 0, 0, 1, 9, 2, 0, 5, 1, 0]
    shape = replace(Shape(), kv_heads=1, group=3)
    check_paged(shape, [count + 2 * (count > 0) for count in queries], queries)


def test_an_empty_batch() -> None:
    case = batch(Shape(), [4, 0], [0, 0])
    arguments = (*case.paged, case.query_start, case.context_lens)
    assert ops.paged_prefill(*arguments, **case.shape.paged_options).shape == (0, 4, 24)
