"""Generated conversations: what their prompts share, and that they are the same every time."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Any

import pytest

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload import (
    AllAtOnce,
    ChatWorkload,
    ClosedLoop,
    Constant,
    ConstantTokens,
    LognormalTokens,
    Poisson,
    UniformTokens,
)
from kvsim.workload.prefix import PrefixAnalysis


def chat(**changes: Any) -> ChatWorkload:
    arguments: dict[str, Any] = {
        "arrivals": Poisson(0.5),
        "conversations": 60,
        "turns": UniformTokens(1, 6),
        "user_tokens": LognormalTokens(40, 1.0),
        "output_tokens": LognormalTokens(120, 0.8),
        "system_tokens": UniformTokens(200, 900),
        "system_prompts": 3,
    }
    arguments |= changes
    return ChatWorkload(arguments.pop("arrivals"), **arguments)


def by_conversation(requests: list[Request]) -> dict[str, list[Request]]:
    turns: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        turns[request.request_id.split("-")[0]].append(request)
    return turns


def test_a_turn_repeats_the_system_prompt_and_everything_said_before() -> None:
    workload = chat(
        arrivals=AllAtOnce(),
        conversations=1,
        turns=ConstantTokens(3),
        user_tokens=ConstantTokens(10),
        output_tokens=ConstantTokens(7),
        system_tokens=ConstantTokens(100),
        system_prompts=1,
    )
    first, second, third = workload
    system, answers = ("system", 0), [("output", 0, turn) for turn in range(3)]
    users = [("user", 0, turn) for turn in range(3)]
    assert first.segments == ((system, 100), (users[0], 10))
    assert second.segments == (*first.segments, (answers[0], 7), (users[1], 10))
    assert third.segments == (*second.segments, (answers[1], 7), (users[2], 10))
    assert [request.output_stream for request in (first, second, third)] == answers
    assert [request.prompt_tokens for request in (first, second, third)] == [110, 127, 144]


def test_segments_make_up_the_prompt_and_requests_come_in_arrival_order() -> None:
    workload = chat()
    requests = list(workload)
    arrivals = [request.arrival_ns for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    assert len({request.request_id for request in requests}) == len(requests)
    for request in requests:
        assert request.segments is not None
        assert sum(tokens for _, tokens in request.segments) == request.prompt_tokens
    for turns in by_conversation(requests).values():
        assert 1 <= len(turns) <= 6
        assert [turn.request_id.split("-")[1] for turn in turns] == [
            f"t{rank}" for rank in range(len(turns))
        ]
    assert workload.counts.read == workload.counts.kept == len(requests)


def test_the_same_seed_gives_the_same_rows_and_another_one_others() -> None:
    assert list(chat(seed=3)) == list(chat(seed=3)) != list(chat(seed=4))
    assert chat(seed=3).digest == chat(seed=3).digest != chat(seed=4).digest


def test_one_law_does_not_move_the_draws_of_another() -> None:
    one = by_conversation(list(chat()))
    other = by_conversation(list(chat(output_tokens=ConstantTokens(5), turn_gap_s=1.0)))
    for name, turns in one.items():
        assert len(other[name]) == len(turns)
        assert other[name][0].arrival_ns == turns[0].arrival_ns
        assert other[name][0].segments == turns[0].segments


def test_system_prompts_are_shared_by_conversations_or_left_out() -> None:
    first = {turns[0].segments[0] for turns in by_conversation(list(chat())).values()}  # type: ignore[index]
    assert {stream for stream, _ in first} == {("system", index) for index in range(3)}
    assert len(first) == 3
    assert PrefixAnalysis(chat(), 16).bound.hit > 0
    alone = chat(system_prompts=0, turns=ConstantTokens(1))
    assert PrefixAnalysis(alone, 1).bound.hit == 0
    assert (alone.shares_prefixes, alone.chunk_tokens) == (True, None)


def test_a_conversation_ends_before_the_turn_that_is_too_long() -> None:
    workload = chat(
        turns=ConstantTokens(4),
        user_tokens=ConstantTokens(10),
        output_tokens=ConstantTokens(10),
        system_tokens=ConstantTokens(15),
        max_total_tokens=55,
    )
    assert {len(turns) for turns in by_conversation(list(workload)).values()} == {2}
    assert (workload.counts.read, workload.counts.kept) == (240, 120)
    assert workload.counts.dropped == {"too_long": 120}


def test_rate_scale_moves_conversations_and_not_the_gaps_between_turns() -> None:
    options = {"arrivals": Constant(1.0), "turns": ConstantTokens(2)}
    plain, scaled = (by_conversation(list(chat(**options, rate_scale=s))) for s in (1.0, 4.0))
    for rank, (name, turns) in enumerate(sorted(plain.items(), key=lambda item: int(item[0][1:]))):
        moved = scaled[name]
        assert moved[0].arrival_ns == rank * 250_000_000
        gap = turns[1].arrival_ns - turns[0].arrival_ns
        assert moved[1].arrival_ns - moved[0].arrival_ns == gap


def test_a_million_conversations_are_made_as_they_are_asked_for() -> None:
    workload = chat(conversations=10**9, turn_gap_s=5.0)
    assert len(list(islice(workload, 100))) == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrivals": ClosedLoop(4)}, "arrivals: must be an open loop"),
        ({"conversations": 0}, "conversations: must be an integer from 1"),
        ({"system_prompts": -1}, "system_prompts: must be an integer from 0"),
        ({"turn_gap_s": -1.0}, "turn_gap_s: must be from 0"),
        ({"max_total_tokens": 1}, "max_total_tokens: must be an integer from 2"),
        ({"seed": -1}, "seed: must be"),
        ({"rate_scale": 0.0}, "rate_scale: must be"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chat(**changes)
