"""`kvsim calibrate`, `validate`, `plan` and `run --device` on the CPU of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("numba")
pytest.importorskip("scipy")

from tests.cli.conftest import Command, kvsim
from tests.gpu_backend_validate.server import SCENARIO

__all__ = ["kvsim"]

VALIDATED = ["validate-cpu", "--device", "cpu", "--set", "compare={}", "--set"]
CACHED = "engine.enable_prefix_caching=true"
PAGES = ("memory.page_kib=64", "--set", "memory.eviction=page_aware")
OFFLOAD = "memory.offload={host: {capacity_gib: 1.0, bandwidth_gb_per_s: 9.0}}"


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    text = SCENARIO.replace("requests: 20, step_repeats: 2", "requests: 6, step_repeats: 2")
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_a_profile_is_measured_used_as_a_clock_and_validated(
    kvsim: Command, small: str, tmp_path: Path
) -> None:
    profile, page = tmp_path / "profile.json", tmp_path / "page.html"
    measured = kvsim("calibrate", small, "--out", str(profile), "--minutes", "0.01", "--json")
    assert measured.status == 0, measured.err
    document = json.loads(measured.out)
    assert document == json.loads(profile.read_text())
    assert document["errors"]["held_out"]["points"] > 20
    assert document["errors"]["fitted"]["median"] < 0.5  # other tests run on the same cores

    clock = f"clock={{kind: profile, path: {profile}}}"
    simulated = kvsim("run", small, "--json", "--set", clock)
    assert simulated.status == 0, simulated.err
    setup = json.loads(simulated.out)["variants"]["paged-4"]["setup"]
    assert setup["clock"] == "profile"
    assert setup["clock_relative_error"] == document["errors"]["held_out"]["p90"]

    judged = kvsim(
        *("validate", small, "--profile", str(profile), "--out", str(page), "--json"),
        *("--set", "validation.loads=[0.9]"),
    )
    found = json.loads(judged.out)
    assert judged.status == (1 if found["failures"] else 0)
    assert page.read_text().startswith("<!DOCTYPE html>")
    for variant in found["variants"].values():
        assert variant["lockstep"]["counts_equal"]
        assert variant["lockstep"]["errors"]["all"]["median"] < 1
        assert set(variant["free"]) == {"closed", "0.9"}
    runs = 2 * (2 + 2 * 5)  # and those that were measured again
    assert runs <= len(found["slowness"]) <= 4 * runs


def test_a_run_on_the_device_takes_the_steps_of_a_simulation_and_its_own_time(
    kvsim: Command, small: str, tmp_path: Path
) -> None:
    everything = ("--set", "workload.arrivals={kind: all_at_once}", "--set", "seeds=[0]")
    checked = ("--set", "device.check_every=1")
    simulated = json.loads(kvsim("run", small, "--json", *everything).out)["variants"]
    run = kvsim("run", small, "--device", "cpu", "--json", *everything, *checked)
    assert run.status == 0, run.err
    measured = json.loads(run.out)["variants"]
    for name, entry in measured.items():
        assert entry["steps"] == simulated[name]["steps"]
        assert entry["preemptions"] == simulated[name]["preemptions"]
        assert 0 < entry["duration_s"] < simulated[name]["duration_s"]
        assert entry["setup"]["clock"] == "device"
        assert entry["setup"]["clock_note"].startswith("measured: every step was run on")


def test_a_plan_is_written_for_another_machine(kvsim: Command, small: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    outcome = kvsim("plan", small, "--out", str(path), "--device", "cpu", "--json")
    assert outcome.status == 0, outcome.err
    written = json.loads(path.read_text())
    told = json.loads(outcome.out)
    assert told["sha256"] == written["sha256"]
    assert told["steps"] == len(written["steps"]) > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate"], "takes either a scenario or --from DIR"),
        (["calibrate", "quickstart", "--from", "."], "takes either a scenario or --from DIR"),
        (["calibrate", "validate-cpu", "--device", "tpu"], "must be cpu or cuda, got 'tpu'"),
        (["calibrate", "--from", "nowhere"], "cannot be read"),
        (["validate", "validate-cpu", "--profile", "nowhere.json"], "cannot be read"),
        (["plan", "validate-cpu", "--variant", "other"], "'other' is no variant"),
        (["run", "scheduler-vs-allocator", "--device", "cpu"], "cannot be run on cpu"),
        (["run", "vmm-against-paged", "--device", "cpu"], "no memory over virtual addresses"),
        (["run", "samples-and-beams", "--device", "cpu"], "no requests with several outputs"),
        (["run", *VALIDATED, "engine.preemption_mode=swap"], "no memory on the host"),
        (["run", *VALIDATED, CACHED, "--set", *PAGES], "no eviction by pages"),
        (["run", *VALIDATED, CACHED, "--set", OFFLOAD], "no tiers outside its memory"),
    ],
)
def test_what_no_device_runs_ends_with_a_message_and_status_2(
    kvsim: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = kvsim(*arguments)
    assert outcome.status == 2, outcome.out
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["calibrate"], ["run", "--device", "cpu"]])
def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(
    kvsim: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("gpu_backend.room.free_bytes", lambda device: 2**30)
    name, *rest = command
    outcome = kvsim(name, "quickstart", *rest)
    assert outcome.status == 2
    # 8 billion parameters of 4 bytes, and the KV of four variants or of one.
    assert "GiB, 1.0 GiB are free on cpu" in outcome.err
    assert "device.measured_layers" in outcome.err


@pytest.mark.parametrize("command", [["calibrate"], ["run", "--device", "cuda"]])
def test_a_machine_without_cuda_says_so(kvsim: Command, command: list[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    name, *rest = command
    outcome = kvsim(name, "validate-cpu", *(rest or ["--device", "cuda"]), "--set", "seeds=[0]")
    assert outcome.status == 2
    assert "finds no CUDA device" in outcome.err
    assert "num_threads" not in outcome.err


def test_a_device_that_computes_something_else_ends_with_status_1(
    kvsim: Command, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_backend.executor.oracle.TOLERANCE", 0.0)
    outcome = kvsim("run", small, "--device", "cpu", "--set", "device.check_every=1")
    assert outcome.status == 1
    assert "the device is wrong: attention of request" in outcome.err
    assert "Traceback" not in outcome.err
