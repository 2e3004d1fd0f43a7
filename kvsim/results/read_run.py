"""A run folder read back: checked, capped, one variant's rows in memory at a time."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.errors import InputError
from kvsim.results.read_rows import read_rows
from kvsim.results.rows import REQUEST_COLUMNS, STEP_COLUMNS
from kvsim.results.summary_file import read_summary

_MAX_TEXT_BYTES = 4 * 1024 * 1024
_MAX_SEEDS = 10_000
_SAFE_FOLDER = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,120}", re.ASCII)
_FIX = "Give a run folder written by `kvsim run --out`."


class Replica(NamedTuple):
    """The rows of one variant under one seed."""

    seed: int
    folder: Path
    """Where its files are."""
    steps: Any
    """`pyarrow.Table` with the columns of `STEP_COLUMNS`; None when the run kept no rows."""
    requests: Any
    """`pyarrow.Table` with the columns of `REQUEST_COLUMNS`; None when the run kept no rows."""


class Run(NamedTuple):
    """A run folder. Its rows are read when asked for: `replicas`."""

    path: Path
    summary: dict[str, Any]
    """`summary.json` (`read_summary`)."""
    scenario_text: str
    """The resolved scenario, YAML."""
    seeds: tuple[int, ...]
    folders: Mapping[str, str]
    """Variant name -> its folder's name, in the order of the summary."""
    created_at: str | None
    """When it was written (ISO 8601); None when the folder does not say."""

    def keeps_rows(self, variant: str) -> bool:
        """Whether the run wrote rows of a variant; looks for the files only."""
        folder = self.path / "variants" / self.folders[variant]
        return any(folder.glob("**/requests.parquet"))

    def replicas(self, variant: str) -> tuple[Replica, ...]:
        """The rows of a variant, one entry per seed.

        Raises `InputError` for a variant the run has not, and for files that are too large, not
        Parquet, without a column or with a value that no run writes.
        """
        return tuple(_replica(seed, self.folder_of(variant, seed)) for seed in self.seeds)

    def folder_of(self, variant: str, seed: int) -> Path:
        """Where the files of a variant under one seed are.

        Raises `InputError` for a variant the run has not.
        """
        if variant not in self.folders:
            raise InputError(
                f"the run has no variant {variant!r}",
                where=str(self.path),
                fix=f"It has: {', '.join(self.folders)}.",
            )
        folder = self.path / "variants" / self.folders[variant]
        return folder / f"seed-{seed}" if len(self.seeds) > 1 else folder


def _replica(seed: int, folder: Path) -> Replica:
    return Replica(
        seed,
        folder,
        steps=read_rows(folder / "steps.parquet", STEP_COLUMNS),
        requests=read_rows(folder / "requests.parquet", REQUEST_COLUMNS),
    )


def read_run(path: Path) -> Run:
    """The run folder at `path`; no link inside it is followed.

    Raises `InputError` when it is none: no folder, a file missing or too large, `run.json` that
    contradicts the summary or names a folder outside.
    """
    summary = read_summary(path)
    if not path.is_dir():
        raise InputError("this is a file, not a run folder", where=str(path), fix=_FIX)
    place = path / "run.json"
    run = _json_object(place)
    return Run(
        path=path,
        summary=summary,
        scenario_text=_text(path / "scenario.yaml"),
        created_at=_created_at(path / "created.json"),
        seeds=_seeds(run.get("seeds"), str(place)),
        folders=_folders(run.get("variants"), list(summary["variants"]), str(place)),
    )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=str(path), fix=_FIX) from error
    if not isinstance(value, dict):
        raise InputError("it must be a JSON object", where=str(path), fix=_FIX)
    return value


def _created_at(path: Path) -> str | None:
    if not path.exists():
        return None
    value = _json_object(path).get("created_at")
    try:
        return datetime.fromisoformat(value).isoformat() if isinstance(value, str) else None
    except ValueError:
        return None


def _text(path: Path) -> str:
    where = str(path)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise InputError("it must be a regular file", where=where, fix=_FIX)
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"cannot read the run folder: {reason}", where=where, fix=_FIX) from error
    except UnicodeDecodeError as error:
        raise InputError("it is not UTF-8 text", where=where, fix=_FIX) from error
    if len(content) > _MAX_TEXT_BYTES:
        raise InputError(f"it may have at most {_MAX_TEXT_BYTES} bytes", where=where, fix=_FIX)
    return text


def _seeds(value: object, where: str) -> tuple[int, ...]:
    seeds = value if isinstance(value, list) else []
    good = all(type(seed) is int and 0 <= seed < 2**64 for seed in seeds)
    if not good or not 1 <= len(seeds) <= _MAX_SEEDS:
        raise InputError(
            f"`seeds` must list 1 to {_MAX_SEEDS} whole numbers >= 0", where=where, fix=_FIX
        )
    return tuple(seeds)


def _folders(value: object, variants: list[str], where: str) -> dict[str, str]:
    if not isinstance(value, dict) or set(value) != set(variants):
        raise InputError(
            "`variants` must name the folder of every variant of the summary and no other",
            where=where,
            fix=_FIX,
        )
    for folder in value.values():
        if not isinstance(folder, str) or not _SAFE_FOLDER.fullmatch(folder):
            raise InputError(
                f"a variant's folder must be a plain name of letters, digits, '.', '_' and '-', "
                f"got {str(folder)[:80]!r}",
                where=where,
                fix=_FIX,
            )
    return {name: value[name] for name in variants}
