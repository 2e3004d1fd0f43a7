from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.report.export_vllm_json import vllm_json_export
from kvsim.results.read_run import Run
from tests.report.small_run import made_run, request, small_run, step


def results(run: Run) -> list[dict[str, Any]]:
    """One result per line of the export."""
    ((name, chunks),) = vllm_json_export(run, list(run.folders)).files
    assert name == ""
    return [json.loads(line) for line in b"".join(chunks).decode().splitlines()]


def test_a_run_becomes_the_result_of_a_benchmark_per_variant(tmp_path: Path) -> None:
    """r0: tokens at 1, 2, 3 s; r1 arrives at 0.5 s, its token comes at 2 s; r2 is rejected."""
    run = small_run(tmp_path, "slo.ttft_s=1")
    paged, contiguous = results(run)
    date = paged.pop("date")
    assert (len(date), date[8]) == (15, "-")
    assert contiguous["kvsim_variant"] == "contiguous-max"
    assert paged == {
        "endpoint_type": "kvsim",
        "backend": "kvsim",
        "label": "paged",
        "num_prompts": 3,
        "kvsim_version": run.summary["kvsim_version"],
        "kvsim_scenario": "small",
        "kvsim_variant": "paged",
        "request_rate": 2 / 0.75,
        "burstiness": (0.375 / 0.125) ** 2,
        "max_concurrency": None,
        "duration": 3.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 8,
        "total_output_tokens": 4,
        "request_throughput": 2 / 3,
        "request_goodput": 1 / 3,
        "output_throughput": 4 / 3,
        "total_token_throughput": 4.0,
        "input_lens": [4, 4, 20],
        "output_lens": [3, 1, 0],
        "ttfts": [1.0, 1.5, 0.0],
        "latencies": [3.0, 1.5, 0.0],
        "start_times": [0.0, 0.5, 0.75],
        "errors": ["", "", "rejected: prompt_too_long"],
        "max_output_tokens_per_s": 2.0,
        "max_concurrent_requests": 2,
        "rtfx": 0.0,
        **_milliseconds("ttft", 1250.0, 1000.0, 1500.0, std=250.0),
        **_milliseconds("tpot", 1000.0, 1000.0, 1000.0, std=0.0),
        **_milliseconds("itl", 1000.0, 1000.0, 1000.0),
        **_milliseconds("e2el", 2250.0, 1500.0, 3000.0, std=750.0),
    }


def _milliseconds(
    name: str, mean: float, median: float, high: float, std: float | None = None
) -> dict[str, object]:
    """Percentiles are nearest rank, within 0.1 % of the recorded times."""
    row: dict[str, object] = {
        f"mean_{name}_ms": mean,
        f"median_{name}_ms": pytest.approx(median, rel=1e-3),
        f"p90_{name}_ms": pytest.approx(high, rel=1e-3),
        f"p99_{name}_ms": pytest.approx(high, rel=1e-3),
    }
    return row if std is None else {**row, f"std_{name}_ms": std}


def test_figures_are_those_of_the_summary(tmp_path: Path) -> None:
    run = small_run(tmp_path, "measure={from_s: 0.25, to_s: 2.5}")
    entry = run.summary["variants"]["paged"]
    result = results(run)[0]
    assert result["mean_ttft_ms"] == entry["ttft_s"]["mean"] * 1000 == 1500.0
    assert result["p99_itl_ms"] == entry["itl_s"]["p99"] * 1000
    assert result["duration"] == entry["measured"]["duration_s"] == 2.25
    assert result["completed"] == entry["measured"]["finished"] == 1
    assert result["std_ttft_ms"] == 0.0  # r1 alone arrives in the measured time
    assert result["request_goodput"] is None


def test_time_outside_the_engine_counts_in_the_latencies(tmp_path: Path) -> None:
    result = results(small_run(tmp_path, "frontend_s=0.25"))[0]
    assert result["ttfts"] == [1.25, 1.75, 0.0]
    assert result["latencies"] == [3.25, 1.75, 0.0]
    assert result["mean_ttft_ms"] == 1500.0


def test_requests_that_arrive_at_once_have_an_infinite_rate(tmp_path: Path) -> None:
    trace = "arrival_s,prompt_tokens,output_tokens\n0,4,3\n0,4,1\n"
    result = results(small_run(tmp_path, trace=trace))[0]
    assert (result["request_rate"], result["burstiness"]) == ("inf", 1.0)


def test_without_rows_there_are_only_the_summarys_figures(tmp_path: Path) -> None:
    run = small_run(tmp_path, "record.mode=summary")
    result = results(run)[0]
    assert result["mean_ttft_ms"] == 1250.0
    assert {"ttfts", "errors", "std_ttft_ms", "request_rate"}.isdisjoint(result)
    assert len(vllm_json_export(run, ["paged"]).notes) == 1


def test_the_busiest_second_is_left_out_when_a_token_has_no_time(tmp_path: Path) -> None:
    """r0 is preempted after its first token: its second comes with the second prefill."""
    run = made_run(
        tmp_path,
        requests=[request(preemptions=1, queue_s=0.0, output_tokens=3)],
        steps=[
            step(time_s=0.0, prefill_tokens=4),
            step(time_s=1.0, prefill_tokens=5),
            step(time_s=2.0, decode_tokens=1),
        ],
    )
    (result,) = results(run)
    assert "max_output_tokens_per_s" not in result
    assert result["max_concurrent_requests"] == 1


def test_a_request_that_ends_as_another_starts_is_not_beside_it(tmp_path: Path) -> None:
    late = request("r1", arrival_s=3.0, first_token_s=4.0, finish_s=5.0)
    (result,) = results(made_run(tmp_path, requests=[late, request()]))
    assert result["max_concurrent_requests"] == 1
    assert result["start_times"] == [0.0, 3.0]


def test_seeds_are_results_of_their_own(tmp_path: Path) -> None:
    found = results(small_run(tmp_path, "seeds=[3, 5]"))
    assert [(row["kvsim_variant"], row["kvsim_seed"]) for row in found] == [
        ("paged", 3),
        ("paged", 5),
        ("contiguous-max", 3),
        ("contiguous-max", 5),
    ]
    assert found[0]["mean_ttft_ms"] == 1250.0


def test_hostile_ids_and_reasons_are_text(tmp_path: Path) -> None:
    odd = request("</script>\u202e", outcome="unfinished", reason="=1\n", finish_s=None)
    (result,) = results(made_run(tmp_path, requests=[odd]))
    assert result["errors"] == ["unfinished: =1\n"]
    assert (result["failed"], result["output_lens"], result["ttfts"]) == (0, [0], [0.0])
