"""Requests as columns, the conversations among them, and what arrives per interval."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.request import Request
from kvsim.scenario.build_workload import build_workload
from kvsim.scenario.loader import load_scenario
from kvsim.workload import ReadRules, TraceWorkload, demand_of, intervals, preset
from kvsim.workload.sniff import trace_kind
from tests.workload.shared_prompts import Listed

S = 1_000_000_000


def at(*arrivals_s: float) -> Listed:
    """Requests of 10, 20, ... prompt and 1, 2, ... output tokens."""
    rows = enumerate(arrivals_s, 1)
    return Listed([Request(f"r{i}", round(s * S), 10 * i, i) for i, s in rows])


def test_what_arrives_is_summed_in_intervals_of_an_even_width() -> None:
    found = intervals(demand_of(at(0, 0.4, 0.9, 1.2, 2.0)), most=3)
    assert found is not None
    assert (found.width_s, found.start_s) == (1.0, 0.0)
    assert found.requests.tolist() == [3, 1, 1]
    assert found.prompt_tokens.tolist() == [60, 40, 50]
    assert found.output_tokens.tolist() == [6, 4, 5]


def test_the_first_interval_begins_at_a_multiple_of_the_width() -> None:
    found = intervals(demand_of(at(7.3, 8.1)), most=2)
    assert found is not None
    assert (found.width_s, found.start_s, found.requests.tolist()) == (1.0, 7.0, [1, 1])


@given(st.lists(st.integers(0, 10**19 // 3), min_size=2, max_size=30).map(sorted))
def test_intervals_hold_every_request_and_are_never_more_than_asked_for(times: list[int]) -> None:
    requests = [Request(f"r{i}", ns, i + 1, 2) for i, ns in enumerate(times)]
    demand = demand_of(Listed(requests))
    found = intervals(demand)
    if times[0] == times[-1]:
        assert found is None
        return
    assert found is not None
    assert len(found.requests) <= 300
    assert found.requests.sum() == len(times)
    assert found.prompt_tokens.sum() == demand.prompt_tokens.sum()
    assert found.start_s * S <= times[0] + 1e6 * times[0] / 1e15


def test_a_session_of_the_generated_chat_is_a_conversation() -> None:
    workload = build_workload(load_scenario("chat-prefix-cache").workload, seed=3).workload
    requests = list(workload)
    sessions = demand_of(workload).sessions
    assert sessions is not None
    conversations = Counter(one.request_id.split("-")[0] for one in requests)
    assert sorted(sessions.turns.tolist()) == sorted(conversations.values())
    at_name = {one.request_id: one.arrival_ns for one in requests}
    gaps = []
    for name, arrival in at_name.items():
        conversation, turn = name.split("-t")
        if int(turn):
            gaps.append((arrival - at_name[f"{conversation}-t{int(turn) - 1}"]) / S)
    assert sorted(sessions.think_s.tolist()) == pytest.approx(sorted(gaps))


def write(path: Path, rows: list[dict[str, object]]) -> TraceWorkload:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TraceWorkload(path)


def test_requests_with_a_parent_are_of_one_session(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 4, "request_id": "a"},
        {"arrival_s": 1, "prompt_tokens": 7, "output_tokens": 4, "request_id": "b"},
        {"arrival_s": 5, "prompt_tokens": 20, "output_tokens": 4, "request_id": "c"},
        {"arrival_s": 8, "prompt_tokens": 30, "output_tokens": 4},
    ]
    rows[2] |= {"parent_id": "a", "fork_at_token": 13}
    rows[3] |= {"parent_id": "c", "fork_at_token": 24}
    sessions = demand_of(write(tmp_path / "t.jsonl", rows)).sessions
    assert sessions is not None
    assert sessions.basis == "the trace names each request's parent"
    assert sorted(sessions.turns.tolist()) == [1, 3]
    assert sessions.think_s.tolist() == [5.0, 3.0]


def test_the_id_of_a_weka_row_is_its_session_and_a_short_prompt_does_not_show_it(
    tmp_path: Path,
) -> None:
    rows = [
        {"id": name, "t": t, "in": tokens, "out": 3, "hash_ids": list(range(tokens // 64))}
        for name, t, tokens in (("x", 0, 70), ("y", 1, 64), ("x", 4, 130), ("z", 5, 20))
    ]
    sessions = demand_of(write(tmp_path / "w.jsonl", rows)).sessions
    assert sessions is not None
    assert sorted(sessions.turns.tolist()) == [1, 2]
    assert sessions.think_s.tolist() == [4.0]


def test_chunk_ids_alone_say_nothing_of_sessions(tmp_path: Path) -> None:
    rows = [
        {"timestamp": t, "input_length": 600, "output_length": 5, "hash_ids": [0, t + 1]}
        for t in range(3)
    ]
    demand = demand_of(write(tmp_path / "m.jsonl", rows))
    assert demand.sessions is None
    assert demand.segments == 6


def test_made_up_arrivals_are_left_out() -> None:
    demand = demand_of(at(0, 1, 2), timed=False)
    assert demand.arrivals_ns is None
    assert intervals(demand) is None
    assert demand.prompt_tokens.tolist() == [10, 20, 30]


def test_a_file_tells_what_it_would_be_read_as(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("prompt_tokens,output_tokens\n5,6\n")
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    assert trace_kind(tmp_path / "l.csv", "auto", ReadRules()) == "lengths"
    assert trace_kind(tmp_path / "t.csv", "auto", ReadRules()) == "table"
    assert TraceWorkload(tmp_path / "t.csv").kind == "table"


def test_columns_are_those_of_the_requests() -> None:
    workload = preset("azure-code-2023", num_requests=500, seed=4)
    demand = demand_of(workload)
    assert demand.arrivals_ns is not None
    columns = np.stack([demand.arrivals_ns, demand.prompt_tokens, demand.output_tokens], axis=1)
    wanted = [(one.arrival_ns, one.prompt_tokens, one.output_tokens) for one in workload]
    assert columns.tolist() == [list(row) for row in wanted]
