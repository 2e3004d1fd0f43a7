from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kvsim.report.export_metrics import ITL_BUCKETS, Histogram, histogram, token_buckets
from kvsim.report.export_openmetrics import Reading, openmetrics_export, openmetrics_text
from kvsim.results.read_run import Run
from tests.report.small_run import made_run, request, small_run, step


def exposition(run: Run) -> tuple[str, list[str]]:
    """The text and the notes."""
    export = openmetrics_export(run, list(run.folders))
    ((name, chunks),) = export.files
    assert name == ""
    return b"".join(chunks).decode(), list(export.notes)


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text: str, variant: str = "paged") -> dict[str, float]:
    """Samples of one variant that have no label beside the common three."""
    return {
        sample.name: sample.value
        for family in parsed(text).values()
        for sample in family.samples
        if sample.labels == {"engine": "0", "model_name": "unknown", "variant": variant}
    }


def lines(text: str, name: str) -> list[str]:
    return [
        line.replace(',model_name="unknown",variant="paged"', "")
        for line in text.splitlines()
        if line.startswith(f"vllm:{name}") and 'variant="paged"' in line
    ]


def test_gauges_and_counters_are_those_of_the_run(tmp_path: Path) -> None:
    """Slots taken in the three steps: 4, 12 and 8 of 32; requests running: 1, 2 and 1."""
    text, notes = exposition(small_run(tmp_path))
    assert notes == []
    assert {k: v for k, v in values(text).items() if not k.endswith(("_sum", "_count"))} == {
        "vllm:kv_cache_usage_perc": pytest.approx(24 / 32 / 3, rel=1e-15),
        "vllm:num_requests_running": pytest.approx(4 / 3, rel=1e-15),
        "vllm:num_requests_waiting": 0.0,
        "vllm:num_preemptions_total": 0.0,
        "vllm:prompt_tokens_total": 8.0,
        "vllm:generation_tokens_total": 4.0,
    }
    assert lines(text, "request_success") == [
        'vllm:request_success_total{engine="0",finished_reason="stop"} 0.0',
        'vllm:request_success_total{engine="0",finished_reason="length"} 2.0',
        'vllm:request_success_total{engine="0",finished_reason="abort"} 0.0',
    ]


def test_histograms_count_what_is_at_most_each_of_vllms_bounds(tmp_path: Path) -> None:
    """TTFT is 1 and 1.5 s, the only two gaps between tokens are 1 s, steps compute 4, 5, 1."""
    text, _ = exposition(small_run(tmp_path))
    assert lines(text, "time_to_first_token_seconds")[10:14] == [
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.75"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} 1.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="2.5"} 2.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="5.0"} 2.0',
    ]
    assert lines(text, "request_prompt_tokens") == [
        'vllm:request_prompt_tokens_bucket{engine="0",le="1.0"} 0.0',
        'vllm:request_prompt_tokens_bucket{engine="0",le="2.0"} 0.0',
        'vllm:request_prompt_tokens_bucket{engine="0",le="5.0"} 2.0',
        'vllm:request_prompt_tokens_bucket{engine="0",le="10.0"} 2.0',
        'vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 2.0',
        'vllm:request_prompt_tokens_count{engine="0"} 2.0',
        'vllm:request_prompt_tokens_sum{engine="0"} 8.0',
    ]
    assert lines(text, "iteration_tokens_total")[:2] == [
        'vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 1.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="8.0"} 3.0',
    ]
    sums = {name: value for name, value in values(text).items() if name.endswith("_sum")}
    assert sums == {
        "vllm:time_to_first_token_seconds_sum": 2.5,
        "vllm:inter_token_latency_seconds_sum": 2.0,
        "vllm:request_time_per_output_token_seconds_sum": 1.0,
        "vllm:e2e_request_latency_seconds_sum": 4.5,
        "vllm:request_queue_time_seconds_sum": 0.5,
        "vllm:request_prefill_time_seconds_sum": 2.0,
        "vllm:request_decode_time_seconds_sum": 2.0,
        "vllm:request_inference_time_seconds_sum": 4.0,
        "vllm:request_prompt_tokens_sum": 8.0,
        "vllm:request_generation_tokens_sum": 4.0,
        "vllm:iteration_tokens_total_sum": 10.0,
    }
    counts = {name: value for name, value in values(text).items() if name.endswith("_count")}
    assert counts["vllm:inter_token_latency_seconds_count"] == 2.0
    assert counts["vllm:request_time_per_output_token_seconds_count"] == 1.0


def test_the_cache_configuration_is_told_in_vllms_labels_as_text(tmp_path: Path) -> None:
    text, _ = exposition(small_run(tmp_path))
    samples = {s.labels["variant"]: s for s in parsed(text)["vllm:cache_config_info"].samples}
    assert samples["paged"].value == 1
    assert samples["paged"].labels == {
        "block_size": "4",
        "cache_dtype": "auto",
        "enable_prefix_caching": "False",
        "engine": "0",
        "gpu_memory_utilization": "0.9",
        "kv_cache_max_concurrency": "2.25",
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": "36",
        "model_name": "unknown",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": "9",
        "num_gpu_blocks_override": "9",
        "prefix_caching_hash_algo": "None",
        "sliding_window": "None",
        "variant": "paged",
    }
    assert samples["contiguous-max"].labels["kv_cache_size_tokens"] == "None"


def test_every_family_parses_under_vllms_name_and_type(tmp_path: Path) -> None:
    families = parsed(exposition(small_run(tmp_path))[0])
    assert {family.name: family.type for family in families.values()} == {
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:num_preemptions": "counter",
        "vllm:prompt_tokens": "counter",
        "vllm:generation_tokens": "counter",
        "vllm:request_success": "counter",
        "vllm:time_to_first_token_seconds": "histogram",
        "vllm:inter_token_latency_seconds": "histogram",
        "vllm:request_time_per_output_token_seconds": "histogram",
        "vllm:e2e_request_latency_seconds": "histogram",
        "vllm:request_queue_time_seconds": "histogram",
        "vllm:request_prefill_time_seconds": "histogram",
        "vllm:request_decode_time_seconds": "histogram",
        "vllm:request_inference_time_seconds": "histogram",
        "vllm:request_prompt_tokens": "histogram",
        "vllm:request_generation_tokens": "histogram",
        "vllm:iteration_tokens_total": "histogram",
        "vllm:cache_config_info": "gauge",
    }


def test_histograms_agree_with_the_summary_where_both_count_the_whole_run(tmp_path: Path) -> None:
    run = small_run(
        tmp_path,
        "frontend_s=0.25",
        "memory.num_blocks=12",
        "workload={arrivals: {kind: poisson, rate_rps: 0.7}, num_requests: 60, lengths: "
        "{prompt: {kind: uniform, low: 1, high: 9}, output: {kind: uniform, low: 1, high: 6}}}",
    )
    text, notes = exposition(run)
    assert notes == []
    for variant, entry in run.summary["variants"].items():
        found = values(text, variant)
        for name, metric in (
            ("time_to_first_token_seconds", "ttft_s"),
            ("inter_token_latency_seconds", "itl_s"),
            ("request_time_per_output_token_seconds", "tpot_s"),
            ("e2e_request_latency_seconds", "e2e_s"),
            ("request_queue_time_seconds", "queue_s"),
        ):
            count = found[f"vllm:{name}_count"]
            assert count == entry[metric]["count"]
            assert found[f"vllm:{name}_sum"] == pytest.approx(
                count * entry[metric]["mean"], rel=1e-12
            )


def test_gaps_that_no_row_holds_are_left_out_and_said(tmp_path: Path) -> None:
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
    text, notes = exposition(run)
    assert values(text)["vllm:inter_token_latency_seconds_count"] == 1.0
    (note,) = notes
    assert note.startswith("paged: inter_token_latency_seconds lacks the 1 gaps over a preemption")


@pytest.mark.parametrize("serving", ["groups", "requests"])
def test_tokens_of_all_outputs_are_counted(tmp_path: Path, serving: str) -> None:
    """Three outputs of 3 and 1 tokens, and a request that is too long; six tokens are decoded."""
    run = small_run(tmp_path, f"sampling={{n: 3, served_as: {serving}}}", "compare={}")
    text, notes = exposition(run)
    assert notes == []
    assert values(text)["vllm:generation_tokens_total"] == 12.0
    assert values(text)["vllm:inter_token_latency_seconds_count"] == 6.0


def test_gaps_of_several_outputs_are_not_counted_from_one(tmp_path: Path) -> None:
    """Four outputs need more than the 32 slots, so one of both requests waits for the other."""
    trace = "arrival_s,prompt_tokens,output_tokens\n0,4,8\n0,4,8\n"
    run = small_run(tmp_path, "sampling={n: 2, served_as: requests}", "compare={}", trace=trace)
    assert run.summary["variants"]["paged"]["preemptions"] > 0
    (note,) = exposition(run)[1]
    assert note == (
        "paged: inter_token_latency_seconds lacks the gaps over a preemption, which no row holds"
    )


def test_what_the_run_did_not_record_is_left_out_and_said(tmp_path: Path) -> None:
    text, notes = exposition(small_run(tmp_path, "record.mode=summary"))
    assert notes == [
        "paged, contiguous-max: no histograms and token counters, as the run kept no rows "
        "(record.mode: summary)"
    ]
    assert "vllm:num_preemptions" in parsed(text)
    assert "vllm:prompt_tokens" not in parsed(text)


def test_a_time_series_has_no_figures_of_single_steps(tmp_path: Path) -> None:
    text, notes = exposition(small_run(tmp_path, "record={mode: series, interval_s: 1.5}"))
    families = parsed(text)
    assert "vllm:iteration_tokens_total" not in families
    assert "vllm:inter_token_latency_seconds" not in families
    assert "vllm:time_to_first_token_seconds" in families
    assert len(notes) == 2


def test_each_seed_is_a_series_of_its_own(tmp_path: Path) -> None:
    run = small_run(tmp_path, "seeds=[3, 5]")
    samples = parsed(exposition(run)[0])["vllm:num_preemptions"].samples
    assert [(s.labels["variant"], s.labels["seed"]) for s in samples] == [
        ("paged", "3"),
        ("paged", "5"),
        ("contiguous-max", "3"),
        ("contiguous-max", "5"),
    ]


def test_token_bounds_are_one_two_five_up_to_the_longest_request() -> None:
    """vLLM's own example: build_1_2_5_buckets(100)."""
    assert token_buckets(100) == [1, 2, 5, 10, 20, 50, 100]
    assert token_buckets(8192)[-1] == 5000
    assert token_buckets(0) == []


def test_a_value_on_a_bound_counts_there() -> None:
    """0.3 s is not representable; compared in nanoseconds it is <= 0.3."""
    found = histogram(np.array([300_000_000, 300_000_001]), ITL_BUCKETS, scale=10**9)
    cumulative = dict(found.buckets)
    assert (cumulative[0.2], cumulative[0.3], cumulative[0.4]) == (0, 1, 2)
    assert cumulative[math.inf] == 2
    assert found.total == 0.600000001


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**6)), min_size=1, max_size=30))
def test_histograms_are_cumulative_counts_and_exact_sums(pairs: list[tuple[int, int]]) -> None:
    nanoseconds, weights = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    found = histogram(nanoseconds, ITL_BUCKETS, scale=10**9, weights=weights)
    for bound, count in found.buckets:
        assert count == sum(w for v, w in pairs if v <= bound * 10**9)
    assert found.total == sum(v * w for v, w in pairs) / 10**9


names = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\r{},= #'))


@given(st.lists(names, min_size=1, max_size=4, unique=True))
def test_any_variant_name_reads_back_equal(variants: list[str]) -> None:
    readings = [
        Reading(
            {"model_name": "m", "engine": "0", "variant": variant},
            {"num_requests_running": 1.0},
            [("num_preemptions", {}, 2)],
            {"time_to_first_token_seconds": Histogram([(1.0, 1), (math.inf, 2)], 3.0)},
            {"block_size": "16"},
        )
        for variant in variants
    ]
    families = parsed(openmetrics_text(readings).decode())
    for family in families.values():
        found = dict.fromkeys(sample.labels["variant"] for sample in family.samples)
        assert list(found) == variants


def test_names_that_utf8_cannot_hold_become_escapes(tmp_path: Path) -> None:
    reading = Reading({"variant": "\\ud800"}, {"num_requests_running": 1.0}, [], {}, {})
    assert 'variant="\\\\ud800"' in openmetrics_text([reading]).decode()
