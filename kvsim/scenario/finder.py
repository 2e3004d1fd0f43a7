"""Where a scenario is: a path the user gave, or one that ships with kvsim."""

from __future__ import annotations

import difflib
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

    Raises `InputError` with the shipped names when there is neither.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return Found(path, name_or_path)
    shipped = shipped_scenarios()
    if name_or_path in shipped:
        return Found(shipped[name_or_path], f"scenarios/{name_or_path}.yaml")
    if len(path.parts) != 1:
        return Found(path, name_or_path)
    close = difflib.get_close_matches(name_or_path, shipped, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    raise InputError(
        f"no scenario of this name is shipped and no such file exists, got {name_or_path!r}",
        where="SCENARIO",
        fix=f"{hint}Shipped: {', '.join(shipped)}; or give a path that ends in .yaml",
    )


def shipped_scenarios() -> dict[str, Path]:
    """Every scenario of the wheel (or of the checkout), by name, sorted."""
    package = Path(kvsim.__file__).parent
    folder = package / "_scenarios"
    if not folder.is_dir():
        folder = package.parent / "scenarios"
    files = sorted(folder.rglob("*.yaml"))
    return {str(file.relative_to(folder).with_suffix("")): file for file in files}
