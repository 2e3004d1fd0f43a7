"""What a rule says when settings that are each allowed do not go together."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.errors import InputError


class SettingsError(InputError):
    """A setting that its type allows and the other settings do not.

    `path` is its dotted name, within the section that raises; who knows the file adds the line.
    """

    def __init__(self, path: str, problem: str, fix: str | None) -> None:
        super().__init__(problem, where=path or None, fix=fix)
        self.path = tuple(path.split(".")) if path else ()


class Finding(NamedTuple):
    """A rule that the settings break: which setting, what is wrong, the way out."""

    path: str
    problem: str
    fix: str
