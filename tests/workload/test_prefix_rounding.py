"""What whole blocks lose of shared prefixes, and the curve that a front end draws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload.prefix import (
    PrefixAnalysis,
    PrefixTrace,
    Rounding,
    block_rounding,
    fitting_sizes,
    prefix_curve,
    prefix_document,
)
from tests.workload.shared_prompts import Listed, asks, shared_prompts


def test_ten_shared_tokens_are_two_whole_blocks_of_four() -> None:
    """p mod B tokens of a shared prefix are lost, p = 10; the first request repeats nothing."""
    requests = [asks(rank, [("p", 10), (f"own {rank}", 9)], 1) for rank in range(3)]
    found = block_rounding(PrefixTrace.of(Listed(requests)), [1, 4, 16])
    assert found == [
        Rounding(1, 20, 0, 0, 2),
        Rounding(4, 16, 4, 0, 2),
        Rounding(16, 0, 20, 0, 2),
    ]
    assert [row.lost_per_repeat for row in found] == [0, 2, 10]


def test_a_prompt_that_is_repeated_whole_computes_the_block_of_its_last_token_again() -> None:
    requests = [asks(rank, [("p", 8)], 1) for rank in range(2)]
    assert block_rounding(PrefixTrace.of(Listed(requests)), [4]) == [Rounding(4, 4, 0, 4, 1)]


@given(shared_prompts(), st.integers(1, 9))
@settings(max_examples=60)
def test_every_block_size_is_the_bound_of_an_analysis(
    requests: list[Request], block_size: int
) -> None:
    bound = PrefixAnalysis(Listed(requests), block_size).bound
    (found,) = block_rounding(PrefixTrace.of(Listed(requests)), [block_size])
    assert found[:4] == (block_size, bound.hit, bound.rounding, bound.last_token)


def test_only_sizes_that_fit_the_chunks_of_a_trace_can_be_judged() -> None:
    assert fitting_sizes(512, 256) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert fitting_sizes(6, 20) == [1, 2, 3, 6, 12, 18]
    assert fitting_sizes(None, 4) == [1, 2, 3, 4]


@given(shared_prompts(), st.integers(1, 4))
@settings(max_examples=40)
def test_the_curve_is_the_analysis_at_rising_capacities(
    requests: list[Request], block_size: int
) -> None:
    workload = Listed(requests)
    curve = prefix_curve(workload, block_size, best=True, bytes_per_token=2**20)
    analysis = PrefixAnalysis(workload, block_size)
    blocks = [row["blocks"] for row in curve["capacities"]]
    assert blocks == sorted(set(blocks))
    assert (blocks[0], blocks[-1]) == (analysis.largest, analysis.enough)
    exact = prefix_document(workload, analysis, blocks, best=True, bytes_per_token=2**20)
    for row, wanted in zip(curve["capacities"], exact["capacities"], strict=True):
        assert row["lru"] == wanted["lru"]
        assert row["gib"] == row["tokens"] / 1024
        assert row["best_hit_rate"] in (None, wanted["best_hit_rate"])
    assert curve["capacities"][-1]["best_hit_rate"] is not None
    assert {**curve, "capacities": 0} == {**exact, "capacities": 0}


def test_a_workload_without_prefixes_has_no_curve() -> None:
    lonely = Listed([asks(0, None, 3, prompt=5)])
    lonely.shares_prefixes = False
    with pytest.raises(InputError, match="which prompts share a prefix"):
        prefix_curve(lonely, 16)
