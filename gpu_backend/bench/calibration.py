"""The raw times of the calibration grid, fitted elsewhere: `kvsim calibrate --from DIR`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from gpu_backend.bench.bench import Bench, Skipped
from gpu_backend.bench.results import Row

MODEL = "llama-3-8b"
GRID_SHARE = 0.85  # of the section's time: the grid ends with checks that it does not count


def measure(bench: Bench) -> Iterator[Row]:
    """The rows of `gpu_backend.grid` as they come; skipped in a tiny run."""
    if bench.tiny:
        raise Skipped(f"the grid is that of {MODEL}, which is not tiny")
    grid = importlib.import_module("gpu_backend.grid")
    seconds = GRID_SHARE * bench.seconds_left()
    for row in grid.measure_grid(
        MODEL, device=bench.device.type, budget_s=seconds, seed=bench.seed
    ):
        yield row
        bench.check_time()
