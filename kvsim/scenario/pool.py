"""Jobs in worker processes: bad input, interrupts and dead workers end cleanly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from typing import NamedTuple, TypeVar

from kvsim.errors import InputError

Job = TypeVar("Job")
Result = TypeVar("Result")


class _Refused(NamedTuple):
    """An `InputError` on its way between processes; its subclasses do not travel by themselves."""

    problem: str
    where: str | None
    fix: str | None


def cpu_count() -> int:
    """CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    function: Callable[[Job], Result], jobs: Sequence[Job], *, workers: int
) -> Generator[Result, None, None]:
    """Yield the result of each job as it ends.

    One worker is this process itself, more are fresh processes.

    `function` is a module's own, and jobs and results can be pickled. An `InputError` in a worker
    is raised here once the jobs that had begun have ended: of several, that of the first job, so
    the number of workers changes nothing. Any other way out, Ctrl-C among them, ends the workers
    at once. Workers also end when this process does, however it does.
    """
    if workers <= 1:
        yield from map(function, jobs)
        return
    strangers = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start_worker)
    try:
        futures = {pool.submit(_guarded, function, job): index for index, job in enumerate(jobs)}
        yield from _results(futures)
    except InputError:
        raise
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process ended before its replica did",
            where="seeds",
            fix="It may have run out of memory: run fewer at once with workers=1, or fewer seeds."
            " A Python script must guard what it runs with `if __name__ == '__main__':`",
        ) from error
    except BaseException:
        for process in set(active_children()) - strangers:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _results(futures: dict[Future[Result | _Refused], int]) -> Iterator[Result]:
    refused: dict[int, _Refused] = {}
    for future in as_completed(futures):
        index = futures.pop(future)
        if future.cancelled():
            continue
        result = future.result()
        if isinstance(result, _Refused):
            refused[index] = result
            for waiting in futures:
                waiting.cancel()
        elif not refused:
            yield result
    if refused:
        problem, where, fix = refused[min(refused)]
        raise InputError(problem, where=where, fix=fix)


def _guarded(function: Callable[[Job], Result], job: Job) -> Result | _Refused:
    try:
        return function(job)
    except InputError as error:
        return _Refused(error.problem, error.where, error.fix)


def _start_worker() -> None:
    """Ctrl-C reaches every process of a terminal; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed can end nobody, and its jobs would run on for no one."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
