"""What the memory of one variant did over time: its steps alone are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvsim.errors import InputError
from kvsim.report.binned import AVERAGED, EXTENT, Binned, binned
from kvsim.report.export_source import every_step
from kvsim.report.figures.style import names_once
from kvsim.report.text import figure, plain
from kvsim.results.read_rows import read_rows
from kvsim.results.read_run import Run, read_run
from kvsim.scenario import Scenario, load_scenario

_LABEL = 40
_COLUMNS = ("time_s", "duration_s", *AVERAGED, EXTENT, "preemptions")


class RunHead(NamedTuple):
    """A run without its rows."""

    run: Run
    scenario: Scenario | None
    """None where this version cannot read it."""
    labels: Mapping[str, str]
    """Variant -> its name made fit for charts; labels differ."""

    @property
    def window(self) -> tuple[float, float | None] | None:
        """The measured time (s); None where that is the whole run."""
        measure = self.scenario.measure if self.scenario else None
        if measure is None or (measure.from_s == 0 and measure.to_s is None):
            return None
        return measure.from_s, measure.to_s


class Events(NamedTuple):
    """When memory was short, from the rows; times as in `steps.parquet`."""

    preemption_s: Any
    """Starts of the steps (or, of a time series, of the intervals) that preempt, ascending."""
    preempted: Any
    """Requests that each of them preempted."""
    held_up_s: Any
    """Starts of the steps with which the head of the queue begins to be held up by fragmentation;
    None for a time series, which does not tell."""


class VariantMemory(NamedTuple):
    """One variant of a run, under its first seed."""

    series: Binned | None
    """None where no rows were kept or no step took time."""
    events: Events | None
    """None where no rows were kept."""


def read_head(path: Path) -> RunHead:
    """The summary, the scenario and the labels of a run folder; raises as `read_run` does."""
    run = read_run(path)
    labels = names_once([plain(name, _LABEL) for name in run.folders])
    return RunHead(run, read_scenario(run), dict(zip(run.folders, labels, strict=True)))


def read_scenario(run: Run) -> Scenario | None:
    """The resolved scenario of a run; None where this version cannot read it."""
    try:
        return load_scenario(str(run.path / "scenario.yaml"))
    except InputError:
        return None


def read_variant_memory(run: Run, variant: str) -> VariantMemory:
    """Reduce the steps of a variant's first seed; raises as `read_rows` does."""
    folder = run.folder_of(variant, run.seeds[0])
    steps = read_rows(folder / "steps.parquet", _COLUMNS)
    if steps is None:
        return VariantMemory(None, None)
    single = every_step(steps)
    capacity = figure(run.summary["variants"][variant], "memory.capacity_slots") or 0
    series = None
    if capacity:
        series = binned(steps, capacity_slots=round(capacity), idle_between=single)
    return VariantMemory(series, _events(steps, single))


def _events(steps: Any, single: bool) -> Events:
    time_s, preemptions = (
        steps.column(name).to_numpy().astype(float) for name in ("time_s", "preemptions")
    )
    preempting = preemptions > 0
    held_up_s = None
    if single:
        held_up = steps.column("external_slots").to_numpy() > 0
        begins = held_up & ~np.concatenate(([False], held_up[:-1]))
        held_up_s = time_s[begins]
    return Events(time_s[preempting], preemptions[preempting].astype(int), held_up_s)
