"""A run whose trace was replaced by its fallback, and options that change a section's kind."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.scenario import load_scenario, run_scenario, shipped_scenarios, variants
from tests.scenario.small import SCENARIO, TRACE, write_small

FALLBACK = SCENARIO.replace(
    "{path: trace.csv}",
    "{trace: azure-conv-2023, limit: 7, fallback: {preset: azure-conv-2023, num_requests: 9}}",
).replace("max_model_len: 16", "max_model_len: 8192")
RECIPE = SCENARIO.replace(
    "{path: trace.csv}",
    "{sosp23: {trace: sharegpt-opt-lengths, rate_rps: 2, duration_s: 3},"
    " fallback: {preset: sharegpt}}",
)


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)


@pytest.mark.parametrize("seeds", ["[0]", "[0, 1]"])
@pytest.mark.parametrize("text", [FALLBACK, RECIPE])
def test_a_run_on_a_fallback_repeats_to_the_same_bytes_even_where_the_trace_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seeds: str
) -> None:
    text += f"seeds: {seeds}\nrecord: {{mode: summary}}\n"
    first, second = tmp_path / "first", tmp_path / "second"
    scenario = load_scenario(str(write_small(tmp_path, text)))
    notes = run_scenario(scenario, out=first, workers=1).summary["workload"]["notes"]
    assert "was used instead" in notes[0]
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text("TIMESTAMP\n")
    (tmp_path / "sharegpt_opt_lengths.csv").write_text("prompt_tokens\n")
    monkeypatch.setenv("KVSIM_TRACES", str(tmp_path))  # reading these would be an error
    run_scenario(load_scenario(str(first / "scenario.yaml")), out=second, workers=1)
    for name in ("scenario.yaml", "summary.json", "run.json", "files.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_the_run_folder_names_the_preset_that_was_used(tmp_path: Path) -> None:
    scenario = load_scenario(str(write_small(tmp_path, FALLBACK)))
    run_scenario(scenario, out=tmp_path / "run")
    assert load_scenario(str(tmp_path / "run" / "scenario.yaml")).workload.model_dump() == {
        "preset": "azure-conv-2023",
        "num_requests": 7,
        "rate_scale": 1.0,
        "max_concurrency": None,
        "instead_of": "azure-conv-2023",
    }


def test_the_run_folder_names_the_trace_alone_where_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", str(shared / "traces"))
    scenario = load_scenario(str(write_small(tmp_path, FALLBACK)))
    run_scenario(scenario, out=tmp_path / "run")
    stored = load_scenario(str(tmp_path / "run" / "scenario.yaml")).workload.model_dump()
    assert (stored["trace"], stored["limit"]) == ("azure-conv-2023", 7)
    assert stored["fallback"] is None


def _workload(path: str, *options: str) -> dict[str, Any]:
    return load_scenario(path, options).workload.model_dump(exclude_unset=True)


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_any_traffic_can_be_named_on_the_command_line_of_a_shipped_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _workload(name, "workload.path=mine.csv")["path"] == str(tmp_path / "mine.csv")
    for key in ("preset", "trace"):
        chosen = _workload(name, f"workload.{key}=azure-code-2023")
        assert chosen[key] == "azure-code-2023"
        others = {"trace", "path", "preset", "lengths", "sosp23", "chat"} - {key}
        assert not others & chosen.keys()


def test_a_fallback_of_the_file_stands_in_for_the_files_trace_only(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, FALLBACK))
    assert "fallback" in _workload(path, "workload.trace=azure-conv-2023")
    assert "fallback" not in _workload(path, "workload.trace=azure-code-2023")


def test_another_kind_of_memory_drops_what_only_the_files_kind_has(tmp_path: Path) -> None:
    text = SCENARIO.replace("num_blocks: 9", "num_blocks: 9, null_block: false")
    path = str(write_small(tmp_path, text))
    memory = load_scenario(path, ["memory.kind=contiguous", "memory.reserve=pow2"]).memory
    assert memory.model_dump(exclude_unset=True) == {
        "kind": "contiguous",
        "block_size": 4,
        "num_blocks": 9,
        "reserve": "pow2",
    }


def test_another_clock_and_another_law_replace_the_files(tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    clock = load_scenario(path, ["clock.kind=linear", "clock.base_s=0.5"]).clock
    assert clock.model_dump(exclude_unset=True) == {"kind": "linear", "base_s": 0.5}
    laws = _workload(
        path,
        "workload.lengths.preset=sharegpt",
        "workload.arrivals={kind: gamma, rate_rps: 2, burstiness: 0.5}",
        "workload.num_requests=3",
    )
    assert "path" not in laws
    assert laws["lengths"] == {"preset": "sharegpt"}


def test_a_variants_kind_changed_by_an_option_drops_the_variants_own_settings(
    tmp_path: Path,
) -> None:
    scenario = load_scenario(
        str(write_small(tmp_path)), ["compare.contiguous-max.memory.kind=paged"]
    )
    assert variants(scenario)["contiguous-max"].memory.kind == "paged"


def test_the_recipe_takes_a_preset_in_place_of_its_trace(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, RECIPE))
    recipe = _workload(path, "workload.sosp23.preset=sharegpt")["sosp23"]
    assert recipe == {"preset": "sharegpt", "rate_rps": 2, "duration_s": 3}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["workload.num_requests=3", "workload.path=x.csv"], "workload.num_requests is not"),
        (["workload.preset=azure-conv-2023", "workload.path=x.csv"], "workload.preset is not"),
        (
            ["workload={preset: azure-conv-2023}", "workload.path=x.csv"],
            "workload.preset is not",
        ),
        (["memory.null_block=false", "memory.kind=contiguous"], "memory.null_block is not"),
        (["memory.kind=paged", "memory.blocksize=4"], "memory.blocksize is not"),
    ],
)
def test_what_another_option_gave_is_never_dropped(
    tmp_path: Path, options: list[str], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        load_scenario(str(write_small(tmp_path)), options)


def test_a_mistake_of_the_file_stays_one_when_its_kind_is_given_again(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, SCENARIO.replace("block_size", "blocksize")))
    with pytest.raises(InputError, match=r"memory\.blocksize is not a setting"):
        load_scenario(path, ["memory.kind=paged"])


def test_a_digest_on_the_command_line_is_checked(tmp_path: Path) -> None:
    """Alone or in a section; one in the file is about the file's own path and goes with it."""
    path = str(write_small(tmp_path))
    trace = tmp_path / "trace.csv"
    with pytest.raises(InputError, match=r"workload\.sha256 must be 64 digits .* got 'abc'"):
        load_scenario(path, [f"workload={{path: {trace}, sha256: abc}}"])
    wrong = load_scenario(path, [f"workload={{path: {trace}, sha256: '{'0' * 64}'}}"])
    with pytest.raises(InputError, match=r"workload\.sha256 is 0000"):
        run_scenario(wrong)
    right = hashlib.sha256(TRACE.encode()).hexdigest()
    scenario = load_scenario(path, [f"workload={{path: {trace}, sha256: {right}}}"])
    assert json.loads(scenario.workload.model_dump_json())["sha256"] == right
    stale = write_small(tmp_path, SCENARIO.replace("trace.csv", f"trace.csv, sha256: '{'0' * 64}'"))
    assert "sha256" not in _workload(str(stale), f"workload.path={trace}")


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("_draft", "draft"),
        ("foo (copy)", "foo _copy_"),
        ("größe", "gr__e"),
        ("x" * 90, "x" * 80),
        ("...", "scenario"),
    ],
)
def test_a_name_is_made_of_any_file_name(tmp_path: Path, stem: str, name: str) -> None:
    path = write_small(tmp_path).rename(tmp_path / f"{stem}.yaml")
    assert load_scenario(str(path)).name == name


def test_a_bad_name_is_answered_with_the_whole_rule(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(str(write_small(tmp_path)), ["name=_x"])
    assert caught.value.problem == (
        "name must be 1 to 80 letters (A-Z, a-z), digits, spaces or . _ + - and start with a"
        " letter or digit, got '_x'"
    )
