"""`summary.json`: written with fixed bytes, read with caps."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.results.summary_checks import summary_problem

SUMMARY_NAME = "summary.json"

MAX_NUMBER = 1 << 63
"""Numbers of a summary are smaller, so that what is computed from them stays finite."""

_MAX_BYTES = 16 * 1024 * 1024
_FIX = "Give a run folder written by `kvsim run --out`, or its summary.json."


def summary_text(summary: Mapping[str, Any]) -> str:
    """The bytes of a summary: ASCII JSON, keys in the given order. NaN and infinity are refused."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"


def read_summary(path: Path) -> dict[str, Any]:
    """The summary in a run folder or a `summary.json`.

    Readers may rely on what `summary_problem` says. Raises `InputError` for anything else: no file,
    more than 16 MiB, nested deeper than 32, more than 10,000 variants, not JSON. A link inside a
    run folder is not followed.
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
        summary = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_small,
            object_pairs_hook=_unique,
        )
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON summary: {error}", where=where, fix=_FIX) from error
    problem = summary_problem(summary)
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


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if abs(value) >= MAX_NUMBER:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _small(text: str) -> int:
    value = int(text)
    if abs(value) >= MAX_NUMBER:
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result
