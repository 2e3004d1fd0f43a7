"""The folder of a run: every row is on disk as soon as it is measured."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any

Row = dict[str, Any]
TRACEBACK_FRAMES = 6
MESSAGE_CHARACTERS = 600


class Results:
    """A new folder, or an empty one: `<section>.jsonl`, `machine.json` and `summary.json`."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder. Raises ValueError if it holds anything or is a file."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} exists and is not an empty folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def append(self, section: str, row: Row) -> None:
        """Adds one line to `<section>.jsonl`; a run that is killed leaves whole lines."""
        line = json.dumps(_plain(row), allow_nan=False) + "\n"
        # One unbuffered write: the line is there whole or not at all.
        with (self.folder / f"{section}.jsonl").open("ab", buffering=0) as file:
            file.write(line.encode())

    def replace(self, name: str, value: Row) -> None:
        """Writes `<name>.json` so that a reader sees the old file or the new one."""
        target = self.folder / f"{name}.json"
        temporary = target.with_suffix(".tmp")
        text = json.dumps(_plain(value), allow_nan=False, indent=1) + "\n"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)


def read_rows(folder: Path, section: str) -> list[Row]:
    """The rows of a section, in order; none where it never wrote one."""
    path = folder / f"{section}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def describe(error: BaseException) -> Row:
    """An exception as data: its type, its message and the innermost lines of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-TRACEBACK_FRAMES:]
    return {
        "error": type(error).__name__,
        "why": str(error)[:MESSAGE_CHARACTERS],
        "traceback": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def say(text: str) -> None:
    """Prints one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become the strings "inf", "-inf" and "nan"."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
