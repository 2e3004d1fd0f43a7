"""The process of one run: `python -m apps.dashboard.worker JOB_FOLDER`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from apps.dashboard.jobs import INPUT, MAX_RUNNING, REQUEST, RUN, STATUS, refuse_large
from apps.dashboard.limits import job_bytes, limit_process, shared
from apps.dashboard.messages import without_folders
from kvsim.errors import InputError
from kvsim.results.files import write_whole
from kvsim.scenario import Scenario

MAX_STEPS = 1_000_000
"""Steps of one variant whose rows are kept: what a page reads in seconds."""
_TOO_MANY_ROWS = ("record.mode", "record.interval_s")
_MAX_TRIES = 6
_EVERY_S = 0.2
_MAX_NOTES, _MAX_TEXT = 20, 400
_CPU_PER_S = 4
"""CPU seconds per second of the time limit: libraries may use a few threads."""


class StatusFile:
    """A `Watcher` that writes what it is told to a file, a few times a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._written = 0.0
        self._status: dict[str, Any] = {
            "state": "running",
            "variant": "",
            "place": 0,
            "variants": 0,
            "done": 0,
            "total": 0,
            "notes": [],
            "problem": "",
        }
        self._write()

    @property
    def ended(self) -> bool:
        """Whether the last word was said."""
        return bool(self._status["state"] != "running")

    def expect(self, variants: int) -> None:
        """So many will begin."""
        self._status["variants"] = variants

    def note(self, text: str) -> None:
        """Keep it for the reader."""
        if len(self._status["notes"]) < _MAX_NOTES:
            self._status["notes"].append(text[:_MAX_TEXT])
        self._write()

    def again(self) -> None:
        """What was done so far does not count; it begins anew."""
        self._status |= {"variant": "", "place": 0, "done": 0, "total": 0, "notes": []}

    def start(self, variant: str, requests: int) -> None:
        """A variant begins."""
        place = self._status["place"] + 1
        self._status |= {"variant": variant, "place": place, "done": 0, "total": requests}
        self._write()

    def advance(self, requests: int) -> None:
        """Requests reached their end."""
        self._status["done"] += requests
        if time.monotonic() - self._written > _EVERY_S:
            self._write()

    def end(self, state: str, problem: str = "") -> None:
        """The last word; what comes after it is not heard."""
        with self._lock:
            if self.ended:
                return
            self._status |= {"state": state, "problem": problem[:_MAX_TEXT]}
        self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        seconds = self._written - self._began
        content = json.dumps(self._status | {"seconds": seconds}).encode()
        write_whole(self._path, content, "status")


def run_job(folder: Path) -> bool:
    """Run what `request.json` asks for; whether it was done."""
    request = json.loads((folder / REQUEST).read_text("utf-8"))
    if (folder / STATUS).exists():  # another server ended it before it noted this process
        return False
    watcher = StatusFile(folder / STATUS)
    _end_after(float(request["max_run_s"]), watcher)
    try:
        _run(folder, request, watcher)
        (folder / RUN).rename(request["out"])
    except InputError as error:
        watcher.end("failed", without_folders(str(error), folder / INPUT))
    except MemoryError:
        watcher.end("failed", "the run needs more memory than a run of the dashboard may take")
    else:
        watcher.end("done")
        return True
    finally:  # whatever else went wrong is in the log
        watcher.end("failed", "an error inside kvsim; log.txt of the job says more")
        shutil.rmtree(folder / INPUT, ignore_errors=True)
    return False


def _run(folder: Path, request: dict[str, Any], watcher: StatusFile) -> None:
    from kvsim.scenario.loader import load_scenario
    from kvsim.scenario.pool import cpu_count
    from kvsim.scenario.run import run_scenario

    total = job_bytes(MAX_RUNNING)
    limit_process(memory_bytes=total, cpu_s=_CPU_PER_S * float(request["max_run_s"]) + 1)
    path = folder / INPUT / request["scenario"]
    scenario = load_scenario(str(path), request["overrides"], confined=True)
    refuse_large(scenario)
    share = shared(total, seeds=len(scenario.seeds), cpus=cpu_count())
    limit_process(memory_bytes=share.process_bytes)
    watcher.expect(1 if len(scenario.seeds) > 1 else 1 + len(scenario.compare))
    for again in range(_MAX_TRIES):
        try:
            run_scenario(
                scenario,
                out=folder / RUN,
                watcher=watcher,
                workers=share.workers,
                max_steps=MAX_STEPS,
            )
            return
        except InputError as error:
            if error.where not in _TOO_MANY_ROWS or again + 1 == _MAX_TRIES:
                raise
        scenario = coarser(scenario)
        watcher.again()
        watcher.note(
            f"The run has more than {MAX_STEPS:,} steps or intervals, so a time series with a row"
            f" every {scenario.record.interval_s:g} s is kept instead of every step"
            " (record.mode: series)."
        )


def coarser(scenario: Scenario) -> Scenario:
    """The scenario with fewer rows: a time series, or one with ten times the interval."""
    record = scenario.record
    if record.mode == "series":
        update: dict[str, Any] = {"interval_s": 10 * record.interval_s}
    else:
        update = {"mode": "series"}
    return scenario.model_copy(update={"record": record.model_copy(update=update)})


def _end_after(seconds: float, watcher: StatusFile) -> None:
    """End this process and those it started; `jobs.status` clears what they leave."""

    def end() -> None:
        watcher.end("failed", f"the run took longer than {seconds:g} s, the limit")
        os.killpg(os.getpgid(0), signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(0 if run_job(Path(sys.argv[1])) else 1)
