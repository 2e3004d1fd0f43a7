"""Caches of more than 2^32 elements, of which only a few pages exist.

The one block in use lies where its offset, cut to 32 bits, is that of a block full of NaN: a kernel
that multiplies in 32 bits returns NaN.
"""

from __future__ import annotations

import mmap

import pytest
import torch

from gpu_backend import ops, reference
from tests.gpu_backend.kernels.poisoned import NAN, assert_equal

BLOCK, DIM = 4096, 32  # a block's elements: 128 tokens of one head of 32
NEAR, FAR = 3, 2**32 // BLOCK + 3
TOKENS = 5


@pytest.fixture(scope="module")
def vast() -> torch.Tensor:
    """float16 [blocks, 128, 1, 32] of 8 GiB address space; block FAR is zero, block NEAR NaN."""
    size = 2 * BLOCK * (FAR + 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        pytest.skip(f"needs 8 GiB of address space: {error}")
    cache = torch.frombuffer(memory, dtype=torch.float16).view(-1, BLOCK // DIM, 1, DIM)
    cache[NEAR] = NAN
    return cache


@pytest.fixture
def tokens(vast: torch.Tensor) -> torch.Tensor:
    """Writes `TOKENS` random tokens into block FAR, NaN behind them, and returns them."""
    tokens = torch.randn(TOKENS, 1, DIM).half()
    vast[FAR] = NAN
    vast[FAR, :TOKENS] = tokens
    return tokens


def test_decode_and_prefill_reach_a_block_beyond_32_bits(
    vast: torch.Tensor, tokens: torch.Tensor
) -> None:
    query = torch.randn(1, 2, DIM).half()
    table = torch.tensor([[FAR]], dtype=torch.int32)
    lens = torch.tensor([TOKENS], dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    expected = reference.attend(query, tokens, tokens, scale=0.2)
    arguments = (query, vast, vast, table)
    assert_equal(ops.paged_decode(*arguments, lens, scale=0.2, layout="nhd"), expected)
    found = ops.paged_prefill(*arguments, starts, lens, scale=0.2, layout="nhd")
    assert_equal(found, expected)


def test_contiguous_attention_reaches_a_slot_beyond_32_bits(
    vast: torch.Tensor, tokens: torch.Tensor
) -> None:
    query = torch.randn(1, 2, DIM).half()
    arena = vast.flatten(0, 1)
    start = torch.tensor([FAR * (BLOCK // DIM)])
    lens = torch.tensor([TOKENS], dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    expected = reference.attend(query, tokens, tokens, scale=0.2)
    assert_equal(ops.contiguous_decode(query, arena, arena, start, lens, scale=0.2), expected)
    found = ops.contiguous_prefill(query, arena, arena, start, starts, lens, scale=0.2)
    assert_equal(found, expected)


def test_writes_and_copies_reach_a_block_beyond_32_bits(
    vast: torch.Tensor, tokens: torch.Tensor
) -> None:
    new = torch.randn(1, 1, DIM).half()
    slot = torch.tensor([FAR * (BLOCK // DIM) + TOKENS])
    ops.reshape_and_cache(new, new, vast, vast, slot, layout="nhd")
    assert torch.equal(vast[FAR, TOKENS], new[0])
    ops.copy_blocks(vast, vast, torch.tensor([[FAR, 0]]))
    assert torch.equal(vast[0, : TOKENS + 1], torch.cat([tokens, new]))
    buffer = ops.swap_out_blocks(vast, vast, torch.tensor([FAR]))
    assert torch.equal(buffer[1, 0, :TOKENS], tokens)
    assert bool(vast[NEAR].isnan().all())
