from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.scenario import load_scenario, run_scenario
from kvsim.scenario.planned import planned_requests
from tests.scenario.small import TRACE, write_small

LAW = (
    "workload={num_requests: 7, arrivals: {kind: all_at_once},"
    " lengths: {prompt: {kind: constant, tokens: 3}, output: {kind: constant, tokens: 2}}}"
)
CHAT = (
    "workload={arrivals: {kind: constant, rate_rps: 1}, chat: {conversations: 4,"
    " turns: {kind: constant, tokens: 3}, user_tokens: {kind: constant, tokens: 1},"
    " output_tokens: {kind: constant, tokens: 1}, system_tokens: {kind: constant, tokens: 1}}}"
)


@pytest.mark.parametrize(
    "workload", [LAW, CHAT, "workload={preset: azure-code-2023, num_requests: 5}"]
)
def test_as_many_are_planned_as_all_variants_and_seeds_submit(
    tmp_path: Path, workload: str
) -> None:
    options = [workload, "seeds=[0, 1, 2]", "record.mode=summary"]
    scenario = load_scenario(str(write_small(tmp_path)), options)
    summary = run_scenario(scenario, workers=1).summary
    submitted = [entry["requests"]["submitted"] for entry in summary["variants"].values()]
    assert planned_requests(scenario) == 3 * sum(submitted)  # the same under each of the seeds


@pytest.mark.parametrize(
    ("workload", "rows", "planned"),
    [
        ("{path: trace.csv}", None, 0),
        ("{path: trace.csv}", 3, 3),
        ("{path: trace.csv, limit: 2}", 3, 2),
        ("{path: trace.csv, limit: 9}", 3, 3),
        ("{path: trace.csv, limit: 9}", None, 9),
        ("{trace: azure-code-2023}", None, 8819),
        ("{trace: azure-code-2023, limit: 100}", None, 100),
        (
            "{trace: azure-code-2023, fallback: {preset: azure-code-2023, num_requests: 9000}}",
            None,
            9000,
        ),
        ("{preset: azure-conv-2023}", None, 19_366),
        ("{sosp23: {preset: sharegpt, rate_rps: 2.5, duration_s: 100}}", None, 250),
        ("{sosp23: {preset: sharegpt, rate_rps: 1e6, duration_s: 1e6}}", None, 10**12),
    ],
)
def test_what_a_workload_holds_is_known_without_reading_a_trace(
    tmp_path: Path, workload: str, rows: int | None, planned: int
) -> None:
    """19,366 and 8,819 are the rows of the published traces."""
    scenario = load_scenario(
        str(write_small(tmp_path, trace=TRACE)), [f"workload={workload}", "compare={}"]
    )
    assert planned_requests(scenario, file_rows=rows) == planned
