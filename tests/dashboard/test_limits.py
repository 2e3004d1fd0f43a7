from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from apps.dashboard import jobs
from apps.dashboard.limits import GIB, MAX_JOB_BYTES, Share, job_bytes, shared
from tests.dashboard.running import ENDLESS


@pytest.mark.parametrize(
    ("total_gib", "seeds", "cpus", "workers", "each_gib"),
    [
        (8, 1, 64, 1, 8.0),
        (8, 100, 2, 2, 8 / 3),
        (8, 3, 64, 3, 2.0),
        (8, 100, 64, 7, 1.0),  # one GiB each at least, the first process among them
        (2, 100, 64, 1, 2.0),
    ],
)
def test_the_processes_of_a_run_share_its_memory(
    total_gib: int, seeds: int, cpus: int, workers: int, each_gib: float
) -> None:
    found = shared(total_gib * GIB, seeds=seeds, cpus=cpus)
    assert found == Share(workers, int(each_gib * GIB))


def test_all_runs_together_leave_half_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 24 * GIB // 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert job_bytes(2) == 6 * GIB
    pages["SC_PHYS_PAGES"] = 512 * GIB // 4096
    assert job_bytes(2) == MAX_JOB_BYTES
    pages["SC_PHYS_PAGES"] = 2 * GIB // 4096
    assert job_bytes(2) == GIB


def test_a_run_that_needs_more_than_its_memory_fails_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    (folder / jobs.INPUT).mkdir(parents=True)
    text = ENDLESS.replace("num_blocks: 3000", "num_blocks: 50000000")
    (folder / jobs.INPUT / "large.yaml").write_text(text)
    request = {
        "scenario": "large.yaml",
        "overrides": [],
        "out": str(tmp_path / "out"),
        "max_run_s": 100,
    }
    (folder / jobs.REQUEST).write_text(json.dumps(request))
    code = (
        "import sys; from pathlib import Path; from apps.dashboard import worker;"
        " worker.job_bytes = lambda runs: 0; sys.exit(worker.run_job(Path(sys.argv[1])))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=100)
    status = json.loads((folder / jobs.STATUS).read_text())
    assert status["state"] == "failed"
    assert status["problem"] == "the run needs more memory than a run of the dashboard may take"
    assert not (tmp_path / "out").exists()
