from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsim.scenario.pool import cpu_count
from tests.cli.conftest import Command
from tests.scenario.small import write_small
from tests.scenario.test_seeds import RANDOM


def test_several_seeds_are_shown_with_their_spread(kvsim: Command, tmp_path: Path) -> None:
    path = str(write_small(tmp_path, RANDOM))
    status, out, err = kvsim("run", path, "--set", "seeds=[0, 1]")
    assert (status, err) == (0, "")
    assert "2 seeds: a figure is the mean over them ± half of its 95 % interval" in out
    batch = next(line for line in out.splitlines() if "batch, mean" in line)
    assert batch.count("±") == 2


def test_seeds_that_change_nothing_are_noted(kvsim: Command, tmp_path: Path) -> None:
    path = str(write_small(tmp_path))
    status, out, err = kvsim("run", path, "--json", "--set", "seeds=[0, 1]")
    assert (status, err) == (
        0,
        "note: seeds make no difference: the workload has nothing random\n",
    )
    assert json.loads(out)["variants"]["paged"]["intervals"] == {}


@pytest.mark.skipif(cpu_count() < 2, reason="needs two CPUs for two worker processes")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to see the processes")
def test_an_interrupt_ends_every_process_and_leaves_nothing(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    path = write_small(tmp_path, RANDOM.replace("num_requests: 30", "num_requests: 3000000"))
    # A background job may have been started with the signal ignored.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " from kvsim.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "run", str(path), "--set", "seeds=[0, 1]"]
    process = subprocess.Popen(
        [*command, "--out", str(work / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    workers: list[str] = []  # and multiprocessing's resource tracker
    while len(workers) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
        workers = children.read_text().split() if children.exists() else []
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(work.iterdir()) == []
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
