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
from kvsim.papers.table1 import SERVERS, memory_interval, num_blocks
from kvsim.results import SummaryRecorder
from kvsim.results.memory import paper_terms
from kvsim.scenario import load_scenario, replicas


def failures(name: str = "sosp23-rules") -> set[str]:
    """Keys of the judged numbers that are off."""
    (found,) = reproduce([FIGURES[name]], lengths="preset", workers=1)
    assert found.passed is (not [row for row in found.results if row.passed is False])
    return {row.target.key for row in found.results if row.passed is False}


@pytest.mark.parametrize("name", ["sosp23-table1", "sosp23-rules"])
def test_a_cheap_reproduction_passes(name: str) -> None:
    assert failures(name) == set()


def test_the_closed_forms_are_the_ones_worked_out_by_hand() -> None:
    """200 + 304 tokens, iterations 10 to 299: lengths 210 to 499, their mean is the middle.

    Tails of 288 of them are 0..15 eighteen times, those of 498 and 499 are 14 and 13.
    """
    values = expected()
    assert values["vllm/iterations"] == values["vllm/output"] == 290
    assert values["vllm/tokens"] == values["max/tokens"] == 354.5
    assert values["pow2/reservation"] == 504 - 354.5
    assert (values["max/internal"], values["pow2/internal"], values["oracle/internal"]) == (
        2048 - 504,
        512 + 200 - 504,
        0,
    )
    assert values["vllm/tail"] == (18 * 120 + 14 + 13) / 290
    # The last block, slots 496 to 511, is held for the lengths 497 to 499 and keeps 512 - 503 = 9.
    assert values["vllm/internal"] == 9 * 3 / 290
    assert values["max/slots"] == 983 * 16


def test_the_window_opens_and_closes_as_the_steps_of_its_closed_form_start() -> None:
    """Step 0 takes 50 ms, step j 20 ms + 10 us x (200 + j)."""
    starts = [0]
    for step in range(300):
        starts.append(starts[-1] + (50_000 if step == 0 else 20_000 + 10 * (200 + step)))
    window = load_scenario("papers/sosp23-rules").measure
    assert window.to_s is not None
    assert (round(window.from_s * 1e6), round(window.to_s * 1e6)) == (starts[10], starts[300])


@pytest.mark.parametrize(
    "window",
    [
        None,
        (248_450_001, 7_076_500_000),
        (248_449_999, 7_076_500_000),
        (248_450_000, 7_076_500_001),
        (248_450_000, 7_076_499_999),
        (0, 7_076_500_000),
        (248_450_000, 2**62),
    ],
)
def test_another_window_is_noticed_to_the_nanosecond(
    window: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_window", lambda measure: window)
    assert failures() & {"vllm/iterations", "vllm/output", "vllm/tokens"}


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
    terms = paper_terms

    def shifted(sums: Any, capacity: int) -> dict[str, float | None]:
        found = terms(sums, capacity)
        found["reservation"] = (found["reservation"] or 0) - 1 / capacity
        return found

    monkeypatch.setattr(recorder, "paper_terms", shifted)
    assert failures() == {"max/reservation", "pow2/reservation", "oracle/reservation"}


# Blocks whose slots the paper's decimals round: 15,650 to 15,749, 9,650 to 9,749, 60,050 to 60,149.
@pytest.mark.parametrize(
    ("model", "fewest", "most"),
    [("opt-13b", 979, 984), ("opt-66b", 604, 609), ("opt-175b", 3754, 3759)],
)
def test_table_1_follows_for_every_memory_in_the_computed_interval(
    model: str, fewest: int, most: int
) -> None:
    """The next memory on either side has a block too few or too many."""
    gpus, _, paper = SERVERS[model]
    low_gib, high_gib = memory_interval(model)
    blocks = [
        num_blocks(model, gpus=gpus, memory_gib=memory)
        for memory in (low_gib - 0.001, low_gib, high_gib, high_gib + 0.001)
    ]
    assert blocks == [fewest - 1, fewest, most, most + 1]
    assert round(fewest * 16 / 1000, 1) == round(most * 16 / 1000, 1) == paper


def test_the_artifact_s_own_log_of_983_blocks_is_met() -> None:
    assert num_blocks("opt-13b", gpus=1, memory_gib=39.40) == 983


def test_one_memory_per_gpu_gives_all_slots_of_table_1() -> None:
    (found,) = reproduce([FIGURES["sosp23-table1"]], lengths="preset", workers=1)
    ends = {row.target.key: row.mean for row in found.results if "/" in row.target.key}
    assert ends == {
        "A100-40GB/low": 39.393,
        "A100-40GB/high": 39.415,
        "A100-80GB/low": 79.137,
        "A100-80GB/high": 79.191,
    }
