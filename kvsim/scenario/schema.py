"""The file format as JSON Schema, and look-ups in it for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsim.catalog import get_gpu, list_gpus, list_models
from kvsim.scenario.allowed import allowed_values
from kvsim.scenario.document import KeyPath
from kvsim.scenario.fields import NAME_PATTERN
from kvsim.scenario.settings import Scenario
from kvsim.scenario.variants import COMPARABLE

Schema = Mapping[str, Any]


class Setting(NamedTuple):
    """What the schema says about one setting."""

    siblings: list[str]
    """Names of the settings of its section."""
    description: str
    unit: str
    values: str
    """What it may be, in words: `an integer from 1 to 10 (tokens)`."""


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a scenario file."""
    schema = Scenario.model_json_schema()
    known_gpus = [alias for name in list_gpus() for alias in (name, *get_gpu(name).aliases)]
    schema["properties"]["model"]["anyOf"][0] |= {
        "anyOf": [{"enum": list_models()}, {"pattern": "/", "description": "a Hugging Face id"}]
    }
    schema["$defs"]["HardwareSettings"]["properties"]["gpu"]["enum"] = known_gpus
    schema["properties"]["compare"] |= _compare(schema)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "kvsim scenario"
    return schema


def _compare(schema: dict[str, Any]) -> dict[str, Any]:
    """`compare`: by variant name, any part of the sections that a variant may change."""
    definitions: dict[str, Any] = schema["$defs"]
    changes: dict[str, Any] = {}
    for section in COMPARABLE:
        whole = schema["properties"][section]
        described = {key: whole[key] for key in ("description",) if key in whole}
        changes[section] = {**described, "anyOf": _changed_options(whole, definitions)}
    variant = {"type": "object", "properties": changes, "additionalProperties": False}
    return {"patternProperties": {NAME_PATTERN: variant}, "additionalProperties": False}


def _changed_options(whole: Schema, definitions: dict[str, Any]) -> list[Schema]:
    """What a section may be in a variant: of mappings a part is enough."""
    options = _leaves(whole)
    names = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
    for name in names:
        part = {key: value for key, value in definitions[name].items() if key != "required"}
        properties = dict(part["properties"])
        for key, setting in part["properties"].items():
            if any("$ref" in option for option in (setting, *_options(setting))):
                kept = {"default", "description"} & setting.keys()
                below = {"anyOf": _changed_options(setting, definitions)}
                properties[key] = {**{one: setting[one] for one in kept}, **below}
        whole_name = f"Changed{name}"
        definitions[whole_name] = {**part, "properties": properties, "title": whole_name}
    others = [option for option in options if "$ref" not in option]
    return [*({"$ref": f"#/$defs/Changed{name}"} for name in names), *others]


def _leaves(schema: Schema) -> list[Schema]:
    """The alternatives of a schema, those of its alternatives in their place."""
    options = _options(schema)
    return [leaf for option in options for leaf in _leaves(option)] if options else [schema]


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
    unit = _either(here, "unit")
    return Setting(siblings, _either(here, "description"), unit, allowed_values(here, unit))


def _alternative(schema: Schema, data: Any, definitions: Schema) -> Schema:
    """The member of a union that `data` means; the schema itself where there is no union."""
    if "$ref" in schema:
        return _alternative(definitions[schema["$ref"].rpartition("/")[2]], data, definitions)
    options = [option for option in _options(schema) if option.get("type") != "null"]
    if len(options) == 1:
        return _alternative(options[0], data, definitions)
    for option in options:
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
