"""The public traces themselves, where the machine has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.workload import (
    KNOWN_TRACES,
    PairLengths,
    TraceWorkload,
    describe,
    find_trace,
)


def trace(shared: Path, name: str) -> Path:
    path = find_trace(name, {"KVSIM_TRACES": str(shared / "traces")})
    if path is None:
        pytest.skip(f"needs {KNOWN_TRACES[name].file_name} in {shared / 'traces'}")
    return path


@pytest.mark.parametrize("name", sorted(KNOWN_TRACES))
def test_every_row_of_every_known_trace_is_kept(shared: Path, name: str) -> None:
    path = trace(shared, name)
    reader = PairLengths if name.endswith("lengths") else TraceWorkload
    counts = reader(path).counts
    assert counts.read == counts.kept == KNOWN_TRACES[name].rows
    assert counts.dropped == {}


@pytest.mark.parametrize(
    ("name", "span_s", "rate", "cv", "prompt", "output"),
    [
        ("azure-code-2023", 3_435.9, 2.57, 13.2, (2_048, 1_469, 7_436), (27.9, 13, 252)),
        ("azure-conv-2023", 3_501.7, 5.53, 1.09, (1_155, 1_020, 4_142), (211, 129, 601)),
        ("mooncake-conversation", 3_537, 3.40, 3.03, (12_035, 6_909, 85_400), (343, 350, 1_119)),
        ("mooncake-synthetic", 1_022, 3.91, 1.01, (15_326, 11_587, 66_456), (149, 69, 768)),
    ],
)
def test_statistics_are_the_published_ones(
    shared: Path,
    name: str,
    span_s: float,
    rate: float,
    cv: float,
    prompt: tuple[float, ...],
    output: tuple[float, ...],
) -> None:
    facts = describe(TraceWorkload(trace(shared, name)))
    assert facts["span_s"] == pytest.approx(span_s, abs=0.06 if span_s % 1 else 0.6)
    assert facts["rate_rps"] == pytest.approx(rate, abs=0.006)
    assert facts["gap_cv"] == pytest.approx(cv, rel=0.005)
    for column, expected in (("prompt_tokens", prompt), ("output_tokens", output)):
        found = [facts[column][key] for key in ("mean", "p50", "p99")]
        assert found == pytest.approx(expected, rel=0.005)


def test_azure_conv_has_its_first_and_last_rows_in_whole_ticks(shared: Path) -> None:
    rows = list(TraceWorkload(trace(shared, "azure-conv-2023")))
    assert rows[0][1:4] == (0, 374, 44)
    assert rows[1][1:4] == (4_314_579_000, 396, 109)
    assert rows[-1].arrival_ns == 3_501_721_937_000


def test_mooncake_ties_keep_file_order(shared: Path) -> None:
    rows = list(TraceWorkload(trace(shared, "mooncake-conversation")))
    assert [row.request_id for row in rows] == [f"r{i}" for i in range(12_031)]
    assert len({row.arrival_ns for row in rows}) == 1_180


def test_smearing_mooncake_leaves_no_instant_with_many_arrivals(shared: Path) -> None:
    path = trace(shared, "mooncake-conversation")
    rows = list(TraceWorkload(path, smear_s=3.0))
    assert [row.request_id for row in rows] == [f"r{i}" for i in range(12_031)]
    assert len({row.arrival_ns for row in rows}) == 12_031
    assert describe(TraceWorkload(path, smear_s=3.0))["gap_cv"] == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("file", "first", "last_s"),
    [
        ("AzureLLMInferenceTrace_code_1week.HEAD5_TAIL5.csv", (0, 2_162, 5), 604_799.919571),
        ("AzureLMMInferenceTrace_multimodal.HEAD5_TAIL4.csv", (0, 770, 491), 604_799.693),
    ],
)
def test_the_formats_of_2024_and_2025_are_read(
    shared: Path, file: str, first: tuple[int, int, int], last_s: float
) -> None:
    rows = list(TraceWorkload(shared / "traces" / file))
    assert rows[0][1:4] == first
    assert rows[-1].arrival_ns == round(last_s * 1e6) * 1_000
