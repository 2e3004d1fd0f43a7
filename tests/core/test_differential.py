"""The calendar decides, at every step, exactly what a plain loop over the rules decides."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.recordings.replay import Replay
from tests.reference import ReferenceReplay


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
    max_model_len = draw(st.integers(8, 120))
    budget = draw(st.integers(1, 90))
    config = {
        "num_gpu_blocks": draw(st.integers(2, 2 + 3 * max_model_len // block_size)),
        "block_size": block_size,
        "max_num_seqs": draw(st.integers(1, 12)),
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "enable_chunked_prefill": draw(st.sampled_from([True, True, False])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 5, 17])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "enable_prefix_caching": False,
        "policy": "fcfs",
        "async_scheduling": False,
        "kv_groups": None,
        "retention_interval": 0,
        "spec": None,
        "hash_id_tokens": 512,
    }
    count = draw(st.integers(1, 14))
    requests, arrival = [], 0
    for index in range(count):
        arrival += draw(st.sampled_from([0, 0, 0, 1, 3, 9]))
        request: dict[str, Any] = {
            "id": f"r{index}",
            "arrival_step": arrival,
            "prompt_tokens": draw(st.integers(1, max_model_len)),
            "output_tokens": draw(st.integers(1, 60)),
        }
        if draw(st.integers(0, 9)) == 0:
            request["abort_step"] = arrival + draw(st.integers(0, 40))
        requests.append(request)
    return config, requests


def assert_rows_equal(config: dict[str, Any], requests: list[dict[str, Any]], steps: int) -> None:
    replay = Replay(config, requests)
    reference = ReferenceReplay(config, requests)
    for row, expected in zip(replay, reference, strict=True):
        assert row == expected
        sequences = replay.scheduler.running()
        replay.allocator.check_integrity(sequences)
        replay.scheduler.calendar.check_integrity()
        if row["step"] >= steps:
            return
    assert replay.totals == reference.totals


@settings(max_examples=400)
@given(workloads())
def test_every_row_of_the_calendar_equals_the_plain_loop(
    workload: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    config, requests = workload
    assert_rows_equal(config, requests, steps=600)
