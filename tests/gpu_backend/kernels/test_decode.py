"""Decode against float64, in Triton's interpreter, with everything unused poisoned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpu_backend import launches, ops, reference
from gpu_backend.configs import DecodeConfig
from tests.gpu_backend.kernels.poisoned import Shape, assert_equal, batch

ONE_CHUNK = DecodeConfig(tile=16, chunk=64, warps=1, stages=1)
CHUNKS = DecodeConfig(tile=16, chunk=16, warps=1, stages=1)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def check_paged(shape: Shape, contexts: list[int], config: DecodeConfig | None = None) -> None:
    case = batch(shape, contexts)
    arguments, options = (*case.paged, case.context_lens), shape.paged_options
    found = ops.paged_decode(*arguments, **options, out=case.out, config=config)
    assert_equal(found, reference.paged_decode(*arguments, **options))


def check_contiguous(shape: Shape, contexts: list[int], config: DecodeConfig | None = None) -> None:
    case = batch(shape, contexts)
    arguments, options = (*case.contiguous, case.context_lens), shape.options
    found = ops.contiguous_decode(*arguments, **options, out=case.out, config=config)
    assert_equal(found, reference.contiguous_decode(*arguments, **options))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("config", [ONE_CHUNK, CHUNKS], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("head_dim", [24, 32])
def test_paged_decode(
    head_dim: int,
    block_size: int,
    config: DecodeConfig,
    window: int,
    layout: str,
    dtype: torch.dtype,
) -> None:
    shape = Shape(head_dim=head_dim, block_size=block_size, layout=layout, dtype=dtype)
    contexts = [0, 1, block_size, 2 * block_size + 3, 33]
    check_paged(replace(shape, window=window), contexts, config)


@pytest.mark.parametrize("block_size", [1, 3, 24, 128])
def test_any_block_size(block_size: int) -> None:
    check_paged(Shape(block_size=block_size), [block_size - 1, 29])


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_the_usual_head_sizes(head_dim: int) -> None:
    check_paged(Shape(head_dim=head_dim, dtype=FP16, kv_heads=1), [5, 35])


@pytest.mark.parametrize("group", [1, 7, 16, 20])
def test_any_number_of_query_heads_per_kv_head(group: int) -> None:
    check_paged(Shape(group=group, kv_heads=1), [7, 33], CHUNKS)


@pytest.mark.parametrize("config", [ONE_CHUNK, CHUNKS], ids=["one chunk", "chunks"])
def test_soft_cap(config: DecodeConfig) -> None:
    check_paged(Shape(soft_cap=0.7), [3, 33], config)


def test_more_chunks_than_the_reduce_reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_paged(Shape(kv_heads=1), [16 * 18 + 5, 3], CHUNKS)
    monkeypatch.setattr(launches, "REDUCE_TILE", 2)
    check_paged(Shape(), [16 * 7 + 5, 3], CHUNKS)


@pytest.mark.parametrize("window", [16, 17, 33])
def test_a_window_that_crosses_chunks(window: int) -> None:
    check_paged(Shape(window=window, kv_heads=1), [48, 49, 5], CHUNKS)


@pytest.mark.parametrize("config", [ONE_CHUNK, CHUNKS], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
def test_contiguous_decode(dtype: torch.dtype, window: int, config: DecodeConfig) -> None:
    check_contiguous(Shape(dtype=dtype, window=window), [0, 1, 16, 35], config)


def test_a_bound_on_the_context_replaces_a_look_at_the_lengths() -> None:
    case = batch(Shape(), [33, 2])
    arguments, options = (*case.paged, case.context_lens), case.shape.paged_options
    found = ops.paged_decode(*arguments, **options, out=case.out, max_context=40, config=CHUNKS)
    assert_equal(found, reference.paged_decode(*arguments, **options))


def test_queries_and_output_may_be_views() -> None:
    case = batch(Shape(), [33, 2])
    query = torch.empty(2, 2 * 4, 24)[:, ::2].copy_(case.query)
    out = torch.full((2, 4, 48), float("nan"))[..., :24]
    arguments, options = (*case.paged[1:], case.context_lens), case.shape.paged_options
    ops.paged_decode(query, *arguments, **options, out=out)
    assert_equal(out, reference.paged_decode(query, *arguments, **options))


def test_an_empty_batch() -> None:
    case = batch(Shape(), [])
    found = ops.paged_decode(*case.paged, case.context_lens, **case.shape.paged_options)
    assert found.shape == (0, 4, 24)


def test_scores_too_large_for_exp() -> None:
    case = batch(Shape(kv_heads=1), [33])
    arguments = (case.query * 300, *case.paged[1:], case.context_lens)
    found = ops.paged_decode(*arguments, **case.shape.paged_options, out=case.out, config=CHUNKS)
    expected = reference.paged_decode(*arguments, **case.shape.paged_options)
    assert torch.allclose(found.double(), expected, atol=1e-3)
