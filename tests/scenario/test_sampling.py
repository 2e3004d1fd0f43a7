"""The section `sampling` from the file to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.core.contiguous_branches import ContiguousBranches
from kvsim.core.fan_out import FanOutScheduler
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.request import Branching, Request
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.errors import InputError
from kvsim.scenario import Scenario, build_server, load_scenario, resolved, run_scenario, variants
from kvsim.scenario.sampling import branching_of, neutral_draw, served_as
from tests.scenario.small import write_small

BASE: dict[str, Any] = {
    "version": 1,
    "profile": "plain",
    "model": "opt-13b",
    "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "max_model_len": 256},
    "memory": {"kind": "paged", "block_size": 4, "num_blocks": 400},
    "clock": {"kind": "fixed", "step_s": 0.5},
    "workload": {
        "lengths": {
            "prompt": {"kind": "uniform", "low": 5, "high": 40},
            "output": {"kind": "uniform", "low": 2, "high": 30},
        },
        "arrivals": {"kind": "poisson", "rate_rps": 1.0},
        "num_requests": 30,
    },
}


def scenario(sampling: Any = None, **sections: Any) -> Scenario:
    engine = {**BASE["engine"], **sections.pop("engine", {})}
    chosen = {} if sampling is None else {"sampling": sampling}
    return Scenario.model_validate({**BASE, **chosen, **sections, "engine": engine})


def entry(settings: Scenario) -> dict[str, Any]:
    summary = run_scenario(settings).summary
    (found,) = summary["variants"].values()
    result: dict[str, Any] = found
    return result


@pytest.mark.parametrize("sampling", [{"n": 1}, {"beam_width": 1}, {"n": 1, "served_as": "groups"}])
def test_one_branch_costs_nothing(sampling: dict[str, Any]) -> None:
    """The same objects are built and the same figures come out as without the section."""
    one = scenario(sampling)
    assert type(build_server(one).scheduler) is VllmScheduler
    assert entry(one) == entry(scenario())


@pytest.mark.parametrize(
    ("profile", "sampling", "expected"),
    [
        ("vllm-0.33", {"n": 2}, "requests"),
        ("vllm-0.33", {"n": 2, "served_as": "groups"}, "groups"),
        ("vllm-0.33", {"beam_width": 2}, "groups"),
        ("sosp23", {"n": 2}, "groups"),
        ("plain", {"from_trace": True}, "groups"),
        ("plain", {"n": 2, "served_as": "requests"}, "requests"),
        ("plain", {"n": 1}, None),
        ("plain", None, None),
    ],
)
def test_the_profile_says_how_branches_are_served(
    profile: str, sampling: Any, expected: str | None
) -> None:
    """And what suits it is the default of caching and asynchronous scheduling."""
    settings = scenario(sampling, profile=profile)
    assert served_as(settings) == expected
    scheduler = build_server(settings).scheduler
    kinds = {"requests": FanOutScheduler, "groups": GroupScheduler, None: VllmScheduler}
    assert type(scheduler) is kinds[expected]
    modern = profile == "vllm-0.33" and expected != "groups"
    assert settings.engine.enable_prefix_caching == modern
    assert settings.engine.async_scheduling == modern


def test_all_ways_to_serve_samples_finish_the_same_requests() -> None:
    """Groups copy what they write into; requests compute what they do not find."""
    ways = {
        "groups": scenario({"n": 3}),
        "requests": scenario(
            {"n": 3, "served_as": "requests"}, engine={"enable_prefix_caching": True}
        ),
        "contiguous": scenario(
            {"n": 3}, memory={"kind": "contiguous", "num_blocks": 400, "block_size": 4}
        ),
        "beams": scenario({"beam_width": 3}),
    }
    assert isinstance(build_server(ways["contiguous"]).allocator, ContiguousBranches)
    found = {name: entry(settings) for name, settings in ways.items()}
    for one in found.values():
        assert one["requests"]["finished"] == one["requests"]["submitted"] == 30
        assert one["tokens"]["prompt"] == found["groups"]["tokens"]["prompt"]
        assert one["tokens"]["output"] == found["groups"]["tokens"]["output"]
    shared = {name: one["sharing"] for name, one in found.items()}
    assert shared["contiguous"]["saving"] == 0
    assert shared["requests"]["copies"] == 0 < shared["groups"]["copies"]
    assert shared["contiguous"]["copied_tokens"] == 2 * found["groups"]["tokens"]["prompt"]
    assert 0 < shared["groups"]["saving"] < shared["beams"]["saving"]
    bytes_per_token = 4 * 40 * 5120  # K and V at 16 bits
    for one in shared.values():
        assert one["copied_bytes"] == one["copied_tokens"] * bytes_per_token


def test_variants_may_differ_in_their_branches(tmp_path: Path) -> None:
    """One kind of branches displaces the other, and what is left out of it stays."""
    text = (
        "version: 1\nprofile: plain\n"
        "engine: {max_num_seqs: 8, max_num_batched_tokens: 64, max_model_len: 16}\n"
        "memory: {kind: paged, block_size: 4, num_blocks: 30}\n"
        "clock: {kind: fixed, step_s: 1.0}\nworkload: {path: trace.csv}\n"
        "sampling: {beam_width: 2, ancestry: independent}\n"
        "compare:\n  four: {sampling: {beam_width: 4}}\n  n2: {sampling: {n: 2}}\n"
        "  one: {sampling: null}\n"
    )
    loaded = load_scenario(str(write_small(tmp_path, text)))
    found = {name: settings.sampling for name, settings in variants(loaded).items()}
    assert [one and one.model_dump(exclude_none=True) for one in found.values()] == [
        {"beam_width": 2, "ancestry": "independent"},
        {"beam_width": 4, "ancestry": "independent"},
        {"n": 2},
        None,
    ]
    again = tmp_path / "again.yaml"
    again.write_text(resolved(loaded))
    assert load_scenario(str(again)).model_dump(exclude={"workload"}) == loaded.model_dump(
        exclude={"workload"}
    )
    entries = run_scenario(loaded).summary["variants"]
    assert [name for name, one in entries.items() if "sharing" in one] == ["paged", "four", "n2"]


@pytest.mark.parametrize(
    ("sampling", "sections", "path", "problem"),
    [
        (
            {"n": 2},
            {"engine": {"scheduler": "static"}, "memory": {"kind": "grow", "num_blocks": 400}},
            "engine.scheduler",
            "must be vllm",
        ),
        ({"n": 2}, {"engine": {"enable_prefix_caching": True}}, "caching", "is not covered while"),
        ({"n": 2}, {"engine": {"async_scheduling": True}}, "async", "is not covered while"),
        ({"n": 2}, {"engine": {"scheduling_policy": "priority"}}, "policy", "must be fcfs"),
        ({"n": 65}, {}, "sampling", "must be <= 64"),
        ({"n": 9}, {"engine": {"max_num_seqs": 8}}, "max_num_seqs", "must be >= 9"),
        ({"beam_width": 2, "served_as": "requests"}, {}, "sampling", "groups"),
        ({"n": 2, "ancestry": "independent"}, {}, "sampling", "ancestry"),
        ({"ancestry": "independent"}, {}, "sampling", "needs one of the keys"),
        ({"n": 2}, {"model": "gemma-3-27b"}, "served_as", "is not covered where"),
        (
            {"n": 2},
            {"memory": {"kind": "vmm", "num_page_sets": 100}},
            "memory.kind",
            "must be paged or contiguous",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(
    tmp_path: Path, sampling: Any, sections: dict[str, Any], path: str, problem: str
) -> None:
    """With the place in the file."""

    engine = {**BASE["engine"], **sections.pop("engine", {})}
    file = tmp_path / "s.yaml"
    whole = {**BASE, **sections, "engine": engine, "sampling": sampling}
    file.write_text(json.dumps(whole))
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(str(file)))
    assert problem in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "sampling", "instead"),
    [
        ({"preemption_mode": "swap"}, None, "or set preemption_mode to recompute"),
        ({}, {"n": 2}, "or set sampling.served_as to requests"),
        ({}, {"beam_width": 2}, "or remove sampling"),
    ],
)
@pytest.mark.parametrize(
    "sections", [{"memory": {"kind": "paged", "page_kib": 64}}, {"model": "gemma-3-1b"}]
)
def test_the_way_out_of_groups_is_what_asked_for_them(
    tmp_path: Path, sections: dict[str, Any], engine: dict[str, Any], sampling: Any, instead: str
) -> None:
    """Beams cannot be requests, and without the section nothing in it is to be set."""
    whole = {**BASE, **sections, "engine": {**BASE["engine"], **engine}}
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(whole if sampling is None else {**whole, "sampling": sampling}))
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(str(file)))
    assert str(caught.value.fix).endswith(instead)
    assert ("sampling" in str(caught.value)) == (sampling is not None)


def test_branches_of_a_trace_are_served_only_if_asked_for() -> None:
    """Else they would silently be one sequence, or beams be requests."""
    beams = Request("r7", 0, 5, 5, branches=Branching("beam", 2))
    with pytest.raises(InputError, match=r"r7 has 2 branches in the trace.*nothing says how"):
        branching_of(scenario())(beams)
    assert branching_of(scenario({"from_trace": True}))(beams) is not None
    assert branching_of(scenario({"n": 1}))(beams).branches is None
    requests = scenario({"from_trace": True, "served_as": "requests"})
    with pytest.raises(InputError, match="r7 has 2 beams"):
        branching_of(requests)(beams)


def test_parents_are_drawn_uniformly_and_the_same_again() -> None:
    """10,000 draws over 4 parents: each within five standard deviations of a quarter."""
    request = Request("r", 0, 5, 5, branches=Branching("beam", 4, "wright_fisher"))
    draw = neutral_draw(3)
    drawn = [draw(request, g, i) for g in range(2500) for i in range(4)]
    assert drawn == [draw(request, g, i) for g in range(2500) for i in range(4)]
    assert all(abs(drawn.count(parent) - 2500) < 5 * 43.3 for parent in range(4))
    other = neutral_draw(4)
    assert drawn != [other(request, g, i) for g in range(2500) for i in range(4)]
