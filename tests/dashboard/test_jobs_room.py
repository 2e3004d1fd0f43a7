from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apps.dashboard import jobs, worker
from apps.dashboard.limits import Share
from apps.dashboard.places import Places, run_folders
from kvsim.errors import InputError
from kvsim.report.html_data import read_report_data
from kvsim.results import SeriesRecorder
from kvsim.scenario import load_scenario, run_scenario
from tests.dashboard.running import ENDLESS, ended, places_for, start_small, wait_for
from tests.results.fakes import FakeAllocator
from tests.scenario.small import write_small


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Places]:
    with places_for(tmp_path) as found:
        yield found


def test_the_files_of_a_run_that_was_killed_go_too(where: Places, tmp_path: Path) -> None:
    job_id = jobs.start(where, "endless", text=ENDLESS)
    wait_for(where, job_id, lambda one: one.done > 0)
    assert (where.jobs / job_id / jobs.INPUT / "endless.yaml").is_file()
    os.killpg(int((where.jobs / job_id / jobs.PID).read_text().split()[0]), signal.SIGKILL)
    wait_for(where, job_id, ended, seconds=5)
    assert not (where.jobs / job_id / jobs.INPUT).exists()


def test_no_run_starts_on_a_disk_that_is_nearly_full(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=(1 << 30) - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: free)
    with pytest.raises(InputError, match=r"has 1\.00 GiB free, a run starts with 1 GiB or more"):
        start_small(where, tmp_path)
    assert list(where.jobs.glob("*")) == []
    free.free += 1
    start_small(where, tmp_path)


def test_a_run_that_was_made_here_can_be_deleted(where: Places, tmp_path: Path) -> None:
    kept, gone = start_small(where, tmp_path), start_small(where, tmp_path)
    for job_id in (kept, gone):
        wait_for(where, job_id, ended)
    jobs.delete(where, gone)
    assert list(run_folders(where)) == [kept]
    assert [one.job_id for one in jobs.every_status(where)] == [kept]
    assert [path.name for path in (*where.made.iterdir(), *where.jobs.iterdir())] == [kept] * 2
    with pytest.raises(InputError, match="was not made by this dashboard"):
        jobs.delete(where, gone)


def test_only_runs_that_were_made_here_and_have_ended_can_be_deleted(
    where: Places, tmp_path: Path
) -> None:
    running = jobs.start(where, "endless", text=ENDLESS)
    with pytest.raises(InputError, match=r"is under way\. Cancel it first"):
        jobs.delete(where, running)
    other = tmp_path / "given"
    run_scenario(load_scenario(str(write_small(tmp_path))), out=other)
    given = Places(where.data, (other,))
    (where.made / "link").symlink_to(other, target_is_directory=True)
    for run_id in (*run_folders(given), "link", "..", "", "../runs", str(other)):
        assert not jobs.made_here(given, run_id), run_id
        with pytest.raises(InputError, match="was not made by this dashboard"):
            jobs.delete(given, run_id)
    assert (other / "run.json").is_file()


def run_here(where: Places, tmp_path: Path, text: str) -> tuple[list[str], dict[str, Any]]:
    """What the worker says of a run in this process, and its resolved `record`."""
    folder = tmp_path / "job"
    (folder / jobs.INPUT).mkdir(parents=True)
    (folder / jobs.INPUT / "small.yaml").write_text(text)
    watcher = worker.StatusFile(folder / jobs.STATUS)
    request = {"scenario": "small.yaml", "overrides": [], "max_run_s": 100}
    worker._run(folder, request, watcher)
    status = json.loads((folder / jobs.STATUS).read_text())
    assert status["place"] == status["variants"]
    record = load_scenario(str(folder / jobs.RUN / "scenario.yaml")).record
    read_report_data(folder / jobs.RUN)
    return status["notes"], record.model_dump()


@pytest.mark.parametrize("seeds", ["", "seeds: [0, 1]\n"])
def test_a_run_with_more_steps_than_pages_read_keeps_a_time_series(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: str
) -> None:
    monkeypatch.setattr(worker, "limit_process", lambda **limits: None)
    monkeypatch.setattr(worker, "shared", lambda *_, **__: Share(1, 1))
    text = ENDLESS.replace("20000", "1").replace("tokens: 2000", "tokens: 50") + seeds
    text += "compare: {contiguous: {memory: {kind: contiguous, reserve: max}}}\n"
    notes, record = run_here(where, tmp_path, text)
    assert record["mode"] == "steps"
    assert "series" not in "".join(notes)
    shutil.rmtree(tmp_path / "job")
    monkeypatch.setattr(worker, "MAX_STEPS", 49)
    notes, record = run_here(where, tmp_path, text)
    assert record == {"mode": "series", "interval_s": 1.0}
    assert notes[0] == (
        "The run has more than 49 steps or intervals, so a time series with a row every 1 s is"
        " kept instead of every step (record.mode: series)."
    )


def test_a_time_series_with_too_many_rows_gets_a_longer_interval() -> None:
    scenario = load_scenario("quickstart")
    series = worker.coarser(scenario)
    assert (series.record.mode, series.record.interval_s) == ("series", 1.0)
    assert worker.coarser(series).record.interval_s == 10.0
    recorder = SeriesRecorder(FakeAllocator(), interval_ns=10, max_rows=3)
    with pytest.raises(InputError) as caught:
        recorder.idle(0, 1000)
    assert caught.value.where in worker._TOO_MANY_ROWS
