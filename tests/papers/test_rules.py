"""The cheap reproductions pass, and fail as soon as a rule behind Fig. 2 is changed."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim.core.contiguous as contiguous
import kvsim.results.recorder as recorder
from kvsim.core.paged import PagedAllocator
from kvsim.papers import FIGURES, reproduce
from kvsim.papers.page import figure_data, figure_section
from kvsim.papers.rules import expected
from kvsim.papers.table1 import SERVERS, num_blocks
from kvsim.results import SummaryRecorder


def failures(name: str = "sosp23-rules") -> set[str]:
    """Keys of the judged numbers that are off."""
    (found,) = reproduce([FIGURES[name]], lengths="preset", workers=1)
    assert found.passed is (not [row for row in found.results if row.passed is False])
    return {row.target.key for row in found.results if row.passed is False}


@pytest.mark.parametrize("name", ["sosp23-table1", "sosp23-rules"])
def test_a_cheap_reproduction_passes(name: str) -> None:
    assert failures(name) == set()


def test_the_closed_forms_are_the_ones_worked_out_by_hand() -> None:
    """200 + 304 tokens: mean length 200 + 303/2; tails of 304 lengths are 0..15 nineteen times."""
    values = expected()
    assert values["vllm/tokens"] == values["max/tokens"] == 351.5
    assert values["pow2/reservation"] == 504 - 351.5
    assert (values["max/internal"], values["pow2/internal"], values["oracle/internal"]) == (
        2048 - 504,
        512 + 200 - 504,
        0,
    )
    assert values["vllm/tail"] == (16 - 1) / 2
    # The last block, slots 496 to 511, is held for the lengths 497 to 503 and keeps 512 - 503 = 9.
    assert values["vllm/internal"] == 9 * 7 / 304
    assert values["max/slots"] == 983 * 16


@pytest.mark.parametrize("blocks", [None, 256, 1024])
def test_another_largest_chunk_of_the_buddy_is_noticed(
    blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contiguous, "_chunk_blocks", lambda tokens, block_size: blocks)
    assert failures() >= {"max/chunk", "pow2/chunk", "oracle/chunk"}


def test_a_smaller_largest_chunk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reservations of 2,048 tokens no longer fit: there is no result at all, and that is said."""
    monkeypatch.setattr(contiguous, "_chunk_blocks", lambda tokens, block_size: 64)
    (found,) = reproduce([FIGURES["sosp23-rules"]], lengths="preset", workers=1)
    assert found.problems == (
        "seed 0: papers/sosp23-rules, orca-max: 0 of 1 requests finished, 1 were rejected",
    )
    assert {row.passed for row in found.results} == {False}
    data = figure_data(found)
    assert (data["passed"], data["targets"][0]["ours"]) == (False, None)
    assert "| none | " in figure_section(found)


def test_averaging_over_time_instead_of_iterations_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = SummaryRecorder._memory

    def swapped(self: Any) -> dict[str, object]:
        self._by_iteration, self._by_time = self._by_time, self._by_iteration
        return memory(self)

    monkeypatch.setattr(SummaryRecorder, "_memory", swapped)
    assert failures() >= {"vllm/tokens", "max/tokens", "pow2/reservation", "vllm/internal"}


def test_another_rule_for_the_tail_of_the_last_block_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting the slot of the last sampled token, which never gets one, as filled."""
    never_filled = PagedAllocator._never_filled

    def one_less(self: PagedAllocator, sequence: Any) -> int:
        return max(0, never_filled(self, sequence) - 1)

    def append_bulk(self: PagedAllocator, sequences: Any) -> bool:
        fits = plain(self, sequences)
        self.usage.internal_tail = sum(map(self._never_filled, sequences))
        return fits

    plain = PagedAllocator.append_bulk
    monkeypatch.setattr(PagedAllocator, "_never_filled", one_less)
    monkeypatch.setattr(PagedAllocator, "append_bulk", append_bulk)
    assert failures() == {"vllm/internal", "vllm/reservation"}


def test_another_rule_for_the_paper_s_terms_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail of the last token counted as reserved: one slot less in the reservation."""
    terms = recorder.paper_terms

    def shifted(sums: Any, capacity: int) -> dict[str, float | None]:
        found = terms(sums, capacity)
        found["reservation"] = (found["reservation"] or 0) - 1 / capacity
        return found

    monkeypatch.setattr(recorder, "paper_terms", shifted)
    assert failures() == {"max/reservation", "pow2/reservation", "oracle/reservation"}


@pytest.mark.parametrize(
    ("model", "low_gib", "high_gib", "fewest", "most"),
    [("opt-13b", 39.398, 39.415, 983, 984), ("opt-66b", 39.398, 39.415, 604, 606)],
)
def test_table_1_follows_for_every_memory_in_the_derived_interval(
    model: str, low_gib: float, high_gib: float, fewest: int, most: int
) -> None:
    """983 blocks for OPT-13B, as in the artifact's own log."""
    gpus, _, paper = SERVERS[model]
    low = num_blocks(model, gpus=gpus, memory_gib=low_gib)
    high = num_blocks(model, gpus=gpus, memory_gib=high_gib)
    assert (low, high) == (fewest, most)
    assert round(low * 16 / 1000, 1) == round(high * 16 / 1000, 1) == paper
