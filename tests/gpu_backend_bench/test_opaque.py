"""The two sections whose rows other modules make: passed on as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu_backend.bench import calibration, lockstep
from gpu_backend.bench.bench import OutOfTime, Skipped
from tests.gpu_backend_bench.benches import tiny_bench


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the fakes of `gpu_backend.grid` and `gpu_backend.plan_file` were asked for."""
    asked: list[Any] = []

    def measure_grid(model: str, **settings: Any) -> Iterator[dict[str, Any]]:
        asked.append((model, settings))
        yield from ({"n": n, "opaque": [model]} for n in range(3))

    class PlanFile:
        def measure(self, **settings: Any) -> Iterator[dict[str, Any]]:
            asked.append(settings)
            yield from ({"repeat": 0, "step": step} for step in range(2))

    def read_plan_file(path: Path) -> PlanFile:
        asked.append(path)
        return PlanFile()

    for name, content in (
        ("grid", {"measure_grid": measure_grid}),
        ("plan_file", {"read_plan_file": read_plan_file}),
    ):
        fake = ModuleType(f"gpu_backend.{name}")
        fake.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"gpu_backend.{name}", fake)
    return asked


def test_the_grids_rows_are_passed_on(asked: list[Any]) -> None:
    rows = list(calibration.measure(tiny_bench(tiny=False, seconds_left=lambda: 100.0, seed=7)))
    assert rows == [{"n": n, "opaque": ["llama-3-8b"]} for n in range(3)]
    assert asked == [("llama-3-8b", {"device": "cpu", "budget_s": 85.0, "seed": 7})]


def test_the_grid_is_stopped_when_it_does_not_stop_itself(asked: list[Any]) -> None:
    left = iter([100.0, 5.0, -1.0])
    rows = calibration.measure(tiny_bench(tiny=False, seconds_left=lambda: next(left)))
    assert next(rows)["n"] == 0
    assert next(rows)["n"] == 1
    with pytest.raises(OutOfTime):
        next(rows)


def test_the_grid_is_no_part_of_a_tiny_run(asked: list[Any]) -> None:
    with pytest.raises(Skipped, match="llama-3-8b"):
        next(calibration.measure(tiny_bench()))
    assert asked == []


def test_a_plan_file_is_measured_three_times(asked: list[Any]) -> None:
    rows = list(lockstep.measure(tiny_bench(plan=Path("a.json"))))
    assert asked == [Path("a.json"), *[{"device": "cpu", "repeats": 1}] * 3]
    assert rows == [{"repeat": repeat, "step": step} for repeat in range(3) for step in range(2)]


def test_time_is_looked_at_between_repeats(asked: list[Any]) -> None:
    left = iter([1.0, 0.0])
    rows = lockstep.measure(tiny_bench(plan=Path("a.json"), seconds_left=lambda: next(left)))
    assert [next(rows)["step"] for _ in range(2)] == [0, 1]
    with pytest.raises(OutOfTime):
        next(rows)


def test_without_a_plan_file_there_is_nothing_to_replay() -> None:
    with pytest.raises(Skipped, match="--plan"):
        next(lockstep.measure(tiny_bench()))
