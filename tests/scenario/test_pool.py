"""Jobs here are this module's own functions: worker processes import them by name."""

from __future__ import annotations

import os
import time
from multiprocessing import active_children
from typing import NoReturn

import pytest

from kvsim.errors import InputError
from kvsim.scenario.checks import SettingsError
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
