"""Tensors that a kernel could not address are refused, with a message that names the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_backend import launches, ops
from tests.gpu_backend.kernels.poisoned import Batch, Shape, batch

Change = Callable[[Batch], dict[str, Any]]

PAGED: list[tuple[str, Change]] = [
    ("layout 'dnh' is none of nhd, hnd", lambda case: {"layout": "dnh"}),
    ("key_cache has shape", lambda case: {"key_cache": case.key_cache[0]}),
    ("value_cache has shape", lambda case: {"value_cache": case.value_cache[:-1]}),
    ("value_cache is torch.float16", lambda case: {"value_cache": case.value_cache.half()}),
    (
        "different strides",
        lambda case: {"value_cache": case.value_cache.transpose(1, 2).contiguous().transpose(1, 2)},
    ),
    ("block_table is torch.int64", lambda case: {"block_table": case.block_table.long()}),
    ("query has shape", lambda case: {"query": case.query[..., :-1]}),
    ("query is torch.bfloat16", lambda case: {"query": case.query.bfloat16()}),
    ("not contiguous along its last axis", lambda case: {"query": case.query.mT.contiguous().mT}),
    ("3 query heads are no multiple of 2", lambda case: {"query": case.query[:, :3]}),
    ("out has shape", lambda case: {"out": case.query[:1]}),
    ("context_lens is torch.int64", lambda case: {"context_lens": case.context_lens.long()}),
    ("context_lens has shape", lambda case: {"context_lens": case.context_lens[:1]}),
    ("negative length", lambda case: {"context_lens": case.context_lens - 10}),
    ("longer than the table", lambda case: {"context_lens": case.context_lens + 50}),
    ("block_table holds an id outside", lambda case: {"context_lens": case.context_lens + 4}),
    ("window -1 is negative", lambda case: {"window": -1}),
    ("soft_cap -1.0 is negative", lambda case: {"soft_cap": -1.0}),
]


@pytest.mark.parametrize(("message", "change"), PAGED, ids=[message for message, _ in PAGED])
def test_paged_decode_refuses(message: str, change: Change) -> None:
    case = batch(Shape(), [9, 4])
    names = ("query", "key_cache", "value_cache", "block_table")
    arguments = dict(zip(names, case.paged, strict=True))
    arguments |= {"context_lens": case.context_lens} | case.shape.paged_options
    with pytest.raises(ValueError, match=message):
        ops.paged_decode(**(arguments | change(case)))


def test_decode_takes_one_query_per_sequence() -> None:
    case = batch(Shape(), [9, 4], [2, 1])
    with pytest.raises(ValueError, match="3 queries for 2 sequences"):
        ops.paged_decode(*case.paged, case.context_lens, **case.shape.paged_options)


def test_a_context_above_its_stated_bound_is_refused() -> None:
    case = batch(Shape(), [9, 4])
    with pytest.raises(ValueError, match="above max_context 8"):
        ops.paged_decode(*case.paged, case.context_lens, **case.shape.paged_options, max_context=8)


def test_a_head_size_above_256_is_refused() -> None:
    case = batch(Shape(head_dim=264), [3])
    with pytest.raises(ValueError, match="head size 264 is above 256"):
        ops.paged_decode(*case.paged, case.context_lens, **case.shape.paged_options)


def test_a_block_size_above_128_is_refused() -> None:
    case = batch(Shape(block_size=129), [3])
    with pytest.raises(ValueError, match="block size 129 is above 128"):
        ops.paged_decode(*case.paged, case.context_lens, **case.shape.paged_options)


@pytest.mark.parametrize(
    ("query_start", "message"),
    [
        ([1, 2, 3], "no prefix sum from 0"),
        ([0, 3, 2], "no prefix sum from 0"),
        ([0, 2, 4], "reaches past the queries"),
        ([0, 0, 3], "more queries than context"),
        ([0, 3], "query_start has shape"),
    ],
)
def test_prefill_refuses(query_start: list[int], message: str) -> None:
    case = batch(Shape(), [9, 2], [2, 1])
    starts = torch.tensor(query_start, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        ops.paged_prefill(*case.paged, starts, case.context_lens, **case.shape.paged_options)


def test_a_sequence_outside_the_arena_is_refused() -> None:
    case = batch(Shape(), [9, 4])
    with pytest.raises(ValueError, match="leaves the 21 slots"):
        ops.contiguous_decode(
            *case.contiguous[:-1], case.start_slots + 10, case.context_lens, **case.shape.options
        )


def test_slots_blocks_and_pairs_outside_the_cache_are_refused() -> None:
    case = batch(Shape(), [9])
    caches = (case.key_cache, case.value_cache)
    blocks = torch.tensor([int(case.key_cache.shape[0])])
    key = torch.zeros(1, 2, 24)
    with pytest.raises(ValueError, match="slot_mapping holds an id outside"):
        ops.reshape_and_cache(key, key, *caches, blocks * 4, layout="nhd")
    with pytest.raises(ValueError, match="pairs holds an id outside"):
        ops.copy_blocks(*caches, torch.stack([blocks, blocks], 1))
    with pytest.raises(ValueError, match="blocks holds an id outside"):
        ops.swap_out_blocks(*caches, blocks)
    with pytest.raises(ValueError, match="buffer has shape"):
        ops.swap_in_blocks(torch.zeros(2, 2, 4, 2, 24), *caches, blocks * 0)


def test_blocks_that_are_not_whole_are_not_copied() -> None:
    case = batch(Shape(), [9])
    part = (case.key_cache[:, :, :1], case.value_cache[:, :, :1])
    with pytest.raises(ValueError, match="not contiguous"):
        ops.copy_blocks(*part, torch.tensor([[0, 1]]))


def test_without_the_interpreter_a_cpu_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "interpreted", lambda: False)
    case = batch(Shape(), [9])
    with pytest.raises(ValueError, match="run on CUDA, not on cpu"):
        ops.paged_decode(*case.paged, case.context_lens, **case.shape.paged_options)
