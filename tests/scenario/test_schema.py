"""The printed JSON Schema accepts and refuses what the loader does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.scenario import (
    load_scenario,
    resolved,
    scenario_schema,
    shipped_scenarios,
    variants,
)
from kvsim.scenario.document import parse_value, read_document
from tests.scenario.small import SCENARIO, write_small

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def conforms(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """The part of JSON Schema 2020-12 that the format uses, without number limits."""
    if "$ref" in schema and not conforms(value, root["$defs"][schema["$ref"].split("/")[-1]], root):
        return False
    kind = schema.get("type")
    if kind and not isinstance(value, TYPES[kind]):
        return False
    if kind in ("number", "integer") and isinstance(value, bool):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if "anyOf" in schema and not any(conforms(value, one, root) for one in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(conforms(value, one, root) for one in schema["oneOf"]) != 1:
        return False
    return not isinstance(value, dict) or keys_conform(value, schema, root)


def keys_conform(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    if not set(schema.get("required", ())) <= value.keys():
        return False
    for key, below in value.items():
        named = schema.get("properties", {}).get(key)
        patterns = schema.get("patternProperties", {}).items()
        matching = [one for pattern, one in patterns if re.search(pattern, key)]
        known = [named, *matching] if named is not None else matching
        if not known and schema.get("additionalProperties") is False:
            return False
        if not all(conforms(below, one, root) for one in known):
            return False
    return True


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_every_shipped_scenario_conforms_as_written_and_resolved(name: str) -> None:
    schema = scenario_schema()
    written = read_document(shipped_scenarios()[name], name).data
    assert conforms(written, schema, schema)
    assert conforms(parse_value(resolved(load_scenario(name)), name), schema, schema)


REFUSED = [
    ("version: 1", "version: 2"),
    ("version: 1", "version: true"),
    ("max_num_seqs: 4", "max_num_seqs: 4.5"),
    ("max_num_seqs: 4", "enable_prefix_caching: 1"),
    ("max_num_seqs: 4", "async_scheduling: 'no'"),
    ("max_num_seqs: 4", "scheduling_policy: sjf"),
    ("max_num_seqs: 4", "speculative_config: {num_speculative_tokens: 2, acceptance_rate: 0.5}"),
    ("max_num_seqs: 4", "speculative_config: {method: medusa, num_speculative_tokens: 2}"),
    ("block_size: 4", "eviction: random"),
    ("profile: plain", "profile: vllm-0.1"),
    ("path: trace.csv", "chat: {conversations: 3}"),
    ("kind: paged, ", "kind: pagd, "),
    ("clock:", "model: lama\nclock:"),
    ("clock:", "hardware: {gpu: a100-4}\nclock:"),
    ("clock:", "name: _x\nclock:"),
    ("path: trace.csv", "trace: azure"),
    ("path: trace.csv", "preset: x"),
    ("path: trace.csv", "preset: sharegpt"),
    ("path: trace.csv", "path: x, format: xml"),
    ("path: trace.csv", "path: x, sha256: abc"),
    ("  contiguous-max:", "  a/b:"),
    ("reserve: max", "reserve: most"),
    ("reserve: max", "null_block: true"),
    ("memory: {kind: cont", "slo: {ttft_s: 1}\n    memory: {kind: cont"),
    ("memory: {kind: cont", "engine: {max_seqs: 1}\n    memory: {kind: cont"),
    ("memory: {kind: cont", "model: lama\n    memory: {kind: cont"),
]


def test_a_variant_may_change_a_part_of_the_speculation(tmp_path: Path) -> None:
    drafts = "{method: ngram, num_speculative_tokens: 2, acceptance_rate: 0.5}"
    text = SCENARIO.replace("max_num_seqs: 4", f"max_num_seqs: 4\n  speculative_config: {drafts}")
    changed = "engine: {speculative_config: {acceptance_rates: [0.9, 0.1]}}"
    text = text.replace("memory: {kind: contiguous, reserve: max, placement: first_fit}", changed)
    schema = scenario_schema()
    assert conforms(parse_value(text, "small"), schema, schema)
    scenario = load_scenario(str(write_small(tmp_path, text)))
    drafts_of_variant = variants(scenario)["contiguous-max"].engine.speculative_config
    assert drafts_of_variant is not None
    assert drafts_of_variant.rates == (0.9, 0.1)
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert resolved(load_scenario(str(copy))) == copy.read_text()


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_schema_and_loader_refuse_the_same(tmp_path: Path, old: str, new: str) -> None:
    schema = scenario_schema()
    assert conforms(parse_value(SCENARIO, "small"), schema, schema)
    text = SCENARIO.replace(old, new)
    assert text != SCENARIO
    assert not conforms(parse_value(text, "small"), schema, schema)
    with pytest.raises(InputError):
        load_scenario(str(write_small(tmp_path, text)))


def test_descriptions_state_the_whole_rule_of_requested_and_of_frontend_s() -> None:
    schema = scenario_schema()
    reserve = schema["$defs"]["ContiguousMemory"]["properties"]["reserve"]["description"]
    assert "max_tokens; max_model_len where it states none" in reserve
    assert "end-to-end" in schema["properties"]["frontend_s"]["description"]
