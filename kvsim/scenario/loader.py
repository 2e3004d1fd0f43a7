"""A scenario file and `--set` options -> checked settings; and back to text."""

from __future__ import annotations

import reprlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvsim.cost import read_profile
from kvsim.errors import InputError
from kvsim.scenario.document import (
    MAX_DEPTH,
    Document,
    KeyPath,
    parse_value,
    read_document,
    yaml_text,
)
from kvsim.scenario.finder import find_scenario, scenario_name
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.members import displaced
from kvsim.scenario.problems import Place, conflict, to_input_error
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import size_server
from kvsim.scenario.variants import COMPARABLE, difference, merge, variants


def load_scenario(
    name_or_path: str, overrides: Sequence[str] = (), *, confined: bool = False
) -> Scenario:
    """Read and check a scenario with all its variants.

    `overrides` are `key.path=value` with the value in YAML; they change the base, so variants
    inherit them. With `confined` no file outside the scenario's folder is read, whatever scenario
    and options say. Raises `InputError` naming file and line, or the option.
    """
    found = find_scenario(name_or_path)
    document = read_document(found.path, found.label)
    loader = _Loader(document)
    for override in overrides:
        loader.override(override)
    loader.resolve_files(found.path.parent, confined=confined)
    if document.data.get("name") is None:
        document.data["name"] = scenario_name(found.path.stem)
    return loader.scenario()


def resolved(scenario: Scenario) -> str:
    """YAML with every setting written out; loading it gives the same settings and text again."""
    settings = scenario.model_dump()
    named = variants(scenario)
    settings["compare"] = {
        name: difference(settings, named[name].model_dump()) for name in scenario.compare
    }
    return yaml_text(settings)


class _Loader:
    """A document under construction, and where each setting came from."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._options: dict[KeyPath, str] = {}

    def override(self, option: str) -> None:
        key, equals, text = option.partition("=")
        where = f"--set {key}"
        path = tuple(key.strip().split("."))
        if not equals or not all(path) or len(path) > MAX_DEPTH:
            raise InputError(
                f"must have the form key.path=value, got {option!r}",
                where="--set",
                fix="For example --set engine.max_num_seqs=64",
            )
        section: Any = self._document.data
        for depth, part in enumerate(path[:-1], 1):
            if part not in section:
                self._make_room(path[:depth], section, {})
            section = section.setdefault(part, {})
            if section is None:  # `hardware:` without anything below
                raise InputError(f"{part} is empty", where=where, fix="Give it as a whole")
            if not isinstance(section, dict):
                name = ".".join(path[:depth])
                raise InputError(
                    f"{name} is a value, not a section, got {section!r}",
                    where=where,
                    fix=f"Set {name} itself",
                )
        value = parse_value(text, where)
        self._make_room(path, section, value)
        section[path[-1]] = value
        self._options[path] = where

    def _make_room(self, path: KeyPath, section: dict[str, Any], value: Any) -> None:
        """Drop what the file says in a section whose kind an option changes.

        Settings that the new kind has too stay, and so do those of earlier options: dropping them
        would be silent.
        """
        within = path[2:] if path[0] == "compare" else path
        if not within or section.get(path[-1]) == value:
            return
        for other in displaced(within[:-1], within[-1], value) & section.keys():
            place = (*path[:-1], other)
            below = any(option[: len(place)] == place for option in self._options)
            if not below and not self._is_option(place):
                del section[other]

    def resolve_files(self, folder: Path, *, confined: bool) -> None:
        """Make paths absolute.

        A path on the command line is the user's own and relative to the working directory. One in
        the scenario is relative to it and may lead out of its folder only with the digest of what
        is there: whoever wrote the scenario does not choose which of the user's files are read.
        """
        for key, section in self._sections_with_files():
            if not isinstance(section.get("path"), str):
                continue
            given, place = section["path"], (*key, "path")
            if self._is_option(place) and not confined:
                section["path"] = str(Path(given).absolute())
                if not self._is_option((*key, "sha256")):
                    section.pop("sha256", None)
                continue
            path = (folder / given).absolute()
            try:
                inside = path.resolve().is_relative_to(folder.resolve())
            except (OSError, RuntimeError, ValueError):  # links in a circle, a NUL, too long
                raise InputError(
                    f"{'.'.join(place)} leads nowhere, got {reprlib.repr(given)}",
                    where=self._where(place),
                    fix="Give the path of a file",
                ) from None
            if not inside and confined:
                raise InputError(
                    f"{'.'.join(place)} leads out of the scenario's folder, got"
                    f" {reprlib.repr(given)}",
                    where=self._where(place),
                    fix="Give the file itself, or use the command line",
                )
            if not inside and not isinstance(section.get("sha256"), str):
                raise InputError(
                    f"{'.'.join(place)} leads out of the scenario's folder, got {given!r}",
                    where=self._document.where(place),
                    fix="Name the file on the command line: --set "
                    + shlex.quote(f"{'.'.join(place)}={path}"),
                )
            section["path"] = str(path)
        self._pin_profiles()

    def _pin_profiles(self) -> None:
        """Note the digest of the profile that is used, so that a repeated run takes the same."""
        base = self._document.data.get("clock")
        base_kind = base.get("kind") if isinstance(base, dict) else None
        for key, section in self._sections_with_files():
            kind = section.get("kind", base_kind)
            if key[-1] == "clock" and kind == "profile" and "path" in section:
                path, stated = section["path"], section.get("sha256")
                if isinstance(path, str) and stated is None:
                    section["sha256"] = read_profile(Path(path)).sha256

    def _sections_with_files(self) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
        """Sections that may name a file of the user's own, by their keys."""
        compare = self._document.data.get("compare")
        variants = compare.keys() if isinstance(compare, dict) else ()
        clocks: list[KeyPath] = [("compare", name, "clock") for name in variants]
        for key in (("workload",), ("workload", "lengths"), ("clock",), *clocks):
            section: Any = self._document.data
            for part in key:
                section = section.get(part) if isinstance(section, dict) else None
            if isinstance(section, dict):
                yield key, section

    def _is_option(self, path: KeyPath) -> bool:
        """Whether an option gave the setting, or a section around it."""
        return any(path[:length] in self._options for length in range(1, len(path) + 1))

    def scenario(self) -> Scenario:
        scenario = self._checked(self._document.data, self._where)
        for name, changes in scenario.compare.items():
            self._check_variant(name, changes)
        return scenario

    def _checked(self, data: dict[str, Any], place: Place, prefix: str = "") -> Scenario:
        try:
            scenario = Scenario.model_validate(data)
            size_server(scenario)
        except ValidationError as error:
            raise to_input_error(error, data, place, prefix) from None
        except SettingsError as error:
            raise conflict(error, error.path, place, prefix) from None
        return scenario

    def _check_variant(self, name: str, changes: dict[str, Any]) -> None:
        def place(path: KeyPath) -> str:
            return self._where(path, ("compare", name))

        for section in changes:
            if section not in COMPARABLE:
                raise InputError(
                    f"compare.{name}.{section} cannot differ between variants",
                    where=place((section,)),
                    fix=f"Variants share the traffic; they may change {', '.join(COMPARABLE)}",
                )
        base = {key: value for key, value in self._document.data.items() if key != "compare"}
        self._checked(merge(base, changes), place, f"compare.{name}: ")

    def _where(self, path: KeyPath, variant: KeyPath = ()) -> str:
        """The option or line that gave `path`, in the variant if it did so."""
        for candidate in ((*variant, *path), path):
            for length in range(len(candidate), 0, -1):
                if candidate[:length] in self._options:
                    return self._options[candidate[:length]]
            for path_set, option in self._options.items():
                if path_set[: len(candidate)] == candidate:
                    return option
            if candidate in self._document.lines:
                return self._document.where(candidate)
        return self._document.where((*variant, *path))
