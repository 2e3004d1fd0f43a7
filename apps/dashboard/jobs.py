"""Runs in processes of their own: started, watched through a status file, ended."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from apps.dashboard import processes
from apps.dashboard.places import Places
from kvsim.errors import InputError
from kvsim.results.files import write_whole
from kvsim.scenario import Scenario
from kvsim.scenario.finder import scenario_name, shipped_scenarios
from kvsim.scenario.planned import planned_requests

State = Literal["starting", "running", "done", "failed", "cancelled"]
MAX_RUNNING = 2
"""Runs at once."""
MAX_JOBS = 100
"""Ended runs whose status is kept."""
MAX_REQUESTS = 2_000_000
"""Requests that a run may submit, over all its variants and seeds."""
MIN_FREE_BYTES = 1 << 30
"""Free space without which no run starts."""
STATUS, REQUEST, PID, LOG = "status.json", "request.json", "pid", "log.txt"
INPUT = "input"
"""The scenario's folder: it holds the scenario and its files, and nothing else that it may read.

It is there until the run has ended."""
RUN = "run"
"""Where the run folder is until it is complete."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,120}", re.ASCII)
_DELETED = ".deleted"
_STARTING_S = 60.0
_starting = threading.Lock()


class Status(NamedTuple):
    """How a run gets on."""

    job_id: str
    state: State
    variant: str
    """The one that runs."""
    place: int
    """Its number, from 1; 0 before the first."""
    variants: int
    """How many there are; with several seeds they all run as one."""
    done: int
    """Requests of this variant that reached their end."""
    total: int
    notes: tuple[str, ...]
    problem: str
    """Why it failed; empty otherwise."""
    seconds: float
    """Since it started, or that it took."""

    @property
    def ended(self) -> bool:
        """Whether nothing runs any more."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1, as if all variants took the same time."""
        if not (self.place and self.variants):
            return 0.0
        begun = self.done / self.total if self.total else 0.0
        return min(1.0, max(0.0, (self.place - 1 + min(1.0, begun)) / self.variants))


def start(
    where: Places,
    scenario: str,
    *,
    text: str | None = None,
    files: Mapping[str, Path] | None = None,
    overrides: Sequence[str] = (),
) -> str:
    """Start a run and return its id, which is also the name of the run folder it will write.

    `scenario` is the name of a shipped one, or with `text` that of the given YAML. `files` are
    copied beside the scenario under their names, which are no paths; it can read no others.
    Raises `InputError` where `MAX_RUNNING` run, where less than `MIN_FREE_BYTES` are free, and for
    a scenario that is not shipped.
    """
    if text is None:
        text = _shipped_text(scenario)
    name = scenario_name(PurePosixPath(scenario).name)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    job_id = f"{name.replace(' ', '-')[:60]}-{stamp}-{secrets.token_hex(2)}"
    folder = where.jobs / job_id
    request = {
        "scenario": f"{name}.yaml",
        "overrides": list(overrides),
        "out": str(where.made / job_id),
        "max_run_s": where.max_run_s,
    }
    with _starting:
        if sum(not one.ended for one in every_status(where)) >= MAX_RUNNING:
            raise InputError(
                f"{MAX_RUNNING} runs are under way, the limit",
                where="run",
                fix="Wait for one of them, or cancel it",
            )
        where.made.mkdir(parents=True, exist_ok=True)
        _refuse_full(where.made)
        (folder / INPUT).mkdir(parents=True)
        (folder / INPUT / f"{name}.yaml").write_text(text, encoding="utf-8", newline="")
        for file_name, path in (files or {}).items():
            _copy_beside(path, folder / INPUT, file_name)
        write_whole(folder / REQUEST, json.dumps(request).encode(), "job")
        _spawn(folder)
    _forget_oldest(where)
    return job_id


def _refuse_full(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise InputError(
            f"the dashboard's disk has {free / (1 << 30):.2f} GiB free, a run starts with"
            f" {MIN_FREE_BYTES / (1 << 30):g} GiB or more",
            where="run",
            fix="Delete runs that nobody needs, or free space on the server",
        )


def refuse_large(scenario: Scenario, *, file_rows: int | None = None) -> None:
    """Raise `InputError` for a scenario that asks for more than `MAX_REQUESTS`."""
    requests = planned_requests(scenario, file_rows=file_rows)
    if requests > MAX_REQUESTS:
        raise InputError(
            f"the scenario asks for {requests:,} requests over all variants and seeds, the limit of"
            f" the dashboard is {MAX_REQUESTS:,}",
            where="workload",
            fix="Ask for fewer requests, seeds or variants, or use the command line, which has no"
            " such limit",
        )


def _shipped_text(name: str) -> str:
    path = shipped_scenarios().get(name)
    if path is None:
        raise InputError(
            f"no scenario {name[:80]!r} is shipped", where="scenario", fix="Choose one of the list"
        )
    return path.read_text("utf-8")


def _copy_beside(path: Path, folder: Path, name: str) -> None:
    if PurePosixPath(name).name != name or (folder / name).exists():
        raise ValueError(f"{name!r} cannot be the name of a file beside the scenario")
    shutil.copyfile(path, folder / name)


def _spawn(folder: Path) -> None:
    with (folder / LOG).open("wb") as log:
        command = [sys.executable, "-P", "-m", "apps.dashboard.worker", str(folder)]
        pid, identity = processes.start_group(command, log)
    write_whole(folder / PID, f"{pid} {identity}".encode(), "job")


def status(where: Places, job_id: str) -> Status | None:
    """How a run gets on; None where there is no such run."""
    folder = where.jobs / job_id if _ID.fullmatch(job_id) else None
    if folder is None or not (folder / REQUEST).is_file():
        return None
    alive = _alive(folder)  # before its status is read: it may end in between
    written = _read(folder / STATUS)
    state: State = written.get("state", "starting")
    problem = str(written.get("problem", ""))
    if state in ("starting", "running") and not alive:
        state, problem = "failed", "the process ended without a word (out of memory?)"
    if state in ("done", "failed", "cancelled") and not alive:
        _clear(folder)
    seconds = written.get("seconds", 0.0)
    if state in ("starting", "running"):
        seconds = time.time() - (_asked_at(folder) or time.time())
    return Status(
        job_id,
        state,
        str(written.get("variant", "")),
        int(written.get("place", 0)),
        int(written.get("variants", 0)),
        int(written.get("done", 0)),
        int(written.get("total", 0)),
        tuple(str(note) for note in written.get("notes", ())),
        problem,
        float(seconds),
    )


def every_status(where: Places) -> list[Status]:
    """All runs that were started here and are remembered, the newest first."""
    found = (status(where, folder.name) for folder in _job_folders(where)[:MAX_JOBS])
    return [one for one in found if one is not None]


def cancel(where: Places, job_id: str) -> None:
    """End a run with all its processes; nothing of it stays but its status.

    A run that ends by itself in the meantime is left as it is.
    """
    with _starting:  # until a run that is being started has noted its process
        now = status(where, job_id)
        if now is None or now.ended:
            return
        folder = where.jobs / job_id
        pid = _pid(folder)
    if pid:
        processes.end_group(pid)
    if _read(folder / STATUS).get("state") in ("done", "failed"):
        return
    shutil.rmtree(where.made / job_id, ignore_errors=True)
    ended = {**now._asdict(), "state": "cancelled"}
    write_whole(folder / STATUS, json.dumps(ended).encode(), "status")
    _clear(folder)


def made_here(where: Places, run_id: str) -> bool:
    """Whether this dashboard made the run, so that it may delete it."""
    if not _ID.fullmatch(run_id):
        return False
    return _is_folder(where.made / run_id) or (where.jobs / run_id / REQUEST).is_file()


def delete(where: Places, run_id: str) -> None:
    """Remove a run that was made here, with its status.

    Raises `InputError` for any other run, and for one that is under way.
    """
    if not made_here(where, run_id):
        raise InputError(
            f"the run {run_id[:80]!r} was not made by this dashboard, or is gone",
            where="run",
            fix="Delete its folder yourself if nobody needs it",
        )
    now = status(where, run_id)
    if now is not None and not now.ended:
        raise InputError("the run is under way", where="run", fix="Cancel it first")
    for parent in (where.made, where.jobs):
        if _is_folder(parent / run_id):  # renamed first: a page sees all of a run or nothing
            (parent / run_id).rename(parent / f".{run_id}.{secrets.token_hex(4)}{_DELETED}")
        for left in parent.glob(f".*{_DELETED}"):
            shutil.rmtree(left, ignore_errors=True)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _clear(folder: Path) -> None:
    """Remove what a run that has ended needs no more, and what it left half-written."""
    for left in (folder / INPUT, folder / RUN, *folder.glob(".*.partial")):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _job_folders(where: Places) -> list[Path]:
    """The newest first."""
    try:
        folders = (path for path in where.jobs.iterdir() if not path.name.startswith("."))
        found = [path for path in folders if (path / REQUEST).is_file()]
        return sorted(found, key=_asked_at, reverse=True)
    except OSError:
        return []


def _forget_oldest(where: Places) -> None:
    for folder in _job_folders(where)[MAX_JOBS:]:
        if not _alive(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(folder: Path) -> bool:
    pid = _pid(folder)
    if pid is None:
        return time.time() - _asked_at(folder) < _STARTING_S
    return bool(pid)


def _asked_at(folder: Path) -> float:
    """Time of the request; 0 where another session forgot the run in the meantime."""
    try:
        return min(time.time(), (folder / REQUEST).stat().st_mtime)
    except OSError:
        return 0.0


def _pid(folder: Path) -> int | None:
    """The run's process while it lives; 0 where it does not, None where none is noted yet."""
    try:
        pid, _, identity = (folder / PID).read_text("ascii").partition(" ")
        return int(pid) if processes.lives(int(pid), identity) else 0
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
