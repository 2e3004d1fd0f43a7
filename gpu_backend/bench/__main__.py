"""`python -m gpu_backend.bench --minutes 8 --out DIR`: everything to be measured, in one run."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch

from gpu_backend import launches
from gpu_backend.bench import (
    cache_ops,
    calibration,
    correctness,
    decode,
    framework,
    lockstep,
    paging,
    peers,
    prefill,
)
from gpu_backend.bench.bench import Bench
from gpu_backend.bench.budget import Budget
from gpu_backend.bench.machine import machine
from gpu_backend.bench.results import Results, say
from gpu_backend.bench.runner import Section, run_sections
from gpu_backend.bench.timing import CudaStopwatch, WallStopwatch
from gpu_backend.plan_file import read_plan_file
from kvsim.errors import InputError

# What matters most comes first: a run that is cut short lacks its end.
SECTIONS = (
    Section("correctness", 22, correctness.measure, timed=False),
    Section("decode", 18, decode.measure),
    Section("paging", 8, paging.measure),
    Section("calibration", 18, calibration.measure),
    Section("lockstep", 8, lockstep.measure),
    Section("peers", 18, peers.measure),
    Section("prefill", 4, prefill.measure),
    Section("cache_ops", 2, cache_ops.measure),
    Section("framework", 4, framework.measure, timed=False),
)
NAMES = tuple(section.name for section in SECTIONS)
MAX_MINUTES = 24 * 60


class UsageError(Exception):
    """The command line asks for what is not there; the message says what."""


def main(arguments: list[str]) -> int:
    """Runs the sections; 0, 1 (a section failed, a result was wrong) or 2 (nothing was run)."""
    try:
        options = _parser().parse_args(arguments)
        device = _device(options.device, tiny=options.tiny)
        if options.plan is not None:
            read_plan_file(options.plan)  # not after minutes of other sections
        results = _folder(options.out)
    except (UsageError, InputError) as problem:
        sys.stderr.write(f"gpu_backend.bench: {problem}\n")
        return 2
    facts = machine(device)
    asked = {"minutes": options.minutes, "tiny": options.tiny, "sections": list(options.sections)}
    results.replace("machine", facts | asked)
    chosen = [section for section in SECTIONS if section.name in options.sections]
    budget = Budget(60 * options.minutes, {section.name: section.weight for section in chosen})
    bench = Bench(
        device,
        CudaStopwatch() if device.type == "cuda" else WallStopwatch(),
        l2_bytes=facts["l2_bytes"],
        memory_bytes=facts["memory_bytes"],
        seconds_left=budget.seconds_left,
        tiny=options.tiny,
        meaningless=device.type != "cuda",
        plan=options.plan,
    )
    say(f"{facts['name']}, torch {facts['torch']}, Triton {facts['triton']} -> {results.folder}")
    return run_sections(chosen, bench, budget, results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpu_backend.bench", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=8.0, help="time for everything")
    parser.add_argument("--out", type=Path, required=True, help="a folder, new or empty")
    parser.add_argument(
        "--sections", type=_names, default=NAMES, help=f"some of {','.join(NAMES)}; all by default"
    )
    parser.add_argument("--plan", type=Path, help="a plan file for the section lockstep")
    parser.add_argument("--tiny", action="store_true", help="very small shapes: a trial run")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: --tiny, interpreted only"
    )
    return parser


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes <= MAX_MINUTES:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 < minutes <= {MAX_MINUTES}")
    return minutes


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NAMES)}")
    return names


def _device(name: str, *, tiny: bool) -> torch.device:
    if name == "cpu":
        if not (tiny and launches.interpreted()):
            raise UsageError(
                "--device cpu runs the kernels in Triton's interpreter, which takes --tiny and "
                "TRITON_INTERPRET=1 in the environment; its times mean nothing"
            )
        return torch.device("cpu")
    if launches.interpreted():
        raise UsageError("TRITON_INTERPRET is set: unset it, or give --tiny --device cpu")
    if not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device here")
    return torch.device("cuda", torch.cuda.current_device())


def _folder(path: Path) -> Results:
    try:
        return Results(path)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--out: {problem}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
