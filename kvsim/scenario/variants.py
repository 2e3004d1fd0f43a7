"""`compare`: partial settings merged over the base, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.scenario.clock import CLOCK_KINDS
from kvsim.scenario.fields import Section
from kvsim.scenario.memory import MEMORY_KINDS
from kvsim.scenario.settings import Scenario

COMPARABLE = ("model", "hardware", "engine", "memory", "clock")
"""Sections a variant may change. Everything else is shared, the traffic first of all."""

_KINDS: dict[str, dict[str, type[Section]]] = {"memory": MEMORY_KINDS, "clock": CLOCK_KINDS}


def variants(scenario: Scenario) -> dict[str, Scenario]:
    """The base and every variant as complete settings, by name, base first.

    Raises pydantic's `ValidationError` for a variant whose settings are wrong.
    """
    base = scenario.model_dump(exclude_unset=True, exclude={"compare"})
    named = {scenario.variant_name: scenario.model_copy(update={"compare": {}})}
    for name, changes in scenario.compare.items():
        named[name] = Scenario.model_validate(merge(base, changes))
    return named


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a variant: mappings merge key by key, anything else replaces.

    A section whose `kind` changes keeps only the base's keys that the new kind has too.
    """
    merged = dict(base)
    for section, change in changes.items():
        below = merged.get(section)
        if isinstance(below, Mapping) and isinstance(change, Mapping):
            merged[section] = _merge_keys(_inherited(section, below, change), change)
        else:
            merged[section] = change
    return merged


def difference(base: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest `changes` with `merge(base, changes) == variant`, for complete settings."""
    changes: dict[str, Any] = {}
    for section in COMPARABLE:
        below, value = base[section], variant[section]
        if below == value:
            continue
        if isinstance(below, dict) and isinstance(value, dict):
            value = {k: v for k, v in value.items() if k not in below or below[k] != v}
        changes[section] = value
    return changes


def _inherited(
    section: str, below: Mapping[str, Any], change: Mapping[str, Any]
) -> Mapping[str, Any]:
    kinds = _KINDS.get(section)
    kind = change.get("kind", below.get("kind"))
    if kinds is None or kind == below.get("kind") or kind not in kinds:
        return below
    return {key: value for key, value in below.items() if key in kinds[kind].model_fields}


def _merge_keys(below: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in change.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge_keys(inner, value)
        else:
            merged[key] = value
    return merged
