"""The settings in which two complete scenarios differ, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from kvsim.scenario import Scenario

_LABELS = frozenset({"name", "base_name", "description", "compare"})
"""What names or describes a scenario, and its variants, which are compared as such."""
_FILES = frozenset(
    {
        "workload.path",
        "workload.sha256",
        "workload.lengths.path",
        "workload.lengths.sha256",
    }
)
_STAND_INS = frozenset({"workload.fallback", "workload.instead_of"})
"""What stands, or stood, in for a trace."""


class Setting(NamedTuple):
    """A setting that differs; None where it is not set or does not exist."""

    path: str
    base: Any
    candidate: Any


def setting_differences(
    base: Scenario, candidate: Scenario, *, same_requests: bool
) -> tuple[Setting, ...]:
    """Dotted paths and both values, as plain data, in the order of the file format.

    Where a section is of another kind, its `kind` is named, and of the settings that only one of
    the kinds has those that are not at their default. With `same_requests` the place of a file says
    nothing, its content was the same, and neither does what stands in for a trace.
    """
    found: list[tuple[str, Any, Any]] = []
    for name in Scenario.model_fields:
        if name not in _LABELS:
            found += _differences(getattr(base, name), getattr(candidate, name), name)
    return tuple(
        Setting(path, _plain(left), _plain(right))
        for path, left, right in found
        if not _says_nothing(path, left, right, same_requests=same_requests)
    )


def _says_nothing(path: str, base: Any, candidate: Any, *, same_requests: bool) -> bool:
    if same_requests and any(path == top or path.startswith(f"{top}.") for top in _STAND_INS):
        return True
    return path in _FILES and (same_requests or None in (base, candidate))


def _differences(base: Any, candidate: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    left, right = _fields(base), _fields(candidate)
    if left is None or right is None:
        if base != candidate:
            yield path, base, candidate
        return
    for name in dict.fromkeys([*left, *right]):
        below = f"{path}.{name}"
        if name in left and name in right:
            yield from _differences(left[name], right[name], below)
        elif name in left and not _is_default(base, name):
            yield below, left[name], None
        elif name in right and not _is_default(candidate, name):
            yield below, None, right[name]


def _fields(value: Any) -> dict[str, Any] | None:
    """What is inside a section or a mapping; None for a plain value."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    return None


def _is_default(section: Any, name: str) -> bool:
    if not isinstance(section, BaseModel):
        return False
    field = type(section).model_fields[name]
    return not field.is_required() and getattr(section, name) == field.get_default(
        call_default_factory=True
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
