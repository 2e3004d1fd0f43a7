"""`compare`: partial settings merged over the base, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.scenario.document import KeyPath
from kvsim.scenario.members import displaced
from kvsim.scenario.settings import Scenario

COMPARABLE = ("model", "hardware", "engine", "memory", "clock", "sampling")
"""Sections a variant may change. Everything else is shared, the traffic first of all."""


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

    A section whose `kind` changes keeps only the base's keys that the new kind has too, and a
    setting that excludes another one replaces it.
    """
    merged = dict(base)
    for section, change in changes.items():
        below = merged.get(section)
        if isinstance(below, Mapping) and isinstance(change, Mapping):
            merged[section] = _merge_keys((section,), below, change)
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


def _merge_keys(
    path: KeyPath, below: Mapping[str, Any], change: Mapping[str, Any]
) -> dict[str, Any]:
    lost = {name for key, value in change.items() for name in displaced(path, key, value)}
    merged = {key: value for key, value in below.items() if key not in lost}
    for key, value in change.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge_keys((*path, key), inner, value)
        else:
            merged[key] = value
    return merged
