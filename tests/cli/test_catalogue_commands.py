from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.scenario import shipped_scenarios
from tests.cli.conftest import Command


def test_models_lists_the_real_and_the_naive_kv_bytes_per_token(kvsim: Command) -> None:
    rows = {
        line.split()[0]: line.split() for line in kvsim("models").out.splitlines() if line.strip()
    }
    assert "327,680" in rows["llama-3-70b"]
    assert "2,621,440" in rows["llama-3-70b"]
    assert "131,072" in rows["llama-3-8b"]


def test_one_model_is_shown_with_units_and_on_request_with_sources(kvsim: Command) -> None:
    plain = kvsim("models", "llama-3-70b").out
    explained = kvsim("models", "llama-3-70b", "--explain").out
    assert "bytes/token/GPU" in plain
    assert "num_hidden_layers" not in plain
    assert "num_hidden_layers" in explained


def test_gpus_lists_memory_and_bandwidth(kvsim: Command) -> None:
    rows = {
        line.split()[0]: line.split() for line in kvsim("gpus").out.splitlines() if line.strip()
    }
    assert rows["a100-80gb"][1:4] == ["85.9", "2,039", "312.0"]


@pytest.mark.parametrize("command", ["models", "gpus", "scenarios", "traces"])
@pytest.mark.parametrize("width", [60, 80])
def test_a_list_fits_a_terminal_with_nothing_cut_off(
    monkeypatch: pytest.MonkeyPatch, kvsim: Command, command: str, width: int
) -> None:
    monkeypatch.setattr("kvsim.cli.console.PIPE_WIDTH", width)
    lines = kvsim(command).out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    names = json.loads(kvsim(command, "--json").out)[command]
    shown = {line.split()[0] for line in lines if line.strip()}
    assert set(names) <= shown


def test_columns_without_room_are_named(monkeypatch: pytest.MonkeyPatch, kvsim: Command) -> None:
    assert "Left out" not in kvsim("models").out
    monkeypatch.setattr("kvsim.cli.console.PIPE_WIDTH", 60)
    out = kvsim("models").out
    assert "KV" in out
    assert "layers. One entry alone" in " ".join(out.split())


def test_every_shipped_scenario_is_listed_with_its_description(kvsim: Command) -> None:
    listed = json.loads(kvsim("scenarios", "--json").out)["scenarios"]
    assert set(listed) == set(shipped_scenarios())
    assert all(listed.values())
    assert listed["quickstart"].split()[0] in kvsim("scenarios").out


def test_every_trace_is_listed_with_its_place_or_the_way_to_it(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    listed = json.loads(kvsim("traces", "--json").out)
    assert listed["folder"] is None
    assert {trace["path"] for trace in listed["traces"].values()} == {None}
    assert "azure-conv-2023" in listed["presets"]
    assert "sharegpt" in listed["length_presets"]
    out = kvsim("traces").out
    assert "$KVSIM_TRACES is not set" in out
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text("other")
    monkeypatch.setenv("KVSIM_TRACES", str(tmp_path))
    azure = json.loads(kvsim("traces", "--json").out)["traces"]["azure-conv-2023"]
    assert "SHA-256" in azure["problem"]


def test_a_trace_that_is_there_is_listed_with_its_path(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", str(shared / "traces"))
    path = json.loads(kvsim("traces", "--json").out)["traces"]["azure-conv-2023"]["path"]
    assert Path(path).is_file()


@pytest.mark.parametrize("command", ["models", "gpus"])
def test_json_has_a_source_for_every_number_with_explain(kvsim: Command, command: str) -> None:
    entries = json.loads(kvsim(command, "--json", "--explain").out)[command]
    assert len(entries) >= 8
    facts = [fact for shown in entries.values() for fact in shown]
    assert all(fact["source"] for fact in facts)
    plain = json.loads(kvsim(command, "--json").out)[command]
    assert {key for shown in plain.values() for fact in shown for key in fact} == {
        "name",
        "value",
        "unit",
    }


@pytest.mark.parametrize(
    ("command", "name", "hint"), [("models", "lama-3-8b", "llama-3-8b"), ("gpus", "a100-4", "a100")]
)
def test_an_unknown_name_ends_with_status_2_and_the_nearest(
    kvsim: Command, command: str, name: str, hint: str
) -> None:
    outcome = kvsim(command, name)
    assert (outcome.status, outcome.out) == (2, "")
    assert repr(name) in outcome.err
    assert f"Did you mean {hint}" in outcome.err


def test_schema_prints_json_schema(kvsim: Command) -> None:
    schema = json.loads(kvsim("schema").out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert schema["properties"]["version"]["const"] == 1


def test_version_is_printed(kvsim: Command) -> None:
    assert kvsim("--version").out == "kvsim 0.1.0\n"
