"""Lockstep steps that another machine ran: a plan goes out as a file, rows of times come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from gpu_backend.plan_file import PlanFile, StepCounts
from gpu_backend.row_files import whole_lines
from gpu_backend.scenario_device import runnable_variants
from gpu_backend.validate.lockstep import simulate
from gpu_backend.validate.record import RunRecorder
from gpu_backend.validate.traffic import all_at_once, first_requests
from kvsim.errors import InputError
from kvsim.scenario.settings import Scenario

LOCKSTEP_FILE = "lockstep.jsonl"
"""The file of a prepared run (`python -m gpu_backend.bench`) that holds a plan's rows."""
MAX_SECONDS = 1e6


class ReplayedRows(NamedTuple):
    """What a machine did with one plan."""

    plan: str
    """Digest of the plan file."""
    device_name: str
    seconds: list[list[float]]
    """Wall seconds [repeats, steps]."""
    counts: list[list[StepCounts]]
    """[repeats, steps]."""


def export_plan(scenario: Scenario, variant: str | None, device: str) -> PlanFile:
    """The closed loop of one variant (None: the first) under the first seed.

    Which steps there are does not depend on any clock: requests follow each other. Raises
    `InputError` for a variant that is not there, and for what no device runs.
    """
    runnables = {one.name: one for one in runnable_variants(scenario, device)}
    name = variant or next(iter(runnables))
    if name not in runnables:
        raise InputError(
            f"{name[:80]!r} is no variant", where="--variant", fix=f"One of {', '.join(runnables)}"
        )
    runnable = runnables[name]
    clients = scenario.validation.max_concurrency or runnable.settings.engine.max_num_seqs
    requests = all_at_once(first_requests(scenario, scenario.seeds[0], strict_traces=False))
    return simulate(
        runnable, runnable.sizing.clock, requests, RunRecorder, max_concurrency=clients
    ).plan_file


def read_rows(folder: Path) -> ReplayedRows:
    """The whole repeats in a folder; a repeat that was cut off is left out.

    Raises `InputError` naming the line that is no row, and for a folder without a whole repeat.
    """
    path = folder / LOCKSTEP_FILE
    repeats: dict[int, list[tuple[float, StepCounts]]] = {}
    plans = set()
    for number, line in enumerate(whole_lines(path), 1):
        try:
            row = json.loads(line)
            repeat, step = int(row["repeat"]), int(row["step"])
            counts = StepCounts(*(int(row[name]) for name in StepCounts._fields))
            steps = repeats.setdefault(repeat, [])
            if step != len(steps):
                raise ValueError(f"step {step} comes after {len(steps) - 1}")
            seconds = float(row["wall_s"])
            if not 0 < seconds < MAX_SECONDS:
                raise ValueError(f"wall_s must be above 0 and below {MAX_SECONDS:g}, got {seconds}")
            steps.append((seconds, counts))
            plans.add((str(row["plan"]), str(row["device_name"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(
                f"is no row of a lockstep run ({type(error).__name__}: {str(error)[:100]})",
                where=f"{path}:{number}",
            ) from None
    if len(plans) > 1:
        raise InputError("holds rows of several plans or devices", where=str(path))
    longest = max(map(len, repeats.values()), default=0)
    whole = [steps for steps in repeats.values() if len(steps) == longest]
    if not longest or len(whole) < 2:
        raise InputError(
            f"holds {len(whole)} whole repeats, 2 and more are needed",
            where=str(path),
            fix="Run the bench for longer",
        )
    return ReplayedRows(
        *plans.pop(),
        [[seconds for seconds, _ in steps] for steps in whole],
        [[counts for _, counts in steps] for steps in whole],
    )
