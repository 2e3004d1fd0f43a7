"""Records what the installed vLLM's scheduler decides, for `kvsim verify`.

A recording of another version's config and requests, made again with the installed version:
    python tools/record_vllm.py --from tests/recordings/data/fuzz/y34.jsonl.gz -o y34.jsonl.gz
A new one:
    python tools/record_vllm.py --config config.json --requests requests.jsonl -o new.jsonl.gz
Random small ones, the seeds 7 to 26, into a folder:
    python tools/record_vllm.py --random 7 --count 20 -o recordings/

Needs vLLM beside a CPU build of PyTorch, and no GPU; docs/verification.md says how to install it.
Exit status: 0 recorded; 1 vLLM itself failed on an input or runs on for ever; 2 an input cannot be
used or vLLM is missing. Several recordings do not stop at the first that fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.vllm_recorder.engine import installed_version
from tools.vllm_recorder.errors import RecordError
from tools.vllm_recorder.inputs import FORMAT, Case, case_of_files, case_of_recording
from tools.vllm_recorder.output import write_lines
from tools.vllm_recorder.random_case import random_case


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status, the highest of all recordings."""
    options = _parser().parse_args(arguments)
    status = 0
    try:
        installed_version()
        for target, make in _jobs(options):
            try:
                print(f"{target}: {_record(make(), target)}", flush=True)
            except RecordError as error:
                print(f"{target}: not recorded: {error}", file=sys.stderr, flush=True)
                status = max(status, error.status)
    except RecordError as error:
        print(error, file=sys.stderr)
        status = error.status
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="record_vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from",
        dest="recordings",
        nargs="+",
        type=Path,
        metavar="RECORDING",
        help="record the config and requests of existing recordings again",
    )
    source.add_argument("--config", type=Path, help="config (JSON); needs --requests")
    source.add_argument("--random", type=int, metavar="SEED", help="a random small case")
    parser.add_argument("--requests", type=Path, help="requests (JSON lines); needs --config")
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help="with --random: N seeds from SEED on, into a folder; those that fail are named",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        help="the recording to write (.gz compresses), or the folder for several",
    )
    return parser


def _jobs(options: argparse.Namespace) -> Iterator[tuple[Path, Callable[[], Case]]]:
    """(file to write, what to record)."""
    out: Path = options.out
    if (options.config is None) != (options.requests is None):
        raise RecordError("--config and --requests go together")
    if options.count is not None and (options.random is None or options.count < 1):
        raise RecordError("--count goes with --random and is at least 1")
    if options.config is not None:
        case = partial(case_of_files, options.config, options.requests)
        yield _target(out, "recording.jsonl.gz"), case
    elif options.random is not None:
        if options.count is not None:
            _make_folder(out)
        for seed in range(options.random, options.random + (options.count or 1)):
            yield _target(out, f"random-{seed}.jsonl.gz"), partial(random_case, seed)
    else:
        if len(options.recordings) > 1:
            _make_folder(out)
        for path in options.recordings:
            target = _target(out, path.name)
            if target.exists() and path.exists() and target.samefile(path):
                raise RecordError(f"{target}: would replace the recording that it is made from")
            yield target, partial(case_of_recording, path)


def _target(out: Path, name: str) -> Path:
    return out / name if out.is_dir() else out


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{out}: not a folder: {error}") from error


def _record(case: Case, target: Path) -> str:
    """Record one case; a line about it."""
    from tools.vllm_recorder.recorder import Recorder

    recorder = Recorder(case.config, case.requests)
    header = {
        "format": FORMAT,
        "vllm_version": installed_version(),
        "config": case.config,
        "resolved": recorder.engine.resolved(),
        "num_requests": len(case.requests),
    }

    def lines() -> Iterator[dict[str, Any]]:
        yield {"header": header}
        yield from ({"req": request} for request in case.requests)
        yield from recorder.rows()
        yield {"end": recorder.totals}

    write_lines(target, lines())
    totals = recorder.totals
    return (
        f"{totals['steps']} steps, {totals['finished']} finished, {totals['preemptions']} "
        f"preemptions, {totals['hit_tokens']} hit tokens, {totals['evicted_blocks']} evictions"
    )
