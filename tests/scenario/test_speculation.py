"""`engine.speculative_config`: how many drafts are right, and what must not be asked for."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.request import Request
from kvsim.core.speculative_scheduler import SpeculativeScheduler
from kvsim.errors import InputError
from kvsim.scenario import build_server, load_scenario, run_scenario
from kvsim.scenario.speculation import Acceptance
from tests.scenario.chats import write_chats
from tests.scenario.small import write_small

NGRAM = "{method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.6}"
EAGLE = (
    "{method: eagle, num_speculative_tokens: 3, acceptance_rates: [0.8, 0.6, 0.4],"
    " draft_s_per_token: 0.001}"
)
SYNC = "engine.async_scheduling=false"


def _request(name: str) -> Request:
    return Request(name, 0, 1, 1)


def _drafts(settings: str) -> str:
    return f"engine.speculative_config={settings}"


def test_a_draft_is_right_as_often_as_its_place_says() -> None:
    """0.9, then 0.5 of those, then 0.1 of those."""
    accepted = Acceptance((0.9, 0.5, 0.1), seed=0)
    counts = [accepted(_request(f"r{i % 500}"), i // 500, 3) for i in range(50_000)]
    survivors = [mean(count >= place for count in counts) for place in (1, 2, 3)]
    assert survivors == pytest.approx([0.9, 0.45, 0.045], abs=0.01)


@given(
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    name=st.text(max_size=12),
    verification=st.integers(0, 10**9),
)
def test_luck_is_decided_by_seed_request_and_verification_alone(
    rates: list[float], seed: int, name: str, verification: int
) -> None:
    accepted = Acceptance(tuple(rates), seed)
    everything = accepted(_request(name), verification, len(rates))
    accepted(_request("other"), 0, 1)
    assert Acceptance(tuple(rates), seed)(_request(name), verification, len(rates)) == everything
    for verified in range(len(rates) + 1):
        assert accepted(_request(name), verification, verified) == min(everything, verified)
    better = Acceptance(tuple(min(1.0, rate + 0.1) for rate in rates), seed)
    assert better(_request(name), verification, len(rates)) >= everything


@pytest.mark.parametrize(("rate", "accepted"), [(1.0, 4), (0.0, 0)])
def test_certain_drafts_are_certain(rate: float, accepted: int) -> None:
    always = Acceptance((rate,) * 4, seed=3)
    assert {always(_request(f"r{i}"), i, 4) for i in range(2000)} == {accepted}


def test_another_seed_is_another_luck() -> None:
    names = [_request(f"r{i}") for i in range(200)]
    first, second = Acceptance((0.5,) * 4, seed=1), Acceptance((0.5,) * 4, seed=2)
    assert [first(name, 0, 4) for name in names] != [second(name, 0, 4) for name in names]


def test_drafts_that_are_all_right_make_four_tokens_a_step(tmp_path: Path) -> None:
    """Output 13: one token with the prompt, then three steps of 1 + 3."""
    path = write_small(tmp_path, trace="arrival_s,prompt_tokens,output_tokens\n0,4,13\n")
    options = ["compare={}", "engine.max_model_len=32"]
    right = NGRAM.replace("0.6", "1.0")
    entry = _entry(str(path), *options, _drafts(right))
    assert entry["steps"] == 4
    wrong = NGRAM.replace("0.6", "0.0")
    assert _entry(str(path), *options, _drafts(wrong))["steps"] == 13


def _entry(path: str, *options: str) -> dict[str, Any]:
    return run_scenario(load_scenario(path, options)).summary["variants"]["paged"]


@pytest.mark.parametrize("drafts", [NGRAM, EAGLE])
def test_a_run_with_drafts_serves_every_request_sooner_and_repeats_to_the_same_bytes(
    tmp_path: Path, drafts: str
) -> None:
    path = write_chats(tmp_path)
    options = [SYNC, _drafts(drafts)]
    first, second = tmp_path / "first", tmp_path / "second"
    summary = run_scenario(load_scenario(path, options), out=first).summary
    run_scenario(load_scenario(str(first / "scenario.yaml")), out=second)
    for name in ("scenario.yaml", "summary.json", "variants/paged/requests.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    entry, without = summary["variants"]["paged"], _entry(path, SYNC)
    assert entry["requests"]["finished"] == without["requests"]["finished"]
    assert entry["tokens"]["output"] == without["tokens"]["output"]
    assert entry["steps"] < without["steps"]


def test_the_seed_of_the_run_is_the_seed_of_the_drafts(tmp_path: Path) -> None:
    """The trace is the same under every seed: only the drafts' luck differs."""
    rows = "".join(f"{i},{3 + i % 9},{1 + i % 5}\n" for i in range(40))
    path = str(write_small(tmp_path, trace="arrival_s,prompt_tokens,output_tokens\n" + rows))
    options = ["compare={}", _drafts(NGRAM)]
    steps = [_entry(path, *options, f"seeds=[{seed}]")["steps"] for seed in (0, 0, 1)]
    assert steps[0] == steps[1] != steps[2]


@pytest.mark.parametrize(
    ("drafts", "method", "lookahead"), [(NGRAM, "ngram", 0), (EAGLE, "eagle", 3)]
)
def test_the_settings_reach_scheduler_and_memory(
    tmp_path: Path, drafts: str, method: str, lookahead: int
) -> None:
    server = build_server(load_scenario(write_chats(tmp_path), [SYNC, _drafts(drafts)]))
    assert isinstance(server.scheduler, SpeculativeScheduler)
    assert server.scheduler.speculation.method == method
    assert server.scheduler.speculation.num_speculative_tokens == 3
    assert server.scheduler.speculation.lookahead_tokens == lookahead
    facts = {fact.name: fact.value for fact in server.sizing.clock.explain()}
    assert facts["draft_step_s"] == (0 if method == "ngram" else pytest.approx(0.003))


def test_proposing_drafts_takes_time(tmp_path: Path) -> None:
    path = write_chats(tmp_path)
    quick = _entry(path, SYNC, _drafts(EAGLE.replace("0.001", "0")))
    slow = _entry(path, SYNC, _drafts(EAGLE.replace("0.001", "0.01")))
    assert slow["tpot_s"]["mean"] > quick["tpot_s"]["mean"] + 0.005


@pytest.mark.parametrize(
    ("drafts", "setting", "problem", "fix"),
    [
        (
            "{method: ngram, num_speculative_tokens: 3}",
            "",
            "needs either acceptance_rate or acceptance_rates",
            "Give one of the two",
        ),
        (
            "{method: ngram, num_speculative_tokens: 3, acceptance_rates: [0.5]}",
            ".acceptance_rates",
            "must have num_speculative_tokens = 3 items, got 1",
            "one probability for each draft",
        ),
        (
            "{method: draft_model, num_speculative_tokens: 3, acceptance_rate: 0.5}",
            ".draft_s_per_token",
            "is missing, and method is draft_model, whose drafts take time",
            "0 to neglect it",
        ),
        (
            "{method: medusa, num_speculative_tokens: 3, acceptance_rate: 0.5}",
            ".method",
            "must be ngram, draft_model or eagle, got 'medusa'",
            "who proposes",
        ),
        (
            "{method: ngram, num_speculative_tokens: 0, acceptance_rate: 0.5}",
            ".num_speculative_tokens",
            "must be >= 1 token, got 0",
            "from 1 to 256",
        ),
        (
            "{method: ngram, num_speculative_tokens: 2, acceptance_rate: 1.5}",
            ".acceptance_rate",
            "must be <= 1, got 1.5",
            "probability",
        ),
    ],
)
def test_a_wrong_speculation_is_refused(
    tmp_path: Path, drafts: str, setting: str, problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path), [SYNC, _drafts(drafts)])
    assert caught.value.where == "--set engine.speculative_config"
    assert caught.value.problem.startswith(f"engine.speculative_config{setting} {problem}")
    assert fix in str(caught.value.fix)


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            [_drafts(EAGLE)],
            "engine.async_scheduling = true together with speculative decoding (eagle)",
            "Set async_scheduling to false",
        ),
        (
            [_drafts(NGRAM), "engine.async_scheduling=true"],
            "engine.async_scheduling = true together with speculative decoding (ngram)",
            "Set async_scheduling to false",
        ),
        (
            [_drafts(NGRAM), "memory.kind=contiguous"],
            "engine.speculative_config needs engine.scheduler = vllm and memory.kind = paged",
            "Set speculative_config to null",
        ),
        (
            [_drafts(NGRAM), "engine.max_num_batched_tokens=4", "engine.max_num_seqs=4"],
            "engine.max_num_batched_tokens must be >= num_speculative_tokens + 2 = 5 tokens, got 4",
            "lower num_speculative_tokens",
        ),
    ],
)
def test_drafts_without_their_conditions_are_refused(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path), options)
    assert caught.value.problem.startswith(problem)
    assert fix in str(caught.value.fix)


def test_the_two_ways_to_give_rates_replace_each_other_on_the_command_line(tmp_path: Path) -> None:
    rates = "engine.speculative_config.acceptance_rates=[0.9, 0.8, 0.7]"
    path = write_chats(tmp_path)
    text = Path(path).read_text().replace("max_num_seqs: 16", f"speculative_config: {NGRAM}")
    Path(path).write_text(text)
    drafts = load_scenario(path, [rates]).engine.speculative_config
    assert drafts is not None
    assert drafts.rates == (0.9, 0.8, 0.7)
