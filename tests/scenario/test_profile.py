"""What settings are that a scenario leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import compute_budget, get_gpu, get_model
from kvsim.errors import InputError
from kvsim.scenario import (
    Scenario,
    build_server,
    load_scenario,
    resolved,
    run_scenario,
    variants,
)
from tests.scenario.small import SCENARIO, write_small

BARE: dict[str, Any] = {
    "version": 1,
    "model": "llama-3-8b",
    "hardware": {"gpu": "l40s"},
    "workload": {"preset": "azure-conv-2023", "num_requests": 10},
}
BATCH = 256
"""max_num_seqs on GPUs below 70 GiB and on every A100."""


def _scenario(**sections: Any) -> Scenario:
    return Scenario.model_validate({**BARE, **sections})


def _engine(**sections: Any) -> Any:
    return _scenario(**sections).engine


def test_who_says_nothing_gets_the_real_server() -> None:
    scenario = _scenario()
    engine, memory = scenario.engine, scenario.memory
    assert scenario.profile == "vllm-0.33"
    assert engine.enable_prefix_caching is engine.async_scheduling is True
    assert engine.scheduler_reserve_full_isl is engine.enable_chunked_prefill is True
    assert engine.scheduling_policy == "fcfs"
    assert engine.watermark == 0.0
    assert engine.prefix_cache_retention_interval == 0
    assert engine.gpu_memory_utilization == 0.92
    assert engine.cuda_graphs_in_budget is True
    assert (memory.kind, memory.block_size, memory.null_block) == ("paged", 16, True)


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ("t4", (256, 2048)),
        ("l40s", (256, 2048)),
        ("a100-40gb", (256, 2048)),
        ("a100-80gb", (256, 2048)),
        ("h100", (1024, 8192)),
        ("h200", (1024, 8192)),
        ("mi300x", (1024, 8192)),
    ],
)
def test_limits_of_a_step_go_by_the_gpu_as_vllm_serve_sets_them(
    gpu: str, limits: tuple[int, int]
) -> None:
    engine = _engine(hardware={"gpu": gpu}, clock={"kind": "roofline"})
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"max_num_batched_tokens": 64}, (64, 64)),
        ({"max_num_seqs": 8}, (8, 2048)),
        ({"max_num_seqs": 2, "max_model_len": 100}, (2, 200)),
        ({"enable_chunked_prefill": False}, (BATCH, 8192)),
        ({"enable_chunked_prefill": False, "max_model_len": 1000}, (BATCH, 2048)),
    ],
)
def test_a_limit_that_is_left_out_gives_way_to_what_is_given(
    given: dict[str, Any], limits: tuple[int, int]
) -> None:
    engine = _engine(engine=given)
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == limits


def test_without_a_gpu_the_limits_are_those_of_a_small_one() -> None:
    engine = _engine(
        model=None,
        hardware=None,
        engine={"max_model_len": 4096},
        memory={"kind": "paged", "num_blocks": 100},
        clock={"kind": "fixed", "step_s": 1.0},
    )
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (256, 2048)


@pytest.mark.parametrize(
    ("profile", "seqs", "tokens", "watermark", "null_block"),
    [("sosp23", 256, 2560, 0.01, False), ("plain", 256, 8192, 0.0, True)],
)
def test_other_profiles_cache_nothing_and_schedule_one_step_at_a_time(
    profile: str, seqs: int, tokens: int, watermark: float, null_block: bool
) -> None:
    scenario = _scenario(profile=profile, hardware={"gpu": "h100"})
    engine = scenario.engine
    assert engine.enable_prefix_caching is engine.async_scheduling is False
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (seqs, tokens)
    assert (engine.gpu_memory_utilization, engine.cuda_graphs_in_budget) == (0.9, False)
    assert engine.watermark == watermark
    assert scenario.memory.kind == "paged"
    assert scenario.memory.null_block is null_block


def test_what_is_given_beats_every_profile() -> None:
    given = {"enable_prefix_caching": True, "watermark": 0.5, "max_num_seqs": 3}
    scenario = _scenario(
        profile="sosp23", engine=given, memory={"kind": "paged", "null_block": True}
    )
    engine = scenario.engine
    assert (engine.enable_prefix_caching, engine.watermark, engine.max_num_seqs) == (True, 0.5, 3)
    assert scenario.memory.kind == "paged"
    assert scenario.memory.null_block is True


def test_servers_that_cannot_cache_do_not_by_default() -> None:
    compare = {
        "contiguous": {"memory": {"kind": "contiguous"}},
        "orca": {"engine": {"scheduler": "orca"}, "memory": {"kind": "contiguous"}},
        "static": {"engine": {"scheduler": "static"}, "memory": {"kind": "grow"}},
    }
    named = variants(_scenario(compare=compare))
    flags = {
        name: (v.engine.enable_prefix_caching, v.engine.async_scheduling)
        for name, v in named.items()
    }
    off = (False, False)
    assert flags == {"paged": (True, True), "contiguous": off, "orca": off, "static": off}
    assert named["orca"].engine.max_num_batched_tokens == 8192  # whole prompts
    for settings in named.values():
        build_server(settings)


def test_what_an_unknown_model_or_gpu_would_decide_is_left_to_the_message_about_it() -> None:
    assert _engine(model="lama", hardware={"gpu": "a10000"}).max_num_seqs == BATCH


@pytest.mark.parametrize("flag", ["enable_prefix_caching", "async_scheduling"])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"memory": {"kind": "contiguous"}}, "= true needs memory.kind = paged, got contiguous"),
        (
            {"engine": {"scheduler": "static"}, "memory": {"kind": "grow"}},
            "= true needs engine.scheduler = vllm, got static",
        ),
    ],
)
def test_asking_for_what_a_server_cannot_do_is_refused_with_the_way_out(
    flag: str, changes: dict[str, Any], problem: str
) -> None:
    engine = {**changes.get("engine", {}), flag: True}
    with pytest.raises(ValueError, match=problem) as caught:
        _scenario(**{**changes, "engine": engine})
    assert "Set it to false, or leave it out" in str(caught.value)


def test_a_profile_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path, SCENARIO.replace("profile: plain", "profile: vllm-0.6"))
    with pytest.raises(InputError, match=r"profile must be vllm-0.33, sosp23 or plain, got"):
        load_scenario(str(path))


@pytest.mark.parametrize("profile", ["vllm-0.33", "sosp23", "plain"])
def test_a_resolved_scenario_says_every_value_and_depends_on_no_profile(
    tmp_path: Path, profile: str
) -> None:
    text = SCENARIO.replace("profile: plain", f"profile: {profile}")
    scenario = load_scenario(str(write_small(tmp_path, text)))
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert f"profile: {profile}" in copy.read_text()
    assert resolved(load_scenario(str(copy))) == copy.read_text()
    for other in ("vllm-0.33", "sosp23", "plain"):
        same = load_scenario(str(copy), [f"profile={other}"])
        for name, settings in variants(scenario).items():
            assert variants(same)[name].engine.model_dump() == settings.engine.model_dump()
            assert variants(same)[name].memory.model_dump() == settings.memory.model_dump()


def test_a_run_with_the_real_servers_defaults_repeats_from_its_folder(tmp_path: Path) -> None:
    rows = "".join(f"{i / 7},{3 + i % 9},{1 + i % 5}\n" for i in range(40))
    trace = "arrival_s,prompt_tokens,output_tokens\n" + rows
    text = SCENARIO.replace("profile: plain\n", "")
    first, second = tmp_path / "first", tmp_path / "second"
    run_scenario(load_scenario(str(write_small(tmp_path, text, trace))), out=first)
    run_scenario(load_scenario(str(first / "scenario.yaml")), out=second)
    for name in ("scenario.yaml", "summary.json", "variants/paged/steps.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_cuda_graphs_in_the_budget_leave_fewer_blocks() -> None:
    shared = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.92}
    by_default = build_server(_scenario()).sizing.num_blocks
    without = build_server(_scenario(engine={"cuda_graphs_in_budget": False})).sizing.num_blocks
    model, gpu = get_model("llama-3-8b"), get_gpu("l40s")
    assert by_default == compute_budget(model, gpu, **shared, cuda_graphs_in_budget=True).num_blocks
    assert without == compute_budget(model, gpu, **shared).num_blocks
    assert by_default < without


DRAFTS = {
    "num_speculative_tokens": 2,
    "acceptance_rate": 0.5,
    "draft_s_per_token": 0.001,
}


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_drafters_that_wait_for_the_cpu_turn_asynchronous_scheduling_off(method: str) -> None:
    engine = _engine(engine={"speculative_config": {**DRAFTS, "method": method}})
    assert engine.async_scheduling is False
    assert engine.enable_prefix_caching is True


def test_the_real_servers_asynchronous_drafts_are_refused_by_name() -> None:
    drafts = {**DRAFTS, "method": "eagle"}
    with pytest.raises(ValueError, match=r"engine.async_scheduling: = true together with") as error:
        _scenario(engine={"speculative_config": drafts})
    assert "Set async_scheduling to false" in str(error.value)
    assert _engine(engine={"speculative_config": drafts, "async_scheduling": False})
