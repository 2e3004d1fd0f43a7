"""Whole validations on a device that is made up: what passes, what fails, and why."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from gpu_backend.validate.document import validate
from gpu_backend.validate.run import Validation
from kvsim.errors import InputError
from tests.gpu_backend_validate.server import SCENARIO, pretend, profile, scenario


def run(folder: Path, *overrides: str, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"device": "cpu", "follow_speed": False, **changes}
    return validate(Validation(scenario(folder, *overrides), profile(), **settings))


def failed(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(check["variant"], check["name"]) for check in document["checks"] if not check["ok"]}


def test_a_device_that_does_what_the_profile_says_is_validated_without_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    document = run(tmp_path)
    assert document["failures"] == []
    # The replica counts whole nanoseconds; everything else is equal.
    assert max(check["value"] for check in document["checks"]) < 1e-9
    assert [control["noticed"] for control in document["controls"]] == [True, True, True]
    assert document["variants"]["paged-4"]["lockstep"]["preemptions"] > 0
    json.dumps(document, allow_nan=False)


def test_each_negative_control_breaks_the_bounds_that_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    controls = {control["name"]: control for control in run(tmp_path)["controls"]}
    broken = {
        name: {(check["variant"], check["name"]) for check in control["broken"]}
        for name, control in controls.items()
    }
    for variant in ("paged-4", "contiguous-max"):
        assert (variant, "step time (all), median") in broken["slow clock"]
        assert (variant, "saturation rate") in broken["slow clock"]
        assert (variant, "step time (prefill), median") in broken["no prefill"]
    assert ("paged-4", "KV usage at load 0.5") in broken["wrong block size"]
    # Other blocks make other steps, which is no evidence.
    assert not any(name == "counts" for _, name in broken["wrong block size"])
    assert controls["wrong block size"]["variants"] == ["paged-4"]


def test_a_device_that_is_a_tenth_slower_fails_steps_saturation_and_tpot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda step: 1.1)
    document = run(tmp_path)
    value = next(c["value"] for c in document["checks"] if c["name"] == "saturation rate")
    assert value == pytest.approx(0.1, abs=1e-6)
    assert {name for _, name in failed(document)} >= {
        "step time (all), median",
        "saturation rate",
        "TPOT p50 at load closed",
        "TPOT p50 at load 0.5",
    }
    # Both sides slow down: ratios of layouts do not notice.
    assert not any(" / " in variant for variant, _ in failed(document))


class PretendedProbe:
    """Finds the device 1.25 times as slow as at the calibration."""

    def __init__(self, *_: object) -> None:
        self.history: list[float] = []

    def start(self) -> None:
        pass

    def sample(self) -> None:
        pass

    def slowness(self) -> float:
        self.history.append(1.25)
        return self.history[-1]


def test_the_clock_follows_the_speed_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda step: 1.3)
    monkeypatch.setattr("gpu_backend.validate.run.SpeedProbe", PretendedProbe)
    document = run(tmp_path, follow_speed=True)
    values = {check["name"]: check["value"] for check in document["checks"]}
    assert values["step time (all), median"] == pytest.approx(1 - 1.25 / 1.3, abs=1e-6)
    assert values["saturation rate"] == pytest.approx(1.3 / 1.25 - 1, abs=1e-6)
    assert len(document["slowness"]) == 2 * (2 + 4 * 5)


def test_bounds_that_fail_anyway_notice_no_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda step: 3.0)
    document = run(tmp_path)
    slow = document["controls"][0]
    assert slow["name"] == "slow clock"
    assert slow["broken"]
    assert not slow["noticed"]
    assert "negative control: slow clock was not noticed" in document["failures"]


def test_noise_widens_the_bounds_of_steps_to_twice_itself_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    pretend(monkeypatch, lambda step: draw.uniform(0.75, 1.25))
    document = run(tmp_path)
    for variant in document["variants"].values():
        lockstep = variant["lockstep"]
        noise, bounds = lockstep["noise"]["all"], lockstep["bounds"]["all"]
        assert noise["median"] > 0.05
        assert bounds["median"] == pytest.approx(2 * noise["median"])
    slow = next(c for c in document["controls"] if c["name"] == "slow clock")
    assert slow["noticed"]
    bounds_of = {c["name"]: c["bound"] for c in document["checks"]}
    assert bounds_of["saturation rate"] == 0.08


def test_intervals_are_over_the_seeds_and_contain_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(1)
    pretend(monkeypatch, lambda step: draw.uniform(0.9, 1.1))
    document = run(tmp_path)
    row = document["variants"]["paged-4"]["free"]["closed"]["figures"]["requests_per_s"]
    assert row["interval"][0] < row["difference"] < row["interval"][1]
    assert len(document["variants"]["paged-4"]["free"]["closed"]["seeds"]) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "llama-nano", "shape": {}, "layers": 2}}, "measured with shape"),
        ({"device": {"name": "x", "kind": "cuda", "mode": "eager"}}, "measured with device = cuda"),
    ],
)
def test_a_profile_of_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Validation(scenario(tmp_path), profile(**changes), device="cpu")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds=[0, 1]", "needs 5 seeds and more, got 2"),
        ("engine.async_scheduling=true", "asynchronous scheduling"),
        ("device.num_threads=2", "num_threads = 1, paged-4 has 2"),
        ("device.measured_layers=[1, 2]", "two different depths below the model's 2 layers"),
        ("workload.num_requests=1", "has 1 requests"),
    ],
)
def test_what_cannot_be_validated_is_refused_before_anything_runs(
    tmp_path: Path, override: str, message: str
) -> None:
    text = SCENARIO.split("compare:")[0]
    with pytest.raises(InputError, match=message):
        Validation(scenario(tmp_path, override, text=text), profile(), device="cpu")
