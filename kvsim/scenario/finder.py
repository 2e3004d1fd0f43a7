"""Where a scenario is: a path the user gave, or one that ships with kvsim."""

from __future__ import annotations

import difflib
import re
import reprlib
from pathlib import Path
from typing import NamedTuple

import kvsim
from kvsim.errors import InputError


class Found(NamedTuple):
    """A scenario file and how messages name it."""

    path: Path
    label: str


def find_scenario(name_or_path: str) -> Found:
    """A path that exists or ends in .yaml, else the shipped scenario of that name.

    Shipped scenarios in sub-folders are named `papers/sosp23-fig2`, or `sosp23-fig2` for short.

    Raises `InputError` with the shipped names when there is neither.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or _is_file(path):
        return Found(path, name_or_path)
    shipped = shipped_scenarios()
    for name, file in shipped.items():
        if name_or_path in (name, file.stem):
            return Found(file, f"scenarios/{name}.yaml")
    if len(path.parts) != 1:
        return Found(path, name_or_path)
    close = difflib.get_close_matches(name_or_path[:80], shipped, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    raise InputError(
        "no scenario of this name is shipped and no such file exists,"
        f" got {reprlib.repr(name_or_path)}",
        where="SCENARIO",
        fix=f"{hint}Shipped: {', '.join(shipped)}; or give a path that ends in .yaml",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # for example a name longer than any file may have
        return False


def scenario_name(stem: str) -> str:
    """A name that a scenario may have (`kvsim.scenario.settings.Name`) made of a file's name."""
    return re.sub(r"[^A-Za-z0-9._+ -]", "_", stem).lstrip("._+ -")[:80] or "scenario"


def shipped_scenarios() -> dict[str, Path]:
    """Every scenario of the wheel (or of the checkout), by name, sorted."""
    package = Path(kvsim.__file__).parent
    folder = package / "_scenarios"
    if not folder.is_dir():
        folder = package.parent / "scenarios"
    files = sorted(folder.rglob("*.yaml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
