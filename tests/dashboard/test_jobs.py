from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from apps.dashboard import jobs, processes
from apps.dashboard.places import Places, run_folders
from apps.dashboard.worker import run_job
from kvsim.errors import InputError
from kvsim.scenario import load_scenario, run_scenario
from tests.dashboard.running import ENDLESS, ended, places_for, start_small, wait_for
from tests.scenario.small import SCENARIO, TRACE, write_small


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Places]:
    with places_for(tmp_path) as found:
        yield found


def leftovers(where: Places) -> list[Path]:
    """Run folders, whole and half-written, and half-written files."""
    half = [*where.data.rglob(".*.partial"), *where.jobs.glob(f"*/{jobs.RUN}")]
    return [*half, *(where.made.iterdir() if where.made.is_dir() else ())]


def group_of(where: Places, job_id: str) -> list[int]:
    """Its living processes."""
    pid = int((where.jobs / job_id / jobs.PID).read_text().split()[0])
    return list(processes._group(pid))


def test_a_run_gives_the_same_summary_as_the_command_line(where: Places, tmp_path: Path) -> None:
    job_id = start_small(where, tmp_path)
    done = wait_for(where, job_id, ended)
    assert (done.state, done.problem) == ("done", "")
    assert (done.variant, done.place, done.variants) == ("contiguous-max", 2, 2)
    assert (done.done, done.total, done.share) == (1, 1, 1.0)
    expected = run_scenario(load_scenario(str(write_small(tmp_path)))).summary
    found = json.loads((run_folders(where)[job_id] / "summary.json").read_text())
    assert found == json.loads(json.dumps(expected))
    assert leftovers(where) == [where.made / job_id]
    assert not (where.jobs / job_id / jobs.INPUT).exists()  # it may hold a large trace


def test_a_shipped_scenario_runs_with_options(where: Places) -> None:
    job_id = jobs.start(where, "claims/one-short-answer", overrides=["engine.max_num_seqs=3"])
    assert wait_for(where, job_id, ended).state == "done"
    assert job_id.startswith("one-short-answer-")
    summary = json.loads((where.made / job_id / "summary.json").read_text())
    assert summary["scenario"] == "one-short-answer"
    assert {one["setup"]["max_num_seqs"] for one in summary["variants"].values()} == {3}


def test_what_is_not_shipped_is_no_scenario(where: Places, tmp_path: Path) -> None:
    for name in (str(write_small(tmp_path)), "../scenarios/quickstart", "quickstart.yaml"):
        with pytest.raises(InputError, match="is shipped"):
            jobs.start(where, name)


def test_progress_counts_requests_of_the_variant_that_runs(where: Places) -> None:
    text = ENDLESS + "compare: {contiguous: {memory: {kind: contiguous, reserve: max}}}\n"
    job_id = jobs.start(where, "endless", text=text)
    now = wait_for(where, job_id, lambda one: one.done > 10)
    assert (now.state, now.variant, now.total) == ("running", "paged", 20_000)
    assert now.share == pytest.approx(now.done / 20_000 / 2)
    assert wait_for(where, job_id, lambda one: one.done > now.done).seconds > 0


def test_cancelling_ends_every_process_and_leaves_nothing(where: Places) -> None:
    job_id = jobs.start(where, "endless", text=ENDLESS + "seeds: [0, 1]\n")
    wait_for(where, job_id, lambda one: len(group_of(where, one.job_id)) >= 2)
    jobs.cancel(where, job_id)
    now = jobs.status(where, job_id)
    assert now is not None
    assert (now.state, now.ended) == ("cancelled", True)
    assert group_of(where, job_id) == []
    assert leftovers(where) == []
    jobs.cancel(where, job_id)  # a second time does nothing
    assert jobs.status(where, job_id) == now


def test_cancelling_a_run_that_has_ended_keeps_it(where: Places, tmp_path: Path) -> None:
    job_id = start_small(where, tmp_path)
    wait_for(where, job_id, ended)
    jobs.cancel(where, job_id)
    now = jobs.status(where, job_id)
    assert now is not None
    assert now.state == "done"
    assert (where.made / job_id / "run.json").is_file()


def test_a_run_that_is_cancelled_while_it_is_started_ends(
    where: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, start_group = threading.Event(), processes.start_group

    def slow(command: Sequence[str], log: BinaryIO) -> tuple[int, str]:
        started = start_group(command, log)
        begun.set()
        time.sleep(0.5)
        return started

    monkeypatch.setattr(processes, "start_group", slow)
    starter = threading.Thread(target=jobs.start, args=(where, "x"), kwargs={"text": ENDLESS})
    starter.start()
    assert begun.wait(30)
    (job_id,) = (folder.name for folder in where.jobs.iterdir())
    jobs.cancel(where, job_id)
    starter.join()
    now = jobs.status(where, job_id)
    assert now is not None
    assert now.state == "cancelled"
    assert group_of(where, job_id) == []


def test_a_worker_does_not_begin_what_another_server_has_cancelled(tmp_path: Path) -> None:
    (tmp_path / jobs.REQUEST).write_text("{}")
    (tmp_path / jobs.STATUS).write_text('{"state": "cancelled"}')
    assert run_job(tmp_path) is False
    assert (tmp_path / jobs.STATUS).read_text() == '{"state": "cancelled"}'


def test_a_failure_says_why_without_the_folders_of_the_server(
    where: Places, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(TRACE + "1,-4,3\n")
    text = SCENARIO
    job_id = jobs.start(where, "mine", text=text, files={"trace.csv": bad})
    failed = wait_for(where, job_id, ended)
    assert failed.state == "failed"
    assert failed.problem.startswith("trace.csv:3: column prompt_tokens: '-4' is not an integer")
    assert str(tmp_path) not in failed.problem
    job_id = jobs.start(where, "mine", text=text.replace("block_size: 4", "block_size: 0"))
    failed = wait_for(where, job_id, ended)
    assert failed.problem.startswith("mine.yaml:6: memory.block_size must be >= 1 token, got 0.")
    assert leftovers(where) == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../request.json", "../../../secret.csv"])
@pytest.mark.parametrize("digest", ["", f", sha256: {'0' * 64}"])
def test_a_scenario_reads_no_file_but_those_beside_it(
    where: Places, tmp_path: Path, path: str, digest: str
) -> None:
    (tmp_path / "secret.csv").write_text(TRACE)
    text = SCENARIO.replace("{path: trace.csv}", f"{{path: {path}{digest}}}")
    failed = wait_for(where, jobs.start(where, "mine", text=text), ended)
    assert failed.state == "failed"
    assert "leads out of the scenario's folder" in failed.problem


def test_a_run_that_takes_too_long_ends_with_all_its_processes(tmp_path: Path) -> None:
    with places_for(tmp_path, max_run_s=2.5) as where:
        job_id = jobs.start(where, "endless", text=ENDLESS + "seeds: [0, 1]\n")
        failed = wait_for(where, job_id, ended)
        assert (failed.state, failed.problem) == (
            "failed",
            "the run took longer than 2.5 s, the limit",
        )
        until = time.monotonic() + 5
        while group_of(where, job_id) and time.monotonic() < until:
            time.sleep(0.05)
        assert group_of(where, job_id) == []
        jobs.status(where, job_id)
        assert leftovers(where) == []


def test_no_more_than_two_run_at_once(where: Places, tmp_path: Path) -> None:
    first = jobs.start(where, "endless", text=ENDLESS)
    jobs.start(where, "endless", text=ENDLESS)
    with pytest.raises(InputError, match="2 runs are under way, the limit"):
        start_small(where, tmp_path)
    assert len(jobs.every_status(where)) == 2
    jobs.cancel(where, first)
    assert wait_for(where, start_small(where, tmp_path), ended).state == "done"


def test_a_process_that_was_killed_is_noticed(where: Places) -> None:
    job_id = jobs.start(where, "endless", text=ENDLESS)
    wait_for(where, job_id, lambda one: one.done > 0)
    os.killpg(int((where.jobs / job_id / jobs.PID).read_text().split()[0]), signal.SIGKILL)
    failed = wait_for(where, job_id, ended, seconds=5)
    assert failed.state == "failed"
    assert "out of memory" in failed.problem
    assert leftovers(where) == []


def test_a_run_of_an_earlier_server_is_found_and_can_be_cancelled(where: Places) -> None:
    job_id = jobs.start(where, "endless", text=ENDLESS)
    wait_for(where, job_id, lambda one: one.done > 0)
    children = dict(processes._children)
    processes._children.clear()  # as after a restart: no child of ours any more
    try:
        now = jobs.status(where, job_id)
        assert now is not None
        assert now.state == "running"
        jobs.cancel(where, job_id)
        assert group_of(where, job_id) == []
    finally:
        for child in children.values():
            child.wait(10)


def test_a_number_that_another_process_has_now_is_left_alone(where: Places) -> None:
    job_id = jobs.start(where, "endless", text=ENDLESS)
    wait_for(where, job_id, lambda one: one.done > 0)
    pid_file = where.jobs / job_id / jobs.PID
    noted = pid_file.read_text()
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    ) as stranger:
        pid_file.write_text(f"{stranger.pid} {noted.split()[1]}")
        now = jobs.status(where, job_id)
        assert now is not None
        assert now.state == "failed"
        jobs.cancel(where, job_id)
        time.sleep(0.2)
        assert stranger.poll() is None
        stranger.kill()
    processes.end_group(int(noted.split()[0]))


def test_more_requests_than_the_limit_are_refused(where: Places) -> None:
    text = ENDLESS.replace("20000", "100000000")
    failed = wait_for(where, jobs.start(where, "huge", text=text), ended)
    assert failed.problem.startswith(
        "workload: the scenario asks for 100,000,000 requests over all variants and seeds,"
        " the limit of the dashboard is 2,000,000."
    )
    text = ENDLESS.replace("20000", "1900000") + "seeds: [0, 1]\n"
    failed = wait_for(where, jobs.start(where, "huge", text=text), ended)
    assert "asks for 3,800,000 requests" in failed.problem


def test_a_file_beside_the_scenario_has_no_path(where: Places, tmp_path: Path) -> None:
    trace = tmp_path / "uploaded"
    trace.write_text(TRACE)
    for name in ("../trace.csv", "a/trace.csv", "small.yaml"):
        with pytest.raises(ValueError, match="cannot be the name"):
            jobs.start(where, "small", text=SCENARIO, files={name: trace})


def test_an_id_is_never_a_path(where: Places, tmp_path: Path) -> None:
    start_small(where, tmp_path)
    for job_id in ("", "..", "../jobs", "/etc", "a/b", "small\n"):
        assert jobs.status(where, job_id) is None
        jobs.cancel(where, job_id)
