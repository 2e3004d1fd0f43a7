"""Jobs here are this module's own functions: worker processes import them by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from typing import NoReturn

import pytest

from kvsim.errors import InputError
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.pool import cpu_count, run_jobs


def double(job: int) -> int:
    return 2 * job


def refuse_odd(job: int) -> int:
    if job % 2:
        time.sleep(0.5 / job)  # a later job fails first
        raise SettingsError("memory.num_blocks", f"is odd, got {job}", "Make it even")
    return job


def die(job: int) -> NoReturn:
    os._exit(3)


def linger(job: int) -> int:
    if job:
        time.sleep(60)
    return job


def note_and_linger(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)


def fail(job: int) -> NoReturn:
    raise ZeroDivisionError(f"job {job}")


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once(workers: int) -> None:
    assert sorted(run_jobs(double, range(5), workers=workers)) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_is_that_of_the_first_job_that_fails(workers: int) -> None:
    with pytest.raises(InputError) as caught:
        list(run_jobs(refuse_odd, [0, 1, 3, 2], workers=workers))
    assert caught.value.where == "memory.num_blocks"
    assert caught.value.problem == "is odd, got 1"
    assert caught.value.fix == "Make it even"


def test_a_worker_that_dies_is_reported_with_a_way_out() -> None:
    with pytest.raises(InputError, match="a worker process ended") as caught:
        list(run_jobs(die, [1, 2], workers=2))
    assert "memory" in str(caught.value.fix)


def test_an_interrupt_ends_the_workers_at_once() -> None:
    started = time.monotonic()
    before = set(active_children())
    jobs = run_jobs(linger, [0, 1, 2], workers=2)
    assert next(jobs) == 0
    with pytest.raises(KeyboardInterrupt):
        jobs.throw(KeyboardInterrupt())
    assert time.monotonic() - started < 30
    assert set(active_children()) == before


def test_a_defect_in_a_worker_is_no_input_error() -> None:
    with pytest.raises(ZeroDivisionError, match="job 1"):
        list(run_jobs(fail, [1], workers=2))


def test_there_is_a_cpu_to_run_on() -> None:
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "from kvsim.scenario.pool import run_jobs\n"
        "from tests.scenario.test_pool import note_and_linger\n"
        f"list(run_jobs(note_and_linger, [{str(tmp_path)!r}] * 2, workers=2))\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, start_new_session=True) as parent:
        workers = _wait_for_workers(tmp_path)
        parent.kill()
    try:
        deadline = time.monotonic() + 20
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, workers))
    finally:
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)


def _wait_for_workers(folder: Path) -> list[int]:
    deadline = time.monotonic() + 60
    while len(found := list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(found) == 2
    return [int(path.name) for path in found]
