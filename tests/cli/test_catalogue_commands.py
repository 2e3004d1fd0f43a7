from __future__ import annotations

import json

import pytest

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
    assert "85,899,345,920" in rows["a100-80gb"]
    assert "2,039,000,000,000" in rows["a100-80gb"]


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
