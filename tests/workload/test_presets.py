"""Presets against the traces they are derived from, and against their own statistics."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.workload import (
    KNOWN_TRACES,
    TraceWorkload,
    Workload,
    describe,
    find_trace,
    list_presets,
    preset,
    preset_facts,
)

NAMES = ["azure-code-2023", "azure-conv-2023"]


def assert_alike(name: str, wanted: dict[str, Any]) -> None:
    """Arrivals over one span of the trace; lengths over a sample that leaves little chance."""
    made = describe(preset(name))
    assert made["requests"] == wanted["requests"]
    assert made["span_s"] == pytest.approx(wanted["span_s"], rel=1e-6)
    assert made["rate_rps"] == pytest.approx(wanted["rate_rps"], rel=1e-6)
    assert made["gap_cv"] == pytest.approx(wanted["gap_cv"], rel=0.02)
    many = describe(preset(name, num_requests=400_000, seed=1))
    assert many["correlation"] == pytest.approx(wanted["correlation"], abs=0.01)
    for column in ("prompt_tokens", "output_tokens"):
        for key in ("mean", "p50", "p90", "p99"):
            assert many[column][key] == pytest.approx(wanted[column][key], rel=0.02)
        assert many[column]["std"] == pytest.approx(wanted[column]["std"], rel=0.04)
        assert made[column]["mean"] == pytest.approx(wanted[column]["mean"], rel=0.05)


def dispersion(workload: Workload, window_s: float) -> float:
    """Variance over mean of the arrivals per window: 1 for Poisson."""
    counts = np.bincount([int(row.arrival_ns / 1e9 / window_s) for row in workload])
    return float(counts.var() / counts.mean())


def test_the_shipped_presets_are_the_two_azure_traces() -> None:
    assert list_presets() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_the_statistics_written_in_its_table(name: str) -> None:
    assert_alike(name, preset_facts(name)["statistics"])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_seed_gives_the_span_and_burstiness_of_the_trace(name: str, seed: int) -> None:
    found, wanted = describe(preset(name, seed=seed)), preset_facts(name)["statistics"]
    assert found["span_s"] == pytest.approx(wanted["span_s"], rel=1e-6)
    assert found["gap_cv"] == pytest.approx(wanted["gap_cv"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "requests", "span_s", "prompt", "output"),
    [
        ("azure-conv-2023", 19_366, 3_501.7, (1_155, 1_020, 4_142), (211, 129, 601)),
        ("azure-code-2023", 8_819, 3_435.9, (2_048, 1_469, 7_436), (27.9, 13, 252)),
    ],
)
def test_the_table_holds_the_published_statistics(
    name: str, requests: int, span_s: float, prompt: tuple[int, ...], output: tuple[int, ...]
) -> None:
    statistics = preset_facts(name)["statistics"]
    assert statistics["requests"] == requests
    assert statistics["span_s"] == pytest.approx(span_s, abs=0.05)
    for column, expected in (("prompt_tokens", prompt), ("output_tokens", output)):
        found = [statistics[column][key] for key in ("mean", "p50", "p99")]
        assert found == pytest.approx(expected, rel=0.003)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_as_bursty_as_its_table_says(name: str) -> None:
    """Over windows of 1, 10 and 60 s, on average over seeds and at each of them."""
    facts = preset_facts(name)
    wanted, bound = facts["statistics"]["dispersion"], facts["dispersion_error"]
    assert (bound["mean"], bound["one_seed"]) <= (0.10, 0.20)
    found = [describe(preset(name, seed=seed))["dispersion"] for seed in range(12)]
    for window in ("1", "10", "60"):
        ratios = [dispersions[window] / wanted[window] for dispersions in found]
        assert sum(ratios) / len(ratios) == pytest.approx(1, abs=bound["mean"])
        assert ratios == pytest.approx([1] * len(ratios), abs=bound["one_seed"])
    for figure in bound.values():
        assert f"{figure:.0%}" in facts["notes"]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_resembles_the_real_trace(shared: Path, name: str) -> None:
    """Lengths, their dependence, gaps; the table's dispersion is that of the trace."""
    path = find_trace(name, {"KVSIM_TRACES": str(shared / "traces")})
    assert path is not None
    real = TraceWorkload(path)
    assert_alike(name, describe(real))
    for window, value in preset_facts(name)["statistics"]["dispersion"].items():
        assert value == pytest.approx(dispersion(real, float(window)), rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_those_the_tool_makes_from_the_traces(shared: Path, name: str) -> None:
    path = find_trace(name, {"KVSIM_TRACES": str(shared / "traces")})
    assert path is not None
    facts = preset_facts(name)
    assert (
        facts["original_sha256"] == KNOWN_TRACES[name].sha256 == TraceWorkload(path).content_sha256
    )
    prompts = [r.prompt_tokens for r in TraceWorkload(path)]
    table = facts["prompt_tokens"]
    quantiles = np.quantile(prompts, table["probabilities"], method="hazen")
    assert table["values"] == pytest.approx(quantiles, rel=1e-6)
    windows = facts["windows"]
    edges = np.arange(len(windows["arrivals"]) + 1) * windows["window_s"]
    arrivals = [r.arrival_ns / 1e9 for r in TraceWorkload(path)][1:]
    assert np.histogram(arrivals, edges)[0].tolist() == windows["arrivals"]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_names_source_licence_and_derivation(name: str) -> None:
    facts = preset_facts(name)
    assert facts["licence"] == "CC-BY-4.0"
    assert facts["source"] == KNOWN_TRACES[name].url
    assert "tools/make_presets.py" in facts["how"]
    assert "Microsoft" in facts["attribution"]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_runs_for_any_number_of_requests(name: str) -> None:
    few, many = preset(name, num_requests=10), preset(name, num_requests=30_000)
    assert len(list(few)) == 10
    rows = list(many)
    assert len(rows) == many.counts.kept == 30_000
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(rows))


def test_rate_scale_and_seed_reach_the_generator() -> None:
    base = preset("azure-conv-2023")
    dense = preset("azure-conv-2023", rate_scale=3)
    assert [r.arrival_ns for r in dense] == [r.arrival_ns // 3 for r in base]
    assert base.digest == preset("azure-conv-2023", seed=0).digest
    assert base.digest != preset("azure-conv-2023", seed=1).digest
    assert base.source == "preset azure-conv-2023"


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as error:
        preset("azure-conv")
    message = "preset: 'azure-conv' is no preset. Use one of: azure-code-2023, azure-conv-2023"
    assert str(error.value) == message
