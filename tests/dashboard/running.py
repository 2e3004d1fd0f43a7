"""Runs of the dashboard for tests: small, endless, and how to wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apps.dashboard import jobs
from apps.dashboard.places import Places
from tests.scenario.small import SCENARIO, TRACE

ENDLESS = """\
version: 1
profile: plain
engine: {max_num_seqs: 4, max_num_batched_tokens: 64, max_model_len: 2048}
memory: {kind: paged, block_size: 4, num_blocks: 3000}
clock: {kind: fixed, step_s: 1.0}
workload:
  lengths:
    prompt: {kind: constant, tokens: 8}
    output: {kind: constant, tokens: 2000}
  arrivals: {kind: all_at_once}
  num_requests: 20000
"""
"""Takes far longer than any test."""


@contextmanager
def places_for(folder: Path, *, max_run_s: float = 120.0) -> Iterator[Places]:
    """The folders of a dashboard of its own; what still runs at the end is ended."""
    where = Places(folder / "data", max_run_s=max_run_s)
    try:
        yield where
    finally:
        for one in jobs.every_status(where):
            jobs.cancel(where, one.job_id)


def start_small(where: Places, folder: Path) -> str:
    """The small scenario of `tests.scenario.small` with its trace of one request."""
    trace = folder / "uploaded"
    trace.write_text(TRACE)
    return jobs.start(where, "small", text=SCENARIO, files={"trace.csv": trace})


def wait_for(
    where: Places, job_id: str, reached: Callable[[jobs.Status], bool], *, seconds: float = 60.0
) -> jobs.Status:
    """Its status once `reached`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = jobs.status(where, job_id)
        assert now is not None
        if reached(now):
            return now
        assert not now.ended, now
        time.sleep(0.05)
    raise AssertionError(f"{now} after {seconds} s")


def ended(now: jobs.Status) -> bool:
    """Whether nothing runs any more."""
    return now.ended


def texts(app: Any) -> str:
    """All that is read as markup."""
    kinds = (
        app.markdown,
        app.caption,
        app.error,
        app.warning,
        app.info,
        app.success,
        app.subheader,
    )
    return "\n".join(element.value for kind in kinds for element in kind)


def upload(app: Any, key: str, name: str, content: bytes) -> Any:
    """The page after a file was given to a control."""
    app.file_uploader(key=key).upload(name, content).run()
    assert not app.exception, app.exception[0].stack_trace
    return app
