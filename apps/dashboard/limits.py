"""What a process that works for a page may take from the machine."""

from __future__ import annotations

import os
from typing import NamedTuple

GIB = 1 << 30
MAX_JOB_BYTES = 8 * GIB
"""Memory of one run with all its processes, at most."""
MIN_PROCESS_BYTES = GIB
"""Memory of one process, at least."""
RESERVED_BYTES = GIB
"""What the libraries of a run reserve in each process and leave untouched."""


class Share(NamedTuple):
    """What a run with several seeds may use."""

    workers: int
    """Processes beside the first one; 1: everything in the first."""
    process_bytes: int
    """Memory of each of its processes."""


def job_bytes(runs_at_once: int) -> int:
    """Memory of one run: at most half of the machine's for all that run at once."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # the system does not say
        return MAX_JOB_BYTES
    return max(MIN_PROCESS_BYTES, min(MAX_JOB_BYTES, machine // (2 * runs_at_once)))


def shared(total_bytes: int, *, seeds: int, cpus: int) -> Share:
    """Processes for so many seeds, each with its equal part of `total_bytes`."""
    room = total_bytes // MIN_PROCESS_BYTES - 1
    workers = max(1, min(seeds, cpus, room))
    processes = 1 if workers == 1 else workers + 1
    return Share(workers, total_bytes // processes)


def limit_process(*, memory_bytes: int | None = None, cpu_s: float | None = None) -> None:
    """Limit this process and those it starts, each by itself; what is allowed only shrinks.

    Above `memory_bytes` of private memory, beside `RESERVED_BYTES`, an allocation fails with
    `MemoryError`; above `cpu_s` of CPU time the system ends the process. Does nothing where the
    system has no such limits.
    """
    try:
        import resource
    except ImportError:
        return
    data_bytes = None if memory_bytes is None else memory_bytes + RESERVED_BYTES
    wanted = ((resource.RLIMIT_DATA, data_bytes), (resource.RLIMIT_CPU, cpu_s))
    for kind, value in wanted:
        if value is None:
            continue
        _, hard = resource.getrlimit(kind)
        limit = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (limit, limit))
