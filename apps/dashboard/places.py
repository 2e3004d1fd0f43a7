"""Where the dashboard reads and writes: its own folder, and folders that the user named."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import InputError

DATA_VARIABLE = "KVSIM_DASHBOARD_DATA"
RUNS_VARIABLE = "KVSIM_DASHBOARD_RUNS"
MAX_RUN_S_VARIABLE = "KVSIM_DASHBOARD_MAX_RUN_S"
DEFAULT_MAX_RUN_S = 1800.0
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+ -]{0,99}(?:~[0-9a-f]{8})?", re.ASCII)
_MARK = "run.json"
"""The file of a run folder that is written last."""
MAX_LISTED = 500
"""Run folders that are listed, the newest first."""
MAX_LOOKED_AT = 5_000
"""JSON files that are opened in search of validations."""
_VALIDATION = re.compile(rb'\s*\{\s*"format"\s*:\s*"kvsim-validation-')


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one dashboard; `data` is its own, `runs` are the user's, only read."""

    data: Path
    runs: tuple[Path, ...] = ()
    max_run_s: float = DEFAULT_MAX_RUN_S
    """Seconds after which a run that was started here is ended."""

    @property
    def made(self) -> Path:
        """Run folders that the dashboard wrote."""
        return self.data / "runs"

    @property
    def jobs(self) -> Path:
        """A folder for each run that was started here."""
        return self.data / "jobs"

    @property
    def uploads(self) -> Path:
        """Files that were uploaded, by the digest of their content."""
        return self.data / "uploads"


def places(environ: Mapping[str, str] | None = None) -> Places:
    """The folders that `kvsim dashboard` put into the environment."""
    known = os.environ if environ is None else environ
    data = known.get(DATA_VARIABLE)
    runs = known.get(RUNS_VARIABLE, "")
    return Places(
        Path(data) if data else default_data(known),
        tuple(Path(one) for one in runs.split(os.pathsep) if one),
        float(known.get(MAX_RUN_S_VARIABLE, DEFAULT_MAX_RUN_S)),
    )


def default_data(environ: Mapping[str, str]) -> Path:
    """The user's folder for data of programs, as the XDG base directories say."""
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "kvsim"


def run_folders(where: Places) -> dict[str, Path]:
    """Id -> run folder, the newest first, at most `MAX_LISTED`.

    A run that was made here has its folder's name as id, one of another folder a digest behind it.
    An id is never a path: what is not in this list cannot be opened.
    """
    found: list[tuple[float, str, Path]] = []
    for path in _runs_in(where.made):
        found.append((_written(path / _MARK), path.name, path))
    for folder in where.runs:
        for path in [folder, *_children(folder)]:
            if _is_run(path):
                digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
                found.append((_written(path / _MARK), f"{_plain(path.name)}~{digest}", path))
    found.sort(key=lambda one: (-one[0], one[1]))
    return {name: path for _, name, path in found[:MAX_LISTED] if _ID.fullmatch(name)}


def run_folder(where: Places, run_id: str) -> Path:
    """The folder of a listed run. Raises `InputError` for any other id."""
    path = run_folders(where).get(run_id)
    if path is None:
        raise InputError(
            f"there is no run {run_id[:80]!r} here",
            where="run",
            fix="Make one on the page Run, or start the dashboard with --runs FOLDER",
        )
    return path


def validation_files(where: Places) -> dict[str, Path]:
    """Id -> file that `kvsim validate --json-out` wrote, the newest first.

    They are looked for in the user's folders and one level below, so beside run folders and in
    them; at most `MAX_LISTED` of them, among at most `MAX_LOOKED_AT` files. Links are not followed.
    """
    found: list[tuple[float, str, Path]] = []
    left = MAX_LOOKED_AT
    for folder in where.runs:
        for place in [folder, *(one for one in _children(folder) if _is_folder(one))]:
            for path in _children(place):
                if path.suffix != ".json":
                    continue
                left -= 1
                if left < 0:
                    break
                if _is_validation(path):
                    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
                    found.append((_written(path), f"{_plain(path.stem)}~{digest}", path))
    found.sort(key=lambda one: (-one[0], one[1]))
    return {name: path for _, name, path in found[:MAX_LISTED] if _ID.fullmatch(name)}


def _is_validation(path: Path) -> bool:
    """Whether a regular file begins as the documents of validations do."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with path.open("rb") as file:
            return _VALIDATION.match(file.read(100)) is not None
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _runs_in(folder: Path) -> list[Path]:
    return [path for path in _children(folder) if _is_run(path)]


def _children(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    return not path.is_symlink() and (path / _MARK).is_file()


def _written(path: Path) -> float:
    """When a file was; 0 where it was removed in the meantime."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip("._+-")[:60] or "run"
