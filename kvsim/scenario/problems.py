"""pydantic's validation errors -> one message with place, value, limit and way out."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvsim.errors import InputError
from kvsim.scenario.allowed import plural
from kvsim.scenario.clock import BLOCK_SIZE_PATTERN
from kvsim.scenario.document import KeyPath
from kvsim.scenario.fields import NAME_PATTERN, SHA256_PATTERN, is_tag
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.schema import Setting, look_up
from kvsim.scenario.uncovered import explain_flag

Place = Callable[[KeyPath], str]
"""Where a setting was given: `file:line`, or the option."""

_BOUNDS = {
    "greater_than_equal": (">=", "ge"),
    "greater_than": (">", "gt"),
    "less_than_equal": ("<=", "le"),
    "less_than": ("<", "lt"),
}
_PATTERNS = {
    NAME_PATTERN: "1 to 80 letters (A-Z, a-z), digits, spaces or . _ + - and start with a letter"
    " or digit",
    SHA256_PATTERN: "64 digits of 0-9 and a-f",
    BLOCK_SIZE_PATTERN: "a block size in tokens, from 1 to 99999",
}
_FIX = "`kvsim schema` describes every setting"
_TYPES = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, like [0]",
    "dict_type": "a mapping of settings",
    "model_type": "a mapping of settings",
    "model_attributes_type": "a mapping of settings",
}


def to_input_error(
    error: ValidationError, data: Mapping[str, Any], place: Place, prefix: str = ""
) -> InputError:
    """The first problem of `error` about `data`; `prefix` names the variant."""
    details = error.errors(include_url=False)
    # An unknown key usually explains the missing one beside it.
    first = min(details, key=lambda detail: detail["type"] != "extra_forbidden")
    found = _describe(first, data, place, prefix)
    if len(details) == 1:
        return found
    more = f"{len(details) - 1} more after this one"
    return InputError(f"{found.problem} ({more})", where=found.where, fix=found.fix)


def conflict(error: InputError, path: KeyPath, place: Place, prefix: str = "") -> InputError:
    """The same error about the setting at `path`, with its place."""
    return InputError(
        f"{prefix}{'.'.join(path)} {error.problem}", where=place(path), fix=error.fix or _FIX
    )


def _describe(
    detail: ErrorDetails, data: Mapping[str, Any], place: Place, prefix: str
) -> InputError:
    cause = detail.get("ctx", {}).get("error")
    path = _data_path(detail["loc"], data)
    if isinstance(cause, SettingsError):
        return conflict(cause, (*path, *cause.path), place, prefix)
    if isinstance(cause, InputError):  # a constructor's refusal, which names its argument
        return conflict(cause, (*path, *(cause.where or "").split(".")), place, prefix)
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path = (*path, "kind")
    setting = look_up(path, data)
    key = path[-1] if path else ""
    name = ".".join(path) or "the scenario"
    flag = explain_flag(key) if detail["type"] == "extra_forbidden" and "engine" in path else None
    if flag is not None:
        return InputError(f"{prefix}{name} {flag[0]}", where=place(path), fix=flag[1])
    problem = _problem(detail, setting.unit)
    fix = _way_out(detail, setting, key)
    return InputError(f"{prefix}{name} {problem}", where=place(path), fix=fix)


def _data_path(location: tuple[int | str, ...], data: Any) -> KeyPath:
    """`location` without the tags that pydantic adds for unions."""
    path: list[str] = []
    here = data
    for part in location:
        is_mapping = isinstance(here, Mapping)
        if is_tag(part) or part == "[key]" or (is_mapping and part == here.get("kind")):
            continue  # pydantic's marks: the union member that was tried, a key as such
        path.append(str(part))
        if is_mapping:
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
    return tuple(path)


def _problem(detail: ErrorDetails, unit: str) -> str:
    """What is wrong."""
    kind, context = detail["type"], detail.get("ctx", {})
    got = f"got {reprlib.repr(detail['input'])}"
    if kind == "extra_forbidden":
        return "is not a setting"
    if kind in _BOUNDS:
        sign, name = _BOUNDS[kind]
        return f"must be {sign} {_quantity(context[name], unit)}, {got}"
    if kind == "literal_error":
        return f"must be {context['expected'].replace(chr(39), '')}, {got}"
    if kind == "union_tag_invalid":
        kinds = context["expected_tags"].replace("'", "")
        return f"must be one of {kinds}, got {reprlib.repr(context['tag'])}"
    if kind in ("missing", "union_tag_not_found"):
        return "is missing"
    if kind == "string_pattern_mismatch":
        return f"must be {_PATTERNS.get(context['pattern'], context['pattern'])}, {got}"
    if kind == "too_short":
        return f"must have at least {context['min_length']} item, {got}"
    if kind == "no_deciding_key":
        return f"{detail['msg']}, {got}"
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, {got}"
    return f"is wrong: {detail['msg'][:1].lower()}{detail['msg'][1:]}, {got}"


def _way_out(detail: ErrorDetails, setting: Setting, key: str) -> str:
    """What to write instead, and what it means."""
    kind = detail["type"]
    meaning = f": {setting.description}" if setting.description else ""
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(key[:80], setting.siblings, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        return f"{hint}Known here: {', '.join(setting.siblings)}"
    if kind == "union_tag_invalid":
        return f"Set {key} to one of these; {_FIX}"
    if kind == "union_tag_not_found":
        return f"Add {key}, for example as the shipped scenarios do; {_FIX}"
    if kind == "no_deciding_key":
        return f"Add one of them{meaning}; {_FIX}"
    if kind == "missing":
        what = f" with {setting.values}" if setting.values else ""
        return f"Add {key}{what}{meaning}"
    if kind == "string_pattern_mismatch":
        return f"Give such a text{meaning}; {_FIX}"
    return f"Give {setting.values}{meaning}" if setting.values else _FIX


def _quantity(limit: float, unit: str) -> str:
    number = f"{limit:g}" if isinstance(limit, float) else str(limit)
    if not unit:
        return number
    return f"{number} {unit if limit == 1 else plural(unit)}"
