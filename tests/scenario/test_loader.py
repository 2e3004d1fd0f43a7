from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.scenario import Scenario, load_scenario, resolved, run_scenario, variants
from kvsim.scenario.schema import scenario_schema
from tests.scenario.small import SCENARIO, write_small

Refusal = Callable[..., InputError]


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """The error of loading the small scenario after a replacement in its text, with options."""
    monkeypatch.chdir(tmp_path)

    def load(old: str, new: str, *overrides: str) -> InputError:
        assert old in SCENARIO
        write_small(tmp_path, SCENARIO.replace(old, new, 1))
        with pytest.raises(InputError) as caught:
            load_scenario("small.yaml", overrides)
        return caught.value

    return load


def test_a_message_has_place_name_limit_value_and_way_out(refusal: Refusal) -> None:
    assert str(refusal("block_size: 4", "block_size: 0")) == (
        "small.yaml:6: memory.block_size must be >= 1 token, got 0."
        " Give an integer from 1 to 65536 (tokens): tokens per KV block, e.g. 16"
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "problem", "fix"),
    [
        ("version: 1", "version: 2", 1, "version must be 1, got 2", "version of this file"),
        ("version: 1", "version: true", 1, "version must be 1, got True", "Give 1"),
        ("version: 1", "version: 1.0", 1, "version must be 1, got 1.0", "Give 1"),
        ("max_num_seqs: 4", "max_num_seqs: 5.0", 3, "must be a whole number, got 5.0", "from 1 to"),
        ("clock:", "hardware: {}\nclock:", 7, "hardware.gpu is missing", "`kvsim gpus` lists"),
        (
            "version: 1",
            "version: 1\nsampling: {n: 65}",
            2,
            "must be <= 64 branches, got 65",
            "from 1 to 64 (branches)",
        ),
        (
            "kind: paged, ",
            "kind: paged, swap: {out_gb_per_s: 0}, ",
            6,
            "must be > 0 GB/s, got 0",
            "<= 1e+06 (GB/s)",
        ),
        ("version: 1", "verion: 1", 1, "verion is not a setting", "Did you mean version?"),
        ("max_num_seqs: 4", "max_num_seq: 4", 3, "engine.max_num_seq is not a setting", "seqs?"),
        ("max_num_seqs: 4", "max_num_seqs: 4.5", 3, "must be a whole number, got 4.5", "at once"),
        ("max_num_seqs: 4", "max_num_seqs: true", 3, "must be a whole number, got True", "at once"),
        ("max_num_seqs: 4", "max_num_seqs: '4'", 3, "must be a whole number, got '4'", "at once"),
        ("max_num_seqs: 4", "max_num_seqs: 0", 3, "must be >= 1 sequence, got 0", "at once"),
        ("max_num_seqs: 4", "watermark: 1.0", 3, "engine.watermark must be < 1, got 1.0", "kept"),
        ("max_num_seqs: 4", "watermark: .nan", 3, "must be a finite number, got nan", "kept free"),
        ("max_num_seqs: 4", "scheduler: vlm", 3, "must be vllm, orca or static, got 'vlm'", "orca"),
        (
            "max_num_seqs: 4",
            "max_num_seqs: 65",
            4,
            "engine.max_num_batched_tokens must be >= engine.max_num_seqs = 65 tokens, got 64",
            "lower max_num_seqs",
        ),
        (
            "max_num_seqs: 4",
            "enable_prefix_caching: true",
            3,
            "compare.contiguous-max: engine.enable_prefix_caching = true needs memory.kind = paged",
            "Set it to false, or leave it out",
        ),
        (
            "max_num_seqs: 4",
            "async_scheduling: true",
            3,
            "compare.contiguous-max: engine.async_scheduling = true needs memory.kind = paged, got",
            "Set it to false, or leave it out",
        ),
        (
            "max_num_seqs: 4",
            "enable_lora: true",
            3,
            "engine.enable_lora is not covered: LoRA",
            "move",
        ),
        ("max_num_seqs: 4", "scheduling_policy: sjf", 3, "must be fcfs or priority", "by arrival"),
        (
            "  max_num_batched_tokens: 64\n  max_model_len: 16",
            "  max_num_batched_tokens: 8\n  enable_chunked_prefill: false\n  max_model_len: 16",
            4,
            "must be >= max_model_len = 16 tokens without chunked prefill, got 8",
            "lower max_model_len",
        ),
        (
            "max_num_seqs: 4",
            "max_num_seqs: 4\n  long_prefill_token_threshold: 17",
            4,
            "must be <= max_model_len = 16 tokens, got 17",
            "0 for no limit",
        ),
        ("engine:", "engine:\n  scheduler: orca", 7, "memory.kind must be contiguous", "vllm"),
        ("engine:", "engine:\n  scheduler: static", 7, "must be contiguous or grow with", "vllm"),
        ("engine:", "engine:\n  pad_prompts: true", 3, "needs engine.scheduler = static", "false"),
        ("kind: paged, ", "kind: grow, ", 2, "engine.scheduler must be static with", "contiguous"),
        ("kind: paged, ", "kind: pagd, ", 6, "must be one of paged, contiguous, grow", "schema"),
        ("kind: paged, ", "", 6, "memory.kind is missing", "schema"),
        ("num_blocks: 9", "num_blocks: 1", 6, "memory.num_blocks must be >= 2 blocks, got 1", "KV"),
        ("num_blocks: 9", "reserve: max", 6, "memory.reserve is not a setting", "null_block"),
        (", num_blocks: 9", "", 1, "model is missing, and memory.num_blocks is left out", "GPU"),
        ("kind: fixed, step_s: 1.0", "kind: calibrated", 1, "model is missing, and clock.", "GPU"),
        ("step_s: 1.0", "step_s: 0", 7, "clock.step_s must be > 0 seconds, got 0", "every step"),
        (", step_s: 1.0", "", 7, "clock.step_s is missing", "every step"),
        ("  max_model_len: 16\n", "", 2, "engine.max_model_len is missing", "together"),
        ("max_model_len: 16", "max_model_len: 1", 5, "must be >= 2 tokens, got 1", "together"),
        ("{path: trace.csv}", "{}", 8, "workload needs one of the keys trace, path", "requests"),
        ("{path: trace.csv}", "3", 8, "workload needs one of the keys trace, path", "requests"),
        ("{path: trace.csv}", "{path: 3}", 8, "workload.path must be text, got 3", "trace file"),
        (
            "path: trace.csv",
            "path: t.csv, preset: azure-conv-2023",
            8,
            "workload.preset is not a setting",
            "Known here: path",
        ),
        ("path: trace.csv", "trace: azure", 8, "workload.trace = 'azure' is no known", "azure-c"),
        ("path: trace.csv", "preset: x", 8, "workload.preset = 'x' is no known preset", "azure-c"),
        ("path: trace.csv", "path: x, format: xml", 8, "= 'xml' is no known format", "azure"),
        ("path: trace.csv", "path: x, rate_scale: 0", 8, "must be >= 1e-06, got 0", "factor"),
        ("reserve: max", "reserve: most", 11, "compare.contiguous-max: memory.reserve", "pow2"),
        ("reserve: max", "null_block: true", 11, "memory.null_block is not a setting", "reserve"),
        (
            "first_fit",
            "buddy, compaction: true",
            11,
            "compare.contiguous-max: memory.compaction = true excludes memory.placement = buddy",
            "first_fit",
        ),
        ("first_fit", "buddy, max_chunk_tokens: 12", 11, "times a power of two, got 12", "512"),
        ("first_fit", "best_fit, max_chunk_tokens: 16", 11, "belongs to memory.placement", "buddy"),
        ("  contiguous-max:", "  paged:", 10, "compare.paged has the name of", "base_name"),
        ("  contiguous-max:", "  a/b:", 10, "compare.a/b must be 1 to 80 letters", "schema"),
        (
            "    memory: {kind: contiguous, reserve: max, placement: first_fit}",
            "    workload: {path: trace.csv}",
            11,
            "compare.contiguous-max.workload cannot differ between variants",
            "share the traffic",
        ),
        (
            "clock:",
            "seeds: [0, 1, 0]\nclock:",
            7,
            "seeds must differ from each other, got 0 2 times",
            "Name each",
        ),
        ("clock:", "seeds: []\nclock:", 7, "seeds must have at least 1 item, got []", "seed"),
        ("clock:", "seeds: [-1]\nclock:", 7, "seeds.0 must be >= 0, got -1", "from 0 to"),
        ("clock:", "measure: {from_s: 5, to_s: 5}\nclock:", 7, "must be > measure.from_s", "empty"),
        ("clock:", "name: ../x\nclock:", 7, "name must be 1 to 80 letters", "file's name"),
        ("clock:", "frontend_s: -1\nclock:", 7, "frontend_s must be >= 0 seconds, got -1", "first"),
        ("clock:", "model: lama-3-8b\nclock:", 7, "model 'lama-3-8b' is not in", "llama-3-8b"),
        ("clock:", "hardware: {gpu: a100-4}\nclock:", 7, "'a100-4' is not in", "a100-40gb"),
    ],
)
def test_a_malformed_scenario_is_refused_with_line_problem_and_way_out(
    refusal: Refusal, old: str, new: str, line: int, problem: str, fix: str
) -> None:
    error = refusal(old, new)
    assert error.where == f"small.yaml:{line}"
    assert problem in error.problem
    assert error.fix is not None
    assert fix in error.fix


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("pipeline_parallel_size: 2", "is not covered: pipeline parallelism"),
        ("data_parallel_size: 2", "is not covered: data parallelism"),
        ("kv_transfer_config: {}", "is not covered: KV connectors"),
        ("mamba_cache_mode: all", "is not covered: how states of linear attention"),
        ("enable-lora: true", "is not covered: LoRA adapters"),
        ("tensor_parallel_size: 2", "is called hardware.count here"),
        ("block_size: 16", "is called memory.block_size here"),
    ],
)
def test_a_flag_of_vllm_that_is_no_setting_is_refused_by_name(
    refusal: Refusal, flag: str, problem: str
) -> None:
    error = refusal("max_num_seqs: 4", f"max_num_seqs: 4\n  {flag}")
    assert problem in error.problem
    assert error.where == "small.yaml:4"
    assert error.fix


def test_several_problems_are_counted(refusal: Refusal) -> None:
    error = refusal("max_num_seqs: 4", "max_num_seqs: 0\n  watermark: 2")
    assert (
        error.problem == "engine.max_num_seqs must be >= 1 sequence, got 0 (1 more after this one)"
    )


@pytest.mark.parametrize(
    ("override", "where", "problem"),
    [
        ("engine.max_num_seqs=0", "--set engine.max_num_seqs", "must be >= 1 sequence, got 0"),
        ("engine.max_num_seqs", "--set", "must have the form key.path=value"),
        ("=4", "--set", "must have the form key.path=value"),
        ("engine..max=4", "--set", "must have the form key.path=value"),
        ("version.x=4", "--set version.x", "version is a value, not a section, got 1"),
        ("engine.max_num_seqs=[", "--set engine.max_num_seqs", "is not valid YAML"),
        ("engine.speed=4", "--set engine.speed", "engine.speed is not a setting"),
        (
            "memory={kind: x}",
            "--set memory",
            "must be one of paged, contiguous, grow, vmm, got 'x'",
        ),
        (
            "compare.contiguous-max.memory.reserve=x",
            "--set compare.contiguous-max.memory.reserve",
            "compare.contiguous-max: memory.reserve must be max, pow2, oracle or requested",
        ),
        ("compare.b.slo.ttft_s=1", "--set compare.b.slo.ttft_s", "cannot differ between variants"),
    ],
)
def test_a_wrong_option_is_named_and_not_the_file(
    refusal: Refusal, override: str, where: str, problem: str
) -> None:
    error = refusal("version: 1", "version: 1", override)
    assert error.where == where
    assert problem in error.problem
    assert error.fix


def test_overrides_change_the_base_and_are_inherited_by_variants(tmp_path: Path) -> None:
    scenario = load_scenario(
        str(write_small(tmp_path)), ["memory.num_blocks=5", "engine.max_num_seqs=2"]
    )
    assert {name: v.memory.num_blocks for name, v in variants(scenario).items()} == {
        "paged": 5,
        "contiguous-max": 5,
    }
    assert {v.engine.max_num_seqs for v in variants(scenario).values()} == {2}


def test_a_variant_of_another_kind_keeps_only_the_settings_that_kind_has(tmp_path: Path) -> None:
    text = SCENARIO.replace("num_blocks: 9", "num_blocks: 9, null_block: false")
    contiguous = variants(load_scenario(str(write_small(tmp_path, text))))["contiguous-max"]
    assert contiguous.memory.model_dump() == {
        "kind": "contiguous",
        "block_size": 4,
        "num_blocks": 9,
        "reserve": "max",
        "placement": "first_fit",
        "max_chunk_tokens": None,
        "compaction": False,
    }


def test_the_base_variant_is_named_by_its_memory_kind_or_base_name(tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    assert list(variants(load_scenario(path))) == ["paged", "contiguous-max"]
    assert list(variants(load_scenario(path, ["base_name=today"]))) == ["today", "contiguous-max"]


def test_the_name_is_the_files_unless_given(tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    assert load_scenario(path).name == "small"
    assert load_scenario(path, ["name=mine"]).name == "mine"


def test_a_trace_path_is_relative_to_the_scenario_that_names_it(tmp_path: Path) -> None:
    text = resolved(load_scenario(str(write_small(tmp_path))))
    assert f"path: {tmp_path / 'trace.csv'}" in text


def test_a_scenario_may_not_choose_a_file_outside_its_folder(tmp_path: Path) -> None:
    """The user may, on the command line; and a scenario that knows the content's digest."""
    folder = tmp_path / "folder"
    folder.mkdir()
    scenario = write_small(folder)
    outside = tmp_path / "trace.csv"
    (folder / "trace.csv").rename(outside)
    for given in ("../trace.csv", str(outside)):
        text = scenario.read_text().replace("path: trace.csv", f"path: {given}")
        (folder / "bad.yaml").write_text(text)
        with pytest.raises(InputError, match=r"bad.yaml:\d+: workload.path leads out") as caught:
            load_scenario(str(folder / "bad.yaml"))
        assert f"--set workload.path={folder}" in str(caught.value) or str(outside) in str(
            caught.value
        )
    (folder / "trace.csv").symlink_to(outside)
    with pytest.raises(InputError, match="leads out"):
        load_scenario(str(scenario))
    named = load_scenario(str(scenario), [f"workload.path={outside}"])
    assert run_scenario(named).summary["workload"]["rows"]["kept"] == 1
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()
    text = scenario.read_text().replace("path: trace.csv", f"path: {outside}, sha256: {digest}")
    (folder / "stamped.yaml").write_text(text)
    stamped = load_scenario(str(folder / "stamped.yaml"))
    assert run_scenario(stamped).summary["workload"]["rows"]["kept"] == 1
    outside.write_text("secret\n")
    with pytest.raises(InputError, match=r"workload\.sha256 is") as caught:
        run_scenario(stamped)
    assert "secret" not in str(caught.value)


VARIED = [
    [],
    ["compare.grow={engine: {scheduler: static}, memory: {kind: grow}}"],
    ["compare.other={model: opt-13b, hardware: {gpu: a100-40gb}, clock: {kind: roofline}}"],
    ["measure={from_s: 1, to_s: 9}", "slo.ttft_s=0.5", "record.mode=series"],
    [
        "workload={num_requests: 3, arrivals: {kind: gamma, rate_rps: 2, burstiness: 0.5},"
        " lengths: {prompt: {kind: uniform, mean: 9, range_ratio: 0.5},"
        " output: {kind: lognormal, p50: 3, sigma: 1, high: 7}}}"
    ],
    ["workload={trace: azure-conv-2023, fallback: {preset: azure-conv-2023}, limit: 3}"],
]


@pytest.mark.parametrize("overrides", VARIED)
def test_a_resolved_scenario_loads_to_the_same_settings_and_the_same_text(
    tmp_path: Path, overrides: list[str]
) -> None:
    scenario = load_scenario(str(write_small(tmp_path)), overrides)
    text = resolved(scenario)
    again_path = tmp_path / "again.yaml"
    again_path.write_text(text)
    again = load_scenario(str(again_path))
    assert resolved(again) == text
    assert {name: v.model_dump() for name, v in variants(again).items()} == {
        name: v.model_dump() for name, v in variants(scenario).items()
    }


def test_a_shipped_scenario_is_found_by_name_and_a_typo_is_answered_with_the_nearest() -> None:
    assert load_scenario("quickstart").name == "quickstart"
    with pytest.raises(InputError, match="Did you mean quickstart") as caught:
        load_scenario("quikstart")
    assert caught.value.where == "SCENARIO"


def test_every_setting_of_the_schema_is_described() -> None:
    schema = scenario_schema()
    sections = {"": schema, **schema["$defs"]}
    bare = [
        f"{section}.{key}"
        for section, content in sections.items()
        for key, setting in content.get("properties", {}).items()
        if key != "kind" and "description" not in str(setting) and "$ref" not in str(setting)
    ]
    assert bare == []
    assert set(schema["properties"]) == set(Scenario.model_fields)
