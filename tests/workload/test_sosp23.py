"""The trace recipe of the PagedAttention artifact, against its published fixtures."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.workload import PairLengths, Sosp23Workload, find_trace, length_preset

FIXTURES = [
    (4.0, 900, 3604, 547_150, 1_200_908, 899.94),
    (2.0, 3600, 7280, 1_161_055, 2_446_263, 3599.99),
    (1.5, 900, 1349, 193_803, 446_099, 899.4),
    (1.0, 3600, 3640, 552_760, 1_210_979, 3599.27),
    (0.5, 3600, 1814, 266_145, 603_123, 3593.49),
    (2.01, 600, 1166, 164_668, 388_714, 599.93),
]
"""Rate, duration; requests, prompt and output tokens, last arrival in s, all at seed 0."""


@pytest.fixture(scope="module")
def pairs(shared: Path) -> PairLengths:
    path = find_trace("sharegpt-opt-lengths", {"KVSIM_TRACES": str(shared / "traces")})
    assert path is not None
    return PairLengths(path)


@pytest.mark.parametrize(("rate", "duration", "count", "prompts", "outputs", "last"), FIXTURES)
def test_the_recipe_gives_the_artifacts_requests(
    pairs: PairLengths,
    rate: float,
    duration: float,
    count: int,
    prompts: int,
    outputs: int,
    last: float,
) -> None:
    rows = list(Sosp23Workload(pairs, rate_rps=rate, duration_s=duration))
    assert len(rows) == count
    assert sum(row.prompt_tokens for row in rows) == prompts
    assert sum(row.output_tokens for row in rows) == outputs
    assert rows[-1].arrival_ns == round(last * 100) * 10_000_000


def test_the_first_five_requests_of_fig_2(pairs: PairLengths) -> None:
    rows = list(Sosp23Workload(pairs, rate_rps=4.0))[:5]
    assert [(row.arrival_ns / 1e9, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (0.08, 48, 602),
        (0.19, 147, 74),
        (0.5, 25, 20),
        (0.67, 32, 67),
        (0.68, 675, 848),
    ]


def test_the_recipe_takes_short_pairs_from_the_top_wraps_and_shuffles(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt_tokens,output_tokens\n1,1\n1000,1048\n2,2\n1000,1047\n")
    workload = Sosp23Workload(PairLengths(path), rate_rps=20.0, duration_s=0.5, seed=3)
    counts = np.random.RandomState(3).poisson(0.2, 50)
    taken = [((1, 1), (2, 2), (1000, 1047))[i % 3] for i in range(counts.sum())]
    random.Random(3).shuffle(taken)
    rows = list(workload)
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == taken
    assert [r.arrival_ns for r in rows] == [
        quantum * 10_000_000 for quantum, count in enumerate(counts) for _ in range(count)
    ]
    assert len(rows) == workload.counts.kept > 3
    assert workload.counts.read == len(rows) + workload.counts.dropped["too_long"]
    other = Sosp23Workload(PairLengths(path), rate_rps=20.0, duration_s=0.5, seed=4)
    assert workload.digest != other.digest


def test_the_recipe_needs_a_short_pair(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt_tokens,output_tokens\n1000,1048\n")
    with pytest.raises(InputError, match="no pair has fewer than 2048 tokens"):
        Sosp23Workload(PairLengths(path), rate_rps=1.0)


def test_the_recipe_draws_its_pairs_from_a_law_by_the_seed() -> None:
    """The arrivals of Fig. 2 do not depend on the lengths: 3,604 requests, the first at 0.08 s."""
    law = length_preset("sharegpt")
    workload = Sosp23Workload(law, rate_rps=4.0, source="preset sharegpt")
    rows = list(workload)
    assert (len(rows), rows[0].arrival_ns) == (3604, 80_000_000)
    assert workload.source == "sosp23 preset sharegpt"
    assert list(Sosp23Workload(law, rate_rps=4.0)) == rows == list(workload)
    assert list(Sosp23Workload(law, rate_rps=4.0, seed=1)) != rows
    assert max(row.prompt_tokens + row.output_tokens for row in rows) < 2048


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rate_rps": 0.0}, "rate_rps"),
        ({"duration_s": 0.0}, "duration_s"),
        ({"seed": -1}, "seed"),
        ({"rate_rps": 1e6, "duration_s": 1e6}, "rate_rps \\* duration_s"),
    ],
)
def test_settings_out_of_their_limits_are_refused(change: dict[str, float], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Sosp23Workload(length_preset("sharegpt"), **({"rate_rps": 1.0} | change))  # type: ignore[arg-type]
