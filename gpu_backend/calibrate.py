"""`kvsim calibrate`: measure a device, or read what was measured elsewhere, and write a profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_backend.grid import GridSpec, Row, device_name, measure_rows
from gpu_backend.profile_document import profile_document
from gpu_backend.row_files import whole_lines
from kvsim.errors import InputError

ROWS_FILE = "calibration.jsonl"
"""The file of a prepared run (`python -m gpu_backend.bench`) that holds a grid's rows."""


def calibrate(
    spec: GridSpec,
    *,
    budget_s: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Measure the grid here and fit it: the profile's document."""
    rows = list(measure_rows(spec, budget_s=budget_s, seed=seed, progress=progress))
    return profile_document(spec, device_name(spec), rows, seed=seed)


def calibrate_from(folder: Path) -> dict[str, Any]:
    """Fit the rows that a prepared run left in a folder: the profile's document.

    Raises `InputError` naming the line that cannot be read. A last line without an end, of a run
    that was cut off, is left out.
    """
    path = folder / ROWS_FILE
    lines = whole_lines(path)
    if not lines:
        raise InputError("holds no rows", where=str(path), fix="Run the bench for longer")
    head = _parsed(lines[0], path, 1, _head)
    rows = [_parsed(line, path, at, Row.from_dict) for at, line in enumerate(lines[1:], 2)]
    return profile_document(head[0], head[1], rows, seed=head[2])


def _head(data: dict[str, Any]) -> tuple[GridSpec, str, int]:
    return GridSpec.from_dict(data["grid"]), str(data["device_name"]), int(data["seed"])


def _parsed(line: str, path: Path, number: int, build: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return build(json.loads(line))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        what = type(error).__name__
        raise InputError(
            f"is no row of a calibration ({what}: {str(error)[:100]})", where=f"{path}:{number}"
        ) from None
