"""The scenario that the page Run works on, its checks, and the traffic that may replace its own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import streamlit as st

from apps.dashboard import jobs, uploads
from apps.dashboard.cached import here
from apps.dashboard.messages import around, cleaned, line_of
from apps.dashboard.trace_check import TraceFacts, check_trace
from apps.dashboard.ui import show_error
from kvsim.errors import InputError
from kvsim.scenario import Scenario, load_scenario
from kvsim.scenario.clock import ProfileClockSettings
from kvsim.scenario.finder import scenario_name, shipped_scenarios
from kvsim.scenario.lengths import PairFileSettings
from kvsim.scenario.traffic import FileWorkload, LawWorkload
from kvsim.scenario.variants import variants
from kvsim.workload import KNOWN_TRACES, find_trace, list_presets

_YAML = (".yaml", ".yml")
_FIRST = "quickstart"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+()-]{0,79}", re.ASCII)


class Source(NamedTuple):
    """A scenario's text and where it is from."""

    name: str
    """Of a shipped one, else the upload's file name without its ending."""
    text: str
    shipped: bool

    @property
    def file_name(self) -> str:
        """What messages call it."""
        return f"{scenario_name(PurePosixPath(self.name).name)}.yaml"

    @property
    def as_argument(self) -> str:
        """What `kvsim run` takes for it."""
        return self.name if self.shipped else self.file_name


class Checked(NamedTuple):
    """What a scenario with options is: settings, or what is wrong with it."""

    scenario: Scenario | None
    problem: InputError | None


def source_ids() -> list[str]:
    """Shipped scenarios by name, the one to start with first; then uploaded ones by id."""
    kept = uploads.kept_of_kind(here().uploads, "scenario")
    others = (name for name in shipped_scenarios() if name != _FIRST)
    return [_FIRST, *others, *(one.upload_id for one in kept)]


def source_of(source_id: str) -> Source:
    """A scenario of `source_ids`. Raises `InputError` for one that is gone or no text."""
    path = shipped_scenarios().get(source_id)
    if path is not None:
        return Source(source_id, path.read_text("utf-8"), shipped=True)
    upload = uploads.kept(here().uploads, source_id)
    name = PurePosixPath(upload.name)
    stem = name.stem if name.suffix.lower() in _YAML else upload.name
    try:
        text = upload.path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is not UTF-8 text", where=upload.name, fix="Save it as UTF-8"
        ) from None
    return Source(stem, text, shipped=False)


def keep_text(source: Source, text: str) -> str:
    """Keep an edited text as an upload; its id."""
    content = text.encode("utf-8", "replace")
    return uploads.keep(here().uploads, "scenario", source.file_name, content).upload_id


def check_source(source: Source, overrides: Sequence[str] = ()) -> Checked:
    """Load a scenario with options, confined to a folder with the uploaded profiles it names."""
    said = "\n".join((source.text, *overrides))
    profiles = {
        name: one.path
        for one in reversed(uploads.kept_of_kind(here().uploads, "profile"))
        for name in one.names
        if name in said and _PLAIN.fullmatch(name)
    }
    found: Checked = _checked(source, tuple(overrides), tuple(profiles.items()))
    return found


@st.cache_resource(max_entries=64, show_spinner=False)
def _checked(
    source: Source, overrides: tuple[str, ...], profiles: tuple[tuple[str, Path], ...]
) -> Any:
    with TemporaryDirectory(prefix="kvsim-") as folder:
        path = Path(folder).resolve() / source.file_name
        try:
            for name, profile in profiles:
                shutil.copyfile(profile, path.parent / name)
            path.write_text(source.text, encoding="utf-8", newline="")
            scenario = load_scenario(str(path), overrides, confined=True)
            for place, file in _named_files(scenario):
                if file.parent != path.parent or file == path:
                    raise InputError(
                        f"{place} must be the name of an uploaded file, without a folder",
                        where=source.file_name,
                        fix="Write the name alone",
                    )
            return Checked(scenario, None)
        except InputError as error:
            return Checked(None, _without_profile(error, path) or cleaned(error, path.parent))


def _without_profile(error: InputError, scenario: Path) -> InputError | None:
    """What to say where the profile is missing that a scenario is checked with."""
    missing = Path(error.where or "")
    if missing.name.startswith(f"{scenario.name}:") or missing.exists():
        return None
    if not missing.is_relative_to(scenario.parent):
        return None
    name = str(missing.relative_to(scenario.parent))
    return InputError(
        f"the scenario reads the profile {name!r}, which is not among the uploaded ones",
        where="clock",
        fix="Upload it on the page Validation, and write its name without a folder",
    )


def _named_files(scenario: Scenario) -> Iterator[tuple[str, Path]]:
    """Settings of a scenario and its variants that name a file, and where it has to be."""
    workload = scenario.workload
    if isinstance(workload, FileWorkload):
        yield "workload.path", Path(workload.path)
    if isinstance(workload, LawWorkload) and isinstance(workload.lengths, PairFileSettings):
        yield "workload.lengths.path", Path(workload.lengths.path)
    for one in variants(scenario).values():
        if isinstance(one.clock, ProfileClockSettings):
            yield "clock.path", Path(one.clock.path)


def show_problem(source: Source, error: InputError) -> None:
    """What is wrong, and the lines of the text around it."""
    show_error(error)
    line = line_of(error, source.file_name)
    if line is not None and source.text.strip():
        st.code(around(source.text, line), language=None)


class Traffic(NamedTuple):
    """Requests that replace those of the scenario."""

    override: str
    """The option that puts them in."""
    files: Mapping[str, Path]
    """Name beside the scenario -> uploaded file."""
    facts: TraceFacts | None
    """Of an upload."""


def traffic_ids() -> list[str]:
    """Presets, published traces that are here, uploaded traces by id."""
    kept = uploads.kept_of_kind(here().uploads, "trace")
    return [
        *(f"preset {name}" for name in list_presets()),
        *(f"trace {name}" for name in _present()),
        *(one.upload_id for one in kept),
    ]


def traffic_of(traffic_id: str, *, drop_bad_rows: bool) -> Traffic:
    """One of `traffic_ids`. Raises `InputError` for an upload that is no trace or too large."""
    kind, _, name = traffic_id.partition(" ")
    if name:
        return Traffic(f"workload={{{kind}: {name}}}", {}, None)
    upload = uploads.kept(here().uploads, traffic_id)
    facts = _facts_of(upload, drop_bad_rows=drop_bad_rows)
    file_name = _trace_name(upload.name)
    dropping = ", on_bad_row: drop" if drop_bad_rows else ""
    override = f"workload={{path: {json.dumps(file_name)}{dropping}}}"
    return Traffic(override, {file_name: upload.path}, facts)


def _facts_of(upload: uploads.Upload, *, drop_bad_rows: bool) -> TraceFacts:
    found = _facts(upload, drop_bad_rows)
    if isinstance(found, InputError):
        raise InputError(found.problem, where=found.where, fix=found.fix)
    facts: TraceFacts = found
    return facts


@st.cache_resource(max_entries=64, show_spinner="Checking the trace")
def _facts(upload: uploads.Upload, drop_bad_rows: bool) -> Any:
    try:
        return check_trace(upload, drop_bad_rows=drop_bad_rows)
    except InputError as error:
        return error


@st.cache_data(max_entries=1, ttl=60, show_spinner="Looking for traces")
def _present() -> list[str]:
    """Published traces, with arrivals, that are in the folder of traces."""
    found = []
    for name in KNOWN_TRACES:
        try:
            if not name.endswith("-lengths") and find_trace(name) is not None:
                found.append(name)
        except InputError:  # a file of that name with another content
            continue
    return found


def _trace_name(name: str) -> str:
    """A file name for an uploaded trace that no scenario file has."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-")[:80] or "trace.csv"
    return f"{plain}.csv" if plain.lower().endswith(_YAML) else plain


def files_beside(scenario: Scenario, traffic: Traffic | None) -> dict[str, Path]:
    """Name -> uploaded file, for the files that a checked scenario names.

    Each is known by all its names. Raises `InputError` for one that nobody uploaded, for a trace
    above the limits, and for more requests than the dashboard runs.
    """
    files = dict(traffic.files) if traffic else {}
    facts = traffic.facts if traffic else None
    workload = scenario.workload
    named = workload.lengths if isinstance(workload, LawWorkload) else workload
    if isinstance(named, FileWorkload | PairFileSettings) and Path(named.path).name not in files:
        upload = _uploaded("trace", Path(named.path).name)
        files[Path(named.path).name] = upload.path
        if isinstance(named, FileWorkload):
            facts = _facts_of(upload, drop_bad_rows=named.on_bad_row == "drop")
    for place, path in _named_files(scenario):
        if place == "clock.path":
            files[path.name] = _uploaded("profile", path.name).path
    jobs.refuse_large(scenario, file_rows=facts.kept if facts else None)
    return files


def _uploaded(kind: str, name: str) -> uploads.Upload:
    for upload in uploads.kept_of_kind(here().uploads, kind):
        if name in upload.names or name in map(_trace_name, upload.names):
            return upload
    raise InputError(
        f"the scenario reads the file {name!r}, which is not among the uploaded {kind}s",
        where="workload" if kind == "trace" else "clock",
        fix="Upload it under this name, or choose other traffic in the form",
    )
