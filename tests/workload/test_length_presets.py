"""The law of ShareGPT's lengths against the published statistics it was derived from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvsim.errors import InputError
from kvsim.workload import (
    JointHistogram,
    PairLengths,
    QuantileTokens,
    find_trace,
    length_preset,
    length_preset_facts,
    list_length_presets,
)
from kvsim.workload.lengths import Streams

ROOT = Path(__file__).resolve().parents[2]
Ints = npt.NDArray[np.int64]


def streams(seed: int) -> Streams:
    first, second = np.random.SeedSequence(seed).spawn(2)
    return Streams(np.random.default_rng(first), np.random.default_rng(second))


@pytest.fixture(scope="module")
def drawn() -> tuple[Ints, Ints]:
    return length_preset("sharegpt").draw(streams(3), 0, 1_000_000)


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    statistics: dict[str, Any] = length_preset_facts("sharegpt")["statistics"]
    return statistics


def test_sharegpt_is_the_one_preset_of_lengths() -> None:
    assert list_length_presets() == ["sharegpt"]


def test_the_table_holds_the_published_statistics(published: dict[str, Any]) -> None:
    """SOSP'23 artifact: 79,725 pairs below 2,048 tokens."""
    facts = length_preset_facts("sharegpt")
    assert published["pairs"] == sum(map(sum, facts["histogram"]["counts"])) == 79_725
    assert round(published["prompt_tokens"]["mean"], 2) == 161.18
    assert round(published["output_tokens"]["mean"], 2) == 338.00
    assert round(published["token_steps"], 2) == 155_182.94
    assert "no rows" in facts["licence"]


def test_means_and_token_steps_are_those_of_the_data(
    drawn: tuple[Ints, Ints], published: dict[str, Any]
) -> None:
    prompts, outputs = drawn
    assert prompts.mean() == pytest.approx(published["prompt_tokens"]["mean"], rel=0.005)
    assert outputs.mean() == pytest.approx(published["output_tokens"]["mean"], rel=0.005)
    assert prompts.std() == pytest.approx(published["prompt_tokens"]["std"], rel=0.02)
    assert outputs.std() == pytest.approx(published["output_tokens"]["std"], rel=0.02)
    token_steps = (prompts * outputs + outputs * (outputs - 1) / 2).mean()
    assert token_steps == pytest.approx(published["token_steps"], rel=0.015)
    correlation = np.corrcoef(prompts, outputs)[0, 1]
    assert correlation == pytest.approx(published["correlation"], abs=0.01)


def test_quantiles_are_those_of_the_data(
    drawn: tuple[Ints, Ints], published: dict[str, Any]
) -> None:
    table = published["quantiles"]
    for name, values in zip(("prompt_tokens", "output_tokens"), drawn, strict=True):
        found = np.quantile(values, table["probabilities"])
        assert found == pytest.approx(table[name], rel=0.05, abs=1)
        assert found[:-2] == pytest.approx(table[name][:-2], rel=0.015, abs=0.5)


def test_every_cell_of_the_histogram_gets_its_share(drawn: tuple[Ints, Ints]) -> None:
    histogram = length_preset_facts("sharegpt")["histogram"]
    edges = [histogram["prompt_edges"], histogram["output_edges"]]
    found = np.histogram2d(*drawn, bins=edges)[0] / len(drawn[0])
    wanted = np.array(histogram["counts"]) / 79_725
    # Four standard deviations of a million draws.
    assert (abs(found - wanted) <= 4 * np.sqrt(wanted / len(drawn[0])) + 1e-6).all()


def test_no_request_reaches_the_limit(drawn: tuple[Ints, Ints]) -> None:
    prompts, outputs = drawn
    assert min(prompts.min(), outputs.min()) >= 1
    assert (prompts + outputs).max() < 2048


@pytest.mark.parametrize(
    ("reserve", "shares"),
    [
        ("max", (22.42, 14.10, 63.48)),
        ("pow2", (46.86, 29.47, 23.67)),
        ("oracle", (61.39, 38.61, 0.0)),
    ],
)
def test_what_reserved_memory_holds_is_as_with_the_data(
    drawn: tuple[Ints, Ints], reserve: str, shares: tuple[float, ...]
) -> None:
    """Closed form 2: tokens, reservation and internal, in percent of the reserved slots."""
    prompts, outputs = drawn
    power = 2 ** np.ceil(np.log2(outputs))
    estimate = {"max": 2048, "pow2": prompts + power, "oracle": prompts + outputs}[reserve]
    reserved = np.minimum(estimate, 2048) * outputs
    tokens = prompts * outputs + outputs * (outputs - 1) / 2
    later = outputs * (outputs + 1) / 2
    found = np.array([tokens.sum(), later.sum(), (reserved - tokens - later).sum()])
    assert 100 * found / reserved.sum() == pytest.approx(shares, abs=0.75)


def test_drawing_in_pieces_gives_the_same_pairs() -> None:
    law = length_preset("sharegpt")
    whole = law.draw(streams(1), 0, 1000)
    pieces = streams(1)
    parts = [law.draw(pieces, start, 250) for start in range(0, 1000, 250)]
    for index in range(2):
        assert np.concatenate([part[index] for part in parts]).tolist() == whole[index].tolist()


def test_the_preset_resembles_the_list(shared: Path, published: dict[str, Any]) -> None:
    path = find_trace("sharegpt-opt-lengths", {"KVSIM_TRACES": str(shared / "traces")})
    assert path is not None
    real = PairLengths(path)
    short = real.prompt_tokens + real.output_tokens < 2048
    prompts, outputs = real.prompt_tokens[short], real.output_tokens[short]
    histogram = length_preset_facts("sharegpt")["histogram"]
    edges = [histogram["prompt_edges"], histogram["output_edges"]]
    assert np.histogram2d(prompts, outputs, bins=edges)[0].tolist() == histogram["counts"]
    assert prompts.mean() == pytest.approx(published["prompt_tokens"]["mean"], rel=1e-12)


@pytest.mark.slow
def test_the_table_is_the_one_the_tool_makes(shared: Path, tmp_path: Path) -> None:
    tool, papers = ROOT / "tools" / "make_sharegpt_preset.py", shared / "facts" / "papers.json"
    subprocess.run([sys.executable, tool, papers, tmp_path / "made.json"], check=True, cwd=ROOT)
    shipped = ROOT / "kvsim" / "workload" / "length_presets" / "sharegpt.json"
    assert (tmp_path / "made.json").read_text() == shipped.read_text()


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'alpaca' is no preset of lengths. Use one of: sharegpt"):
        length_preset("alpaca")


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        (((1, 2),), "must have 1 rows of 1 counts"),
        (((0,),), "counts >= 0 with a pair among them"),
        (((-1,),), "counts >= 0"),
    ],
)
def test_a_histogram_that_is_none_is_refused(
    counts: tuple[tuple[int, ...], ...], problem: str
) -> None:
    line = QuantileTokens((0.0, 1.0), (1.0, 8.0))
    with pytest.raises(InputError, match=problem):
        JointHistogram(line, line, (1, 8), (1, 8), counts, 100)
