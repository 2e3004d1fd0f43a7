"""Settings of a fit as text: `tp=8,kv_cache_dtype=fp8`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from kvsim.catalog import GIB
from kvsim.errors import InputError
from kvsim.planning.fit import FitSettings

_ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
}
_WORDS = {"kv_cache_dtype": ("auto", "fp8"), "speculative": ("ngram", "eagle", "mtp")}
_SWITCHES = (
    "enable_expert_parallel",
    "fully_sharded_loras",
    "enable_prefix_caching",
    "language_model_only",
)
_NO_TEXT = {"measured_bytes", "limit_mm_per_prompt"}
"""Settings with texts of their own."""


def changed_by_text(given: FitSettings, text: str) -> FitSettings:
    """The settings with what `a=1,b=2` changes.

    Raises `InputError` for text of another form, a name that is no setting and a value that it
    cannot have.
    """
    changes: dict[str, Any] = {}
    for name, value in _pairs(text, "--what-if"):
        name = _ALIASES.get(name, name)
        changes[name] = value if name in _WORDS else _number(value, name)
    return changed(given, changes)


def measured_bytes(text: str | None) -> dict[str, int]:
    """Known terms given in GiB, `weights=14.99,non_torch=0.35`, in bytes."""
    return {
        name: round(_number(value, name) * GIB) for name, value in _pairs(text or "", "--measured")
    }


def items_per_prompt(text: str | None) -> dict[str, int]:
    """`image=2,video=0`, or the JSON that vLLM takes.

    Raises `InputError` for text of another form; options beside a count are not covered.
    """
    option = "--limit-mm-per-prompt"
    if (text or "").lstrip().startswith("{"):
        try:
            given = list(json.loads(text or "").items())
        except (ValueError, RecursionError):
            raise InputError("is not a JSON object", where=option, fix='{"image": 2}') from None
    else:
        given = [(name, _number(value, name)) for name, value in _pairs(text or "", option)]
    limits: dict[str, int] = {}
    for name, value in given:
        if type(value) not in (int, float) or not abs(value) < MOST_ITEMS or value != int(value):
            raise InputError(
                f"{name[:40]} must be a whole number", where=option, fix="For example image=2"
            )
        limits[name] = int(value)
    return limits


MOST_ITEMS = 1e9


def changed(given: FitSettings, changes: Mapping[str, Any]) -> FitSettings:
    """Settings with some values replaced; None leaves one as it is.

    Raises `InputError` for a name that is no setting and a value that it cannot have.
    """
    known = {field.name for field in fields(given)} - _NO_TEXT
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise InputError(
                f"{name[:40]!r} is no setting",
                where="--what-if",
                fix=f"Known: tp, {', '.join(sorted(known))}",
            )
        if value is not None:
            checked[name] = _checked(name, value)
    return replace(given, **checked)


def _checked(name: str, value: Any) -> Any:
    if name in _WORDS:
        if value not in _WORDS[name]:
            known_words = " or ".join(_WORDS[name])
            raise InputError(f"must be {known_words}, got {value[:40]!r}", where=name)
        return value
    if name in _SWITCHES:
        if value not in (0, 1):
            raise InputError(f"must be 0 or 1, got {value}", where=name)
        return bool(value)
    if name == "gpu_memory_utilization":
        return float(value)
    if value != int(value):
        raise InputError(f"must be a whole number, got {value}", where=name)
    return int(value)


def _pairs(text: str, option: str) -> list[tuple[str, str]]:
    """`a=1,b=2` as pairs."""
    pairs = []
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign:
            raise InputError(
                f"{part[:40]!r} is not NAME=VALUE", where=option, fix="For example tp=8"
            )
        pairs.append((name.strip(), value.strip()))
    return pairs


def _number(text: str, name: str) -> float:
    try:
        value = float(text[:40])
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e15:
        raise InputError(f"must be a number, got {text[:40]!r}", where=name[:40])
    return value
