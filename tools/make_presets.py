"""Derive the preset tables from the real Azure traces.

    python tools/make_presets.py FOLDER_WITH_THE_TRACES [OUTPUT_FOLDER]

Writes quantiles and counts only, never rows.
The traces: github.com/Azure/AzurePublicDataset, data/.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.workload import KNOWN_TRACES, TraceWorkload, describe, find_trace


class Derivation(NamedTuple):
    """How a preset's arrivals are derived, and how far off its dispersion may be (tested)."""

    window_s: float
    """Window of the rate profile."""
    mean_error: float
    seed_error: float


PRESETS = {
    "azure-conv-2023": Derivation(60.0, mean_error=0.10, seed_error=0.20),
    "azure-code-2023": Derivation(2.0, mean_error=0.10, seed_error=0.15),
}
"""The code trace comes in bursts that last seconds (CV of its gaps 13): only a fine profile keeps
their length. Coarser ones lose 20 to 30 % of its dispersion at 1 s and 10 s."""
NOTES = (
    "Dispersion (variance / mean of the arrivals per window of 1, 10 and 60 s): within {mean:.0%} "
    "of the original's on average over seeds, within {seed:.0%} at any one seed. Lengths are drawn "
    "independently of each other and of the arrivals."
)
PROMPT_CLASSES = 24
OUTPUT_GRID = [i / 40 for i in range(38)] + [
    0.95,
    0.965,
    0.98,
    0.985,
    0.99,
    0.9925,
    0.995,
    0.9975,
    1,
]
LARGEST_GAPS = 40
HOW = (
    "By tools/make_presets.py. prompt_tokens: quantiles. output_tokens: quantiles within each of "
    "equally large classes of rows ordered by prompt. windows: arrivals per window of time, but "
    "the first request. gaps: quantiles of the gaps between arrivals after stretching time so that "
    "every window has the mean rate, in mean gaps. Linear between quantiles."
)

Floats = npt.NDArray[np.float64]


def probabilities(rows: int, largest: int) -> list[float]:
    """Percentiles, then ever finer towards the tail, at last the `largest` rows one by one.

    Row i of n stands at (i + 0.5)/n, where a shuffled deck of n cards draws it.
    """
    grid = [i / 100 for i in range(100)]
    tail = [1 - 10 ** (-2 - i / 16) for i in range(1, int(16 * (math.log10(rows) - 2)))]
    grid += [p for p in tail if p < 1 - largest / rows]
    grid += [1 - (k - 0.5) / rows for k in range(largest, 0, -1)]
    return [float(f"{p:.8f}") for p in [*grid, 1.0]]


def quantiles(values: Floats, grid: list[float], digits: int) -> list[float]:
    """To so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in np.quantile(values, grid, method="hazen")]


def table(name: str, path: Path, derivation: Derivation) -> dict[str, Any]:
    """The preset's whole content, as plain data."""
    workload = TraceWorkload(path)
    rows = np.array([(r.arrival_ns / 1e9, r.prompt_tokens, r.output_tokens) for r in workload])
    arrivals, prompts, outputs = rows.T
    span = float(arrivals[-1])
    width = derivation.window_s
    windows = math.ceil(span / width)
    placed = np.minimum((arrivals[1:] / width).astype(int), windows - 1)
    counts = np.bincount(placed, minlength=windows)
    ends = np.append(np.arange(windows) * width, span)
    stretched = np.interp(arrivals, ends, np.append(0, np.cumsum(counts)))
    grid = probabilities(len(rows) - 1, LARGEST_GAPS)
    classes = np.array_split(outputs[np.argsort(prompts, kind="stable")], PROMPT_CLASSES)
    statistics = describe(workload)
    known = KNOWN_TRACES[name]
    return {
        "name": name,
        "source": known.url,
        "licence": known.licence,
        "attribution": "Microsoft, Azure Public Dataset: Azure LLM inference trace 2023",
        "original_sha256": workload.content_sha256,
        "how": HOW,
        "notes": NOTES.format(mean=derivation.mean_error, seed=derivation.seed_error),
        "dispersion_error": {"mean": derivation.mean_error, "one_seed": derivation.seed_error},
        "statistics": {
            key: statistics[key]
            for key in (
                *("requests", "span_s", "rate_rps", "gap_cv", "dispersion"),
                *("prompt_tokens", "output_tokens", "correlation"),
            )
        },
        "windows": {"window_s": width, "arrivals": counts.tolist()},
        "gaps": {"probabilities": grid, "values": quantiles(np.diff(stretched), grid, 6)},
        "prompt_tokens": {
            "probabilities": (short := probabilities(len(rows), 1)),
            "values": quantiles(prompts, short, 7),
        },
        "output_tokens": {
            "probabilities": OUTPUT_GRID,
            "values_by_prompt_class": [quantiles(c, OUTPUT_GRID, 5) for c in classes],
        },
    }


def written(facts: dict[str, Any]) -> str:
    """JSON with one line for each innermost list."""
    text = json.dumps(facts, indent=1)
    lines: list[str] = []
    for line in text.splitlines():
        inside = lines and lines[-1].count("[") > lines[-1].count("]")
        if inside and not line.strip().startswith("["):
            lines[-1] += line.strip() + (" " if line.endswith(",") else "")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main(folder: str, output: str = "kvsim/workload/presets") -> None:
    """Write one file per preset."""
    for name, derivation in PRESETS.items():
        path = find_trace(name, {"KVSIM_TRACES": folder})
        if path is None:
            raise SystemExit(f"{KNOWN_TRACES[name].file_name} is not in {folder}")
        target = Path(output) / f"{name}.json"
        target.write_text(written(table(name, path, derivation)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
