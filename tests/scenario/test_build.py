from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import pytest

from kvsim.catalog import compute_budget, get_gpu, get_model
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import CalibratedClock, FixedClock, LinearClock, RooflineClock
from kvsim.errors import InputError
from kvsim.scenario import Scenario, build_server, build_workload, load_scenario, variants
from tests.scenario.small import write_small

ON_GPU = {
    "version": 1,
    "model": "llama-3-8b",
    "hardware": {"gpu": "a100-80gb"},
    "workload": {"preset": "azure-conv-2023", "num_requests": 10},
}


def test_each_kind_of_memory_scheduler_and_clock_becomes_its_class(tmp_path: Path) -> None:
    contiguous = "memory: {kind: contiguous, placement: first_fit}"
    scenario = load_scenario(
        str(write_small(tmp_path)),
        [
            f"compare.orca={{engine: {{scheduler: orca}}, {contiguous}}}",
            f"compare.static={{engine: {{scheduler: static}}, {contiguous}}}",
            "compare.grow={engine: {scheduler: static}, memory: {kind: grow}}",
        ],
    )
    built = {
        name: (type(server.allocator), type(server.scheduler))
        for name, server in ((n, build_server(v)) for n, v in variants(scenario).items())
    }
    assert built == {
        "paged": (PagedAllocator, VllmScheduler),
        "contiguous-max": (ContiguousAllocator, VllmScheduler),
        "orca": (ContiguousAllocator, OrcaScheduler),
        "static": (ContiguousAllocator, StaticScheduler),
        "grow": (GrowAllocator, StaticScheduler),
    }


@pytest.mark.parametrize(
    ("clock", "facts"),
    [
        ({"kind": "fixed", "step_s": 0.5, "copy_token_s": 0.1}, {"copy_token_s": 0.1}),
        (
            {
                "kind": "linear",
                "base_s": 0.1,
                "prefill_token_s": 0.2,
                "context_token_s": 0.3,
                "decode_s": 0.4,
                "copy_token_s": 0.5,
            },
            {
                "base_s": 0.1,
                "prefill_token_s": 0.2,
                "context_token_s": 0.3,
                "decode_s": 0.4,
                "copy_token_s": 0.5,
            },
        ),
        ({"kind": "roofline", "t0_s": 0.25}, {"t0_s": 0.25, "kv_bytes_per_token": 65_536 // 2}),
        (
            {"kind": "calibrated", "engine": "vllm"},
            {"host_s": 0.002312, "kv_bytes_per_token": 65_536 // 2},
        ),
    ],
)
def test_every_setting_of_a_clock_reaches_it(
    clock: dict[str, object], facts: dict[str, float]
) -> None:
    """Llama-3-8B has 131,072 KV bytes per token at 16 bits; fp8 halves it, two GPUs halve it."""
    changed = {
        **ON_GPU,
        "hardware": {"gpu": "a100-80gb", "count": 2},
        "engine": {"kv_cache_dtype": "fp8"},
        "clock": clock,
    }
    explained = build_server(Scenario.model_validate(changed)).sizing.clock.explain()
    assert {fact.name: fact.value for fact in explained}.items() >= facts.items()


@pytest.mark.parametrize(
    ("clock", "kind"),
    [
        ({"kind": "fixed", "step_s": 0.5}, FixedClock),
        ({"kind": "linear", "base_s": 0.5}, LinearClock),
        ({"kind": "roofline"}, RooflineClock),
        ({"kind": "calibrated"}, CalibratedClock),
    ],
)
def test_each_kind_of_clock_becomes_its_class(clock: dict[str, object], kind: type) -> None:
    assert type(build_server(Scenario.model_validate({**ON_GPU, "clock": clock})).sizing.clock) is (
        kind
    )


def test_blocks_that_are_given_are_taken_and_the_null_block_is_not_usable(tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    assert build_server(load_scenario(path)).allocator.capacity_slots == 8 * 4
    without = load_scenario(path, ["memory.null_block=false"])
    assert build_server(without).allocator.capacity_slots == 9 * 4


def test_blocks_left_out_come_from_the_memory_budget_with_the_engines_settings() -> None:
    engine = {
        "max_num_seqs": 100,
        "max_num_batched_tokens": 4096,
        "gpu_memory_utilization": 0.8,
        "cuda_graphs_in_budget": False,
        "kv_cache_dtype": "fp8",
    }
    scenario = Scenario.model_validate(
        {
            **ON_GPU,
            "hardware": {"gpu": "a100-80gb", "count": 2},
            "engine": engine,
            "memory": {"kind": "paged", "block_size": 32},
        }
    )
    budget = compute_budget(
        get_model("llama-3-8b"),
        get_gpu("a100-80gb"),
        tp=2,
        gpu_memory_utilization=0.8,
        block_size=32,
        max_num_batched_tokens=4096,
        max_num_seqs=100,
        kv_dtype_bytes=1,
    )
    assert build_server(scenario).sizing.num_blocks == budget.num_blocks
    assert build_server(scenario).sizing.budget == budget


def test_the_longest_request_is_the_models_unless_the_engine_allows_less() -> None:
    assert build_server(Scenario.model_validate(ON_GPU)).sizing.max_model_len == 8192
    shorter = {**ON_GPU, "engine": {"max_model_len": 1000}}
    assert build_server(Scenario.model_validate(shorter)).sizing.max_model_len == 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": {"max_model_len": 8193}}, "must be <= 8192 tokens, the limit of llama-3-8b"),
        ({"model": "llama-3-70b"}, "leaves no KV cache"),
        ({"hardware": {"gpu": "a100-80gb", "count": 3}}, "cannot be divided over"),
        (
            {"model": "llama-3.1-8b", "hardware": {"gpu": "l4"}},
            "more than the KV memory that llama-3.1-8b leaves on l4",
        ),
        (
            {"engine": {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}},
            "must be >= max_model_len = 8192 tokens without chunked prefill",
        ),
    ],
)
def test_a_server_that_could_not_start_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_server(Scenario.model_validate({**ON_GPU, **change}))
    assert caught.value.fix


def test_orca_needs_a_budget_for_whole_prompts() -> None:
    engine = {"scheduler": "orca", "max_num_batched_tokens": 4096}
    scenario = {**ON_GPU, "engine": engine, "memory": {"kind": "contiguous"}}
    with pytest.raises(InputError, match="must be >= max_model_len = 8192 tokens with"):
        build_server(Scenario.model_validate(scenario))


def test_two_servers_of_one_scenario_share_nothing(tmp_path: Path) -> None:
    scenario = load_scenario(str(write_small(tmp_path)))
    first, second = build_server(scenario), build_server(scenario)
    assert first.allocator is not second.allocator
    assert first.scheduler is not second.scheduler
    assert first.allocator.usage is not second.allocator.usage


LENGTHS = {
    "prompt": {"kind": "constant", "tokens": 7},
    "output": {"kind": "uniform", "low": 2, "high": 2},
}


def _workload(**settings: object) -> Scenario:
    return Scenario.model_validate({**ON_GPU, "workload": settings})


def test_laws_generate_the_requests_they_describe() -> None:
    scenario = _workload(
        num_requests=3, arrivals={"kind": "constant", "rate_rps": 2}, lengths=LENGTHS, rate_scale=5
    )
    rows = [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in _requests(scenario)]
    assert rows == [(0, 7, 2), (100_000_000, 7, 2), (200_000_000, 7, 2)]


def test_pairs_of_a_file_are_taken_row_by_row_with_generated_arrivals(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("prompt_tokens,output_tokens\n3,4\n5,6\n")
    scenario = _workload(
        num_requests=3, arrivals={"kind": "all_at_once"}, lengths={"path": str(pairs)}
    )
    rows = [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in _requests(scenario)]
    assert rows == [(0, 3, 4), (0, 5, 6), (0, 3, 4)]


def test_pairs_can_be_sampled_instead(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("prompt_tokens,output_tokens\n3,4\n5,6\n")
    lengths = {"path": str(pairs), "order": "sample"}
    scenario = _workload(num_requests=64, arrivals={"kind": "all_at_once"}, lengths=lengths)
    rows = [(r.prompt_tokens, r.output_tokens) for r in _requests(scenario)]
    assert set(rows) == {(3, 4), (5, 6)}
    assert rows != [(3, 4), (5, 6)] * 32


def test_the_bounds_of_a_lognormal_law_and_the_burstiness_of_gaps_are_kept() -> None:
    lengths = {
        "prompt": {"kind": "lognormal", "p50": 50, "sigma": 2, "low": 40, "high": 60},
        "output": {"kind": "lognormal", "mean": 9, "sigma": 0},
    }
    arrivals = {"kind": "gamma", "rate_rps": 1, "burstiness": 0.1}
    requests = _requests(_workload(num_requests=500, arrivals=arrivals, lengths=lengths))
    assert {min(r.prompt_tokens for r in requests), max(r.prompt_tokens for r in requests)} == {
        40,
        60,
    }
    assert {r.output_tokens for r in requests} == {9}
    gaps = [b.arrival_ns - a.arrival_ns for a, b in pairwise(requests)]
    assert stdev(gaps) / mean(gaps) == pytest.approx(10**0.5, rel=0.2)


def test_the_settings_of_a_trace_file_are_kept(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n1,1,1\n1,x,1\n1,3,1\n4,4,1\n")
    scenario = _workload(
        path=str(trace), format="table", rate_scale=2, limit=2, smear_s=1.0, on_bad_row="drop"
    )
    traffic = build_workload(scenario.workload, seed=0)
    first, second = traffic.workload
    assert (first.prompt_tokens, second.prompt_tokens) == (1, 3)
    assert 500_000_000 <= first.arrival_ns < second.arrival_ns < 1_000_000_000
    assert traffic.workload.counts.dropped["bad_value"] == 1


def _requests(scenario: Scenario) -> list[Request]:
    return list(build_workload(scenario.workload, seed=scenario.seeds[0]).workload)


def test_the_seed_decides_what_is_generated() -> None:
    scenario = _workload(
        num_requests=50, arrivals={"kind": "poisson", "rate_rps": 2}, lengths=LENGTHS
    )
    first = build_workload(scenario.workload, seed=0).workload.digest
    assert build_workload(scenario.workload, seed=0).workload.digest == first
    assert build_workload(scenario.workload, seed=1).workload.digest != first


def test_max_concurrency_closes_the_loop_of_any_workload(tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    scenario = load_scenario(path, ["workload.max_concurrency=3"])
    assert build_workload(scenario.workload, seed=0).max_concurrency == 3
    assert build_workload(load_scenario(path).workload, seed=0).max_concurrency is None


def test_a_trace_that_is_absent_is_replaced_with_a_note_or_refused_with_its_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", str(tmp_path))
    fallback = {"preset": "azure-conv-2023", "num_requests": 9}
    with_fallback = _workload(trace="azure-conv-2023", fallback=fallback, limit=5)
    traffic = build_workload(with_fallback.workload, seed=0)
    assert traffic.workload.counts.kept == 5
    assert traffic.notes == [
        "trace azure-conv-2023 is not in the folder $KVSIM_TRACES"
        " (AzureLLMInferenceTrace_conv.csv); preset azure-conv-2023 was used instead"
    ]
    with pytest.raises(InputError, match="--strict-traces"):
        build_workload(with_fallback.workload, seed=0, strict_traces=True)
    bare = _workload(trace="azure-conv-2023")
    with pytest.raises(InputError, match=r"\$KVSIM_TRACES") as caught:
        build_workload(bare.workload, seed=0)
    assert caught.value.fix is not None
    assert "/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv as" in caught.value.fix
    assert caught.value.problem.endswith(f": it is {str(tmp_path)!r}")
    monkeypatch.delenv("KVSIM_TRACES")
    with pytest.raises(InputError, match="the variable is not set"):
        build_workload(bare.workload, seed=0)
    lengths = _workload(
        num_requests=3, arrivals={"kind": "all_at_once"}, lengths={"trace": "bwb-lengths"}
    )
    with pytest.raises(InputError, match="bwb-lengths is not in"):
        build_workload(lengths.workload, seed=0)


SCHEDULER = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 33,
    "max_model_len": 30,
    "on_never_fits": "block",
}


@pytest.mark.parametrize(
    ("class_name", "settings", "expected"),
    [
        (
            "VllmScheduler",
            {
                "scheduling_policy": "priority",
                "enable_chunked_prefill": False,
                "long_prefill_token_threshold": 7,
                "watermark": 0.25,
                "scheduler_reserve_full_isl": False,
            },
            {
                **SCHEDULER,
                "enable_chunked_prefill": False,
                "long_prefill_token_threshold": 7,
                "watermark": 0.25,
                "reserve_full_isl": False,
                "policy": "priority",
                "async_scheduling": False,
            },
        ),
        ("OrcaScheduler", {"scheduler": "orca"}, SCHEDULER),
        (
            "StaticScheduler",
            {"scheduler": "static", "pad_prompts": True},
            {
                "max_num_seqs": 3,
                "max_model_len": 30,
                "pad_prompts": True,
                "on_never_fits": "block",
            },
        ),
        (
            "ContiguousAllocator",
            {},
            {
                "num_blocks": 5,
                "block_size": 8,
                "max_model_len": 30,
                "reserve": "requested",
                "placement": "next_fit",
                "max_chunk_tokens": None,
                "compaction": True,
            },
        ),
    ],
)
def test_every_setting_reaches_the_constructor_it_is_for(
    monkeypatch: pytest.MonkeyPatch,
    class_name: str,
    settings: dict[str, object],
    expected: dict[str, object],
) -> None:
    class CalledError(Exception):
        pass

    def spy(*_: object, **keywords: object) -> object:
        raise CalledError(keywords)

    module = "build_memory" if class_name.endswith("Allocator") else "build"
    monkeypatch.setattr(f"kvsim.scenario.{module}.{class_name}", spy)
    memory = {"kind": "contiguous", "reserve": "requested", "placement": "next_fit"}
    memory |= {"compaction": True, "num_blocks": 5, "block_size": 8}
    changed = {**ON_GPU, "engine": {**SCHEDULER, **settings}, "memory": memory}
    with pytest.raises(CalledError) as caught:
        build_server(Scenario.model_validate(changed))
    assert caught.value.args == (expected,)


@pytest.mark.parametrize(
    ("memory", "given", "pads"),
    [
        ("grow", None, True),
        ("grow", False, False),
        ("contiguous", None, False),
        ("contiguous", True, True),
    ],
)
def test_the_one_tensor_of_a_growing_batch_is_padded_unless_said_otherwise(
    tmp_path: Path, memory: str, given: bool | None, pads: bool
) -> None:
    options = ["engine.scheduler=static", f"memory.kind={memory}", "compare={}"]
    if given is not None:
        options.append(f"engine.pad_prompts={str(given).lower()}")
    server = build_server(load_scenario(str(write_small(tmp_path)), options))
    assert isinstance(server.scheduler, StaticScheduler)
    assert server.scheduler.pad_prompts is pads
