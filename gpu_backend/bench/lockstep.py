"""An exported plan file, step by step on this device; compared elsewhere: `kvsim validate`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from gpu_backend.bench.bench import Bench, Skipped
from gpu_backend.bench.results import Row

REPEATS = 3


def measure(bench: Bench) -> Iterator[Row]:
    """The plan file's own rows; skipped without one. Time is looked at between repeats."""
    if bench.plan is None:
        raise Skipped("no plan file was given (--plan)")
    plan_file = importlib.import_module("gpu_backend.plan_file").read_plan_file(bench.plan)
    for repeat in range(REPEATS):
        bench.check_time()
        for row in plan_file.measure(device=bench.device.type, repeats=1):
            yield {**row, "repeat": repeat}
