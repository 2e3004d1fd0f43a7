"""The file format as JSON Schema, and look-ups in it for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsim.scenario.document import KeyPath
from kvsim.scenario.settings import Scenario

Schema = Mapping[str, Any]


class Setting(NamedTuple):
    """What the schema says about one setting."""

    siblings: list[str]
    """Names of the settings of its section."""
    description: str
    unit: str


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a scenario file."""
    schema = Scenario.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "kvsim scenario"
    return schema


def look_up(path: KeyPath, data: Any) -> Setting:
    """What is known about the setting at `path` of `data`, empty where nothing is."""
    root = Scenario.model_json_schema()
    definitions = root["$defs"]
    here: Schema = root
    siblings: list[str] = []
    for part in path:
        section = _alternative(here, data, definitions)
        properties = section.get("properties", {})
        siblings = list(properties)
        here = properties.get(part, section.get("items", {}))
        data = data.get(part) if isinstance(data, Mapping) else None
    return Setting(siblings, _either(here, "description"), _either(here, "unit"))


def _alternative(schema: Schema, data: Any, definitions: Schema) -> Schema:
    """The member of a union that `data` means; the schema itself where there is no union."""
    if "$ref" in schema:
        return _alternative(definitions[schema["$ref"].rpartition("/")[2]], data, definitions)
    for option in _options(schema):
        member = _alternative(option, data, definitions)
        if _meant(member, data):
            return member
    return schema


def _options(schema: Schema) -> list[Schema]:
    return [*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())]


def _meant(member: Schema, data: Any) -> bool:
    """Whether a mapping has the member's `kind`, or its first required key."""
    if not isinstance(data, Mapping) or "properties" not in member:
        return False
    kind = member["properties"].get("kind")
    if kind is not None:
        return bool(kind.get("const") == data.get("kind"))
    required = member.get("required", ())
    return not required or required[0] in data


def _either(schema: Schema, key: str) -> str:
    """What the schema, or one of its alternatives, says under `key`."""
    return next((str(part[key]) for part in (schema, *_options(schema)) if key in part), "")
