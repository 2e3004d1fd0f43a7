"""A start-up log with its checks as plain data, and the model that it names."""

from __future__ import annotations

from typing import Any

from kvsim.catalog import Model, get_model
from kvsim.errors import InputError
from kvsim.planning.audit import Audit, Check
from kvsim.startup_logs import Found, StartupLog

_TUNINGS = ("-hf", "-instruct", "-chat", "-it", "-base")
"""Ends of names that change no shape."""


def model_of_log(log: StartupLog) -> Model | None:
    """The catalogue's model of the name in the log; None for one it does not know."""
    setting = log.settings.get("model")
    if setting is None or not isinstance(setting.value, str):
        return None
    name = setting.value[:200].lower().rstrip("/").rpartition("/")[2].removeprefix("meta-")
    plain = name
    for suffix in _TUNINGS:
        plain = plain.removesuffix(suffix)
    for candidate in dict.fromkeys((setting.value[:200], name, plain)):
        try:
            return get_model(candidate)
        except InputError:
            continue
    return None


def audit_document(found: Audit) -> dict[str, Any]:
    """What the log says and what of it agrees, each figure with its unit and line (from 1)."""
    log, refusal = found.log, found.log.refusal
    return {
        "server": log.server,
        "version": log.version,
        "engine": log.engine,
        "release": None if found.release is None else found.release.name,
        "model": None if found.model is None else found.model.name,
        "settings": {name: _found(one) for name, one in log.settings.items()},
        "figures": {name: _found(one) for name, one in log.figures.items()},
        "refusal": None if refusal is None else {"kind": refusal.kind, "line": refusal.line},
        "checks": [_check(one) for one in found.checks],
        "notes": list(found.notes),
        "starts": log.starts,
        "cut": log.cut,
    }


def _found(one: Found) -> dict[str, Any]:
    return {
        "value": one.value,
        "unit": one.unit,
        "rounding": one.rounding,
        "line": one.line,
        "rule": one.rule,
    }


def _check(one: Check) -> dict[str, Any]:
    return {
        "what": one.what,
        "unit": one.unit,
        "printed": one.printed,
        "expected": [one.low, one.high],
        "agrees": one.agrees,
        "line": one.line,
        "how": one.how,
    }
