"""`summary.json`: written with fixed bytes, read with caps."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import InputError

SUMMARY_NAME = "summary.json"

_MAX_BYTES = 16 * 1024 * 1024
_MAX_DEPTH = 32
_MAX_VARIANTS = 10_000
_FIX = "Give a run folder written by `kvsim run --out`, or its summary.json."


def summary_text(summary: Mapping[str, Any]) -> str:
    """The bytes of a summary: ASCII JSON, keys in the given order. NaN and infinity are refused."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"


def read_summary(path: Path) -> dict[str, Any]:
    """The summary in a run folder or a `summary.json`.

    Its `scenario`, `kvsim_version` and `workload` are as written; `variants` is a dict of dicts.
    Raises `InputError` for anything else: no file, more than 16 MiB, nested deeper than 32, more
    than 10,000 variants, not JSON. A link inside a run folder is not followed.
    """
    where = str(path)
    try:
        text = _read(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"cannot read the summary: {reason}", where=where, fix=_FIX) from error
    except UnicodeDecodeError as error:
        raise InputError("the summary is not UTF-8 text", where=where, fix=_FIX) from error
    try:
        summary = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON summary: {error}", where=where, fix=_FIX) from error
    problem = _problem(summary)
    if problem:
        raise InputError(problem, where=where, fix=_FIX)
    result: dict[str, Any] = summary
    return result


def _read(path: Path) -> str:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        path = path / SUMMARY_NAME
        status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError("the summary must be a regular file", where=str(path), fix=_FIX)
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InputError(
            f"a summary may have at most {_MAX_BYTES} bytes", where=str(path), fix=_FIX
        )
    return content.decode("utf-8")


def _problem(summary: object) -> str | None:
    if not isinstance(summary, dict):
        return f"a summary must be a JSON object, got {type(summary).__name__}"
    missing = [
        name
        for name in ("scenario", "kvsim_version", "workload", "variants")
        if name not in summary
    ]
    if missing:
        return f"the summary lacks {', '.join(missing)}"
    variants = summary["variants"]
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        return "`variants` must be an object of objects"
    if len(variants) > _MAX_VARIANTS:
        return f"a summary may have at most {_MAX_VARIANTS} variants, got {len(variants)}"
    if _deeper_than(summary, _MAX_DEPTH):
        return f"a summary may be nested at most {_MAX_DEPTH} deep"
    return None


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [
            child
            for item in containers
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return any(isinstance(item, dict | list) for item in level)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result
