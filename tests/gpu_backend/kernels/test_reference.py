"""The oracle against PyTorch's own attention, and against loops that anyone can check."""

from __future__ import annotations

import math

import pytest
import torch

from gpu_backend import reference
from tests.gpu_backend.kernels.poisoned import Shape, batch


def by_hand(
    query: list[float], keys: torch.Tensor, values: torch.Tensor, scale: float, soft_cap: float
) -> torch.Tensor:
    """One query of one head over `keys`, `values` [tokens, d]."""
    scores = [scale * sum(q * float(k) for q, k in zip(query, key, strict=True)) for key in keys]
    if soft_cap:
        scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
    weights = [math.exp(score) for score in scores]
    rows = [weight * row for weight, row in zip(weights, values.double(), strict=True)]
    return torch.stack(rows).sum(0) / sum(weights)


@pytest.mark.parametrize("soft_cap", [0.0, 0.7])
@pytest.mark.parametrize("window", [0, 3])
def test_attention_is_what_its_formula_says(window: int, soft_cap: float) -> None:
    query, key = torch.randn(4, 6, 8), torch.randn(7, 2, 8)
    value = torch.randn(7, 2, 8)
    found = reference.attend(query, key, value, scale=0.3, window=window, soft_cap=soft_cap)
    for row in range(4):
        position = 3 + row
        first = max(0, position - window + 1) if window else 0
        seen = slice(first, position + 1)
        for head in range(6):
            kv_head = head // 3
            expected = by_hand(
                query[row, head].tolist(), key[seen, kv_head], value[seen, kv_head], 0.3, soft_cap
            )
            assert torch.allclose(found[row, head], expected, rtol=1e-12)


def test_it_agrees_with_pytorch() -> None:
    query, key, value = torch.randn(3, 5, 4, 16)
    found = reference.attend(query, key, value, scale=0.25)
    heads_first = [tensor.double().transpose(0, 1) for tensor in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, is_causal=True, scale=0.25
    )
    assert torch.allclose(found, expected.transpose(0, 1), rtol=1e-12)


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("window", [0, 5])
def test_paged_and_contiguous_agree(window: int, layout: str) -> None:
    shape = Shape(layout=layout, window=window)
    case = batch(shape, [0, 1, 9, 14], [0, 1, 4, 14])
    asked = (case.query_start, case.context_lens)
    paged = reference.paged_prefill(*case.paged, *asked, **shape.paged_options)
    plain = reference.contiguous_prefill(*case.contiguous, *asked, **shape.options)
    assert torch.equal(paged, plain)
    assert not bool(paged.isnan().any())


def test_decode_is_prefill_of_one_query_and_an_empty_sequence_is_zero() -> None:
    shape = Shape()
    case = batch(shape, [0, 6], [1, 1])
    found = reference.paged_decode(*case.paged, case.context_lens, **shape.paged_options)
    plain = reference.contiguous_decode(*case.contiguous, case.context_lens, **shape.options)
    assert torch.equal(found, plain)
    assert bool((found[0] == 0).all())
    assert bool((found[1] != 0).all())


def test_results_go_to_out_in_its_type() -> None:
    case = batch(Shape(dtype=torch.float16), [6])
    options = case.shape.paged_options
    found = reference.paged_decode(*case.paged, case.context_lens, **options, out=case.out)
    exact = reference.paged_decode(*case.paged, case.context_lens, **options)
    assert found.dtype == torch.float16
    assert torch.equal(found, exact.half())
