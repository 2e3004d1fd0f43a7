"""What the page Fragmentation reads: each run and variant once, by the times of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from apps.dashboard.cached import here
from apps.dashboard.messages import cleaned
from apps.dashboard.places import run_folder
from kvsim.errors import InputError
from kvsim.report.compare import Source
from kvsim.report.compare_two import Chosen
from kvsim.report.moments import EventCounts, MomentRow, event_counts, moment_rows
from kvsim.report.variant_memory import RunHead, VariantMemory, read_head, read_variant_memory
from kvsim.results.read_snapshots import read_snapshots

MAX_RUNS, MAX_DRAWN = 12, 12
_HEADS, _MEMORIES, _MAPS = 64, 64, 8
"""Runs, variants and maps that are kept in memory."""


class Side(NamedTuple):
    """One variant of a chosen run."""

    run_id: str
    path: Path
    head: RunHead
    variant: str

    @property
    def label(self) -> str:
        """Run and variant; no other side has it."""
        return f"{self.run_id} · {self.head.labels[self.variant]}"

    @property
    def entry(self) -> Mapping[str, Any]:
        """Its entry of the summary."""
        entry: Mapping[str, Any] = self.head.run.summary["variants"][self.variant]
        return entry

    @property
    def chosen(self) -> Chosen:
        """The side as comparisons take it."""
        source = Source(self.run_id, self.head.run.summary, self.head.scenario)
        return Chosen(source, self.variant)


class Maps(NamedTuple):
    """The physical maps of one side."""

    snapshots: Mapping[str, Any]
    rows: list[MomentRow]
    counts: EventCounts | None


def sides(run_id: str) -> list[Side]:
    """All variants of a listed run. Raises `InputError`, without folders of this server."""
    path = run_folder(here(), run_id)
    with _cleaned(path):
        head = _head(str(path), _written(path / "run.json", path / "summary.json"))
    return [Side(run_id, path, head, variant) for variant in head.run.folders]


def memory(side: Side) -> VariantMemory:
    """What a variant's memory did over time; raises as `sides` does."""
    with _cleaned(side.path):
        steps = _first_folder(side) / "steps.parquet"
        found: VariantMemory = _memory(str(side.path), side.variant, _written(steps), side.head.run)
    return found


def maps(side: Side) -> Maps | None:
    """The maps of a variant, None where the run kept none; raises as `sides` does."""
    try:
        events = memory(side).events
    except InputError:  # said where the steps are drawn; the maps are a file of their own
        events = None
    with _cleaned(side.path):
        folder = _first_folder(side)
        snapshots = _snapshots(str(folder), _written(folder / "snapshots.json"))
    if snapshots is None or not snapshots["snapshots"]:
        return None
    counts = None if events is None else event_counts(events, snapshots)
    return Maps(snapshots, moment_rows(snapshots, events), counts)


def _first_folder(side: Side) -> Path:
    run = side.head.run
    return run.folder_of(side.variant, run.seeds[0])


@contextmanager
def _cleaned(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise cleaned(error, path.parent) from error


def _written(*files: Path) -> tuple[int, ...]:
    """When files were written last, in ns; 0 for what is not there."""
    return tuple(map(_written_ns, files))


def _written_ns(file: Path) -> int:
    try:
        return file.lstat().st_mtime_ns
    except OSError:
        return 0


@st.cache_resource(max_entries=_HEADS, show_spinner=False)
def _head(path: str, written_ns: tuple[int, ...]) -> Any:
    return read_head(Path(path))


@st.cache_resource(max_entries=_MEMORIES, show_spinner="Reading the steps of the run")
def _memory(path: str, variant: str, written_ns: tuple[int, ...], _run: Any) -> Any:
    return read_variant_memory(_run, variant)


@st.cache_resource(max_entries=_MAPS, show_spinner="Reading the maps of the run")
def _snapshots(folder: str, written_ns: tuple[int, ...]) -> Any:
    return read_snapshots(Path(folder))
