"""Sections of which there are several kinds: which settings stay when the kind changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.scenario.clock import CLOCK_KINDS
from kvsim.scenario.document import KeyPath
from kvsim.scenario.fields import Section
from kvsim.scenario.lengths import ARRIVAL_KINDS, LENGTH_KINDS, LENGTH_SOURCES
from kvsim.scenario.memory import MEMORY_KINDS
from kvsim.scenario.sampling import SAMPLING_KINDS
from kvsim.scenario.traffic import FALLBACKS, WORKLOAD_SOURCES

Kinds = Mapping[str, type[Section]]

BY_KIND: dict[KeyPath, Kinds] = {
    ("memory",): MEMORY_KINDS,
    ("clock",): CLOCK_KINDS,
    ("workload", "arrivals"): ARRIVAL_KINDS,
    ("workload", "lengths", "prompt"): LENGTH_KINDS,
    ("workload", "lengths", "output"): LENGTH_KINDS,
    ("workload", "chat", "turns"): LENGTH_KINDS,
    ("workload", "chat", "user_tokens"): LENGTH_KINDS,
    ("workload", "chat", "output_tokens"): LENGTH_KINDS,
    ("workload", "chat", "system_tokens"): LENGTH_KINDS,
}
"""Sections whose `kind` says what they may hold."""

BY_SOURCE: dict[KeyPath, Kinds] = {
    ("workload",): WORKLOAD_SOURCES,
    ("workload", "lengths"): LENGTH_SOURCES,
    ("workload", "fallback"): FALLBACKS,
    ("sampling",): SAMPLING_KINDS,
}
"""Sections whose first key of these says what they may hold."""

_EITHER: dict[KeyPath, frozenset[str]] = {
    ("workload", "sosp23"): frozenset({"trace", "preset"}),
    ("engine", "speculative_config"): frozenset({"acceptance_rate", "acceptance_rates"}),
    ("memory", "offload", "host"): frozenset({"capacity_gib", "capacity_blocks"}),
    ("memory", "offload", "disk"): frozenset({"capacity_gib", "capacity_blocks"}),
}
"""Settings that exclude each other within one kind."""


def displaced(section: KeyPath, key: str, value: Any) -> frozenset[str]:
    """Settings of other kinds of a section that setting `key` to `value` leaves no place for."""
    if value is None:
        return frozenset()
    either = _EITHER.get(section, frozenset())
    if key in either:
        return either - {key}
    if key == "kind":
        kinds, name = BY_KIND.get(section, {}), value
    else:
        kinds, name = BY_SOURCE.get(section, {}), key
    if not isinstance(name, str) or name not in kinds:
        return frozenset()
    known = {setting for kind in kinds.values() for setting in kind.model_fields}
    kept = kinds[name].model_fields.keys() - {"fallback"}  # it stands in for one trace only
    return frozenset(known - kept)
