"""What a setting may be, in words, from its JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_TYPES = {"boolean": "true or false", "object": "a mapping of settings"}
_SYMBOLS = ("KiB", "GiB", "GB/s")
_NUMBERS = {"integer": "an integer", "number": "a number"}


def allowed_values(schema: Schema, unit: str = "") -> str:
    """For example `an integer from 1 to 10 (tokens)`; empty where the schema does not say."""
    if "enum" in schema or "const" in schema:
        return listed([str(value) for value in schema.get("enum", [schema.get("const")])])
    for option in schema.get("anyOf", ()):
        if option.get("type") != "null":
            return allowed_values(option, unit)
    kind = schema.get("type")
    if kind in _NUMBERS:
        return _NUMBERS[kind] + _range(schema) + (f" ({plural(unit)})" if unit else "")
    if kind == "string":
        longest = schema.get("maxLength")
        return f"text of at most {longest} characters" if longest else "text"
    if kind == "array":
        return f"a list of {schema.get('minItems', 0)} to {schema.get('maxItems', 'any')} items"
    return "a mapping of settings" if "$ref" in schema else _TYPES.get(str(kind), "")


def plural(unit: str) -> str:
    """`tokens`, `branches`; symbols have none."""
    if unit in _SYMBOLS:
        return unit
    return f"{unit}es" if unit.endswith("ch") else f"{unit}s"


def listed(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _range(schema: Schema) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    parts = [
        f"{sign} {_number(limit)}"
        for sign, limit in ((">=", low), (">", above), ("<=", high), ("<", below))
        if limit is not None
    ]
    return f" {' and '.join(parts)}" if parts else ""


def _number(limit: float) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)
