"""Hand-made steps, plan files, depths: what is run, and that it is what was asked for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

import numpy as np

from gpu_backend.device import DeviceSpec, TwoDepths
from gpu_backend.executor import ModelShape, StepTiming
from gpu_backend.layouts import CacheLayout
from gpu_backend.plan_file import plan_file_from, read_plan_file
from gpu_backend.scenario_device import grid_of, runnable_variants
from gpu_backend.steps import WARM_UP, Point, StepBench
from gpu_backend.validate.lockstep import Lockstep, simulate
from gpu_backend.validate.record import RunRecorder
from gpu_backend.validate.traffic import all_at_once, at_rate, first_requests
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request
from kvsim.errors import InputError
from tests.gpu_backend_validate.server import scenario

SHAPE = ModelShape(hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=97)


class Fixed:
    def step_seconds(self, plan: StepPlan) -> float:
        return 0.01


def bench(layout: CacheLayout) -> StepBench:
    return StepBench(
        SHAPE,
        layout,
        layers=1,
        slots=640,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        max_model_len=600,
        num_threads=1,
    )


@pytest.mark.parametrize("layout", [CacheLayout(5), CacheLayout(16), CacheLayout(None)])
def test_a_batch_made_by_hand_is_run_with_its_contexts(
    layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(layout)
    seen: list[tuple[int, int, tuple[tuple[int, int], ...], list[tuple[int, int]]]] = []
    run = made.executor.step_seconds

    def spy(plan: StepPlan) -> float:
        scheduled = [(made.computed_tokens(seq), new) for seq, new in plan.scheduled()]
        seen.append((plan.num_decodes, plan.prefill_tokens, tuple(plan.chunks), scheduled))
        return run(plan)

    monkeypatch.setattr(made.executor, "step_seconds", spy)
    timings = made.measure(Point((9, 30), ((7, 40), (3, 0))), 2)
    assert len(timings) == 2
    assert all(timing.wall_s > 0 for timing in timings)
    mixed = (2, 10, ((7, 40), (3, 0)), [(9, 1), (30, 1), (47, 7), (3, 3)])
    assert seen.count(mixed) == 3
    assert len(seen) == 3 * (1 + WARM_UP)
    made.allocator.check_integrity([])
    assert made.allocator.usage.allocated == 0


def test_decodes_alone_are_run_back_to_back_and_the_first_are_not_measured() -> None:
    made = bench(CacheLayout(16))
    runs = iter(range(100))

    def pretended(plan: StepPlan) -> float:
        at = float(next(runs))
        made.executor.timings.append(StepTiming(plan.step, at, at, 0.0, at))
        return at

    made.executor.step_seconds = pretended  # type: ignore[method-assign]
    timings = made.measure(Point((64, 64)), 4)
    assert [timing.wall_s for timing in timings] == [WARM_UP, WARM_UP + 1, WARM_UP + 2, WARM_UP + 3]


def test_blocks_are_scattered_and_copies_run() -> None:
    made = bench(CacheLayout(16))
    with made._placed(Point((300,))) as plan:
        (sequence, _), *_ = plan.scheduled()
        table = list(sequence.table)
    neighbours = sum(abs(a - b) == 1 for a, b in itertools.pairwise(table))
    assert neighbours < len(table) // 3
    assert made.measure(Point((64,), (), 40), 1)


@pytest.mark.parametrize(
    "point", [Point((601,)), Point((9,) * 7), Point((600,) * 4), Point((9,), (), 1200)]
)
def test_a_batch_that_does_not_fit_is_refused_and_leaves_nothing_behind(point: Point) -> None:
    made = bench(CacheLayout(16))
    with pytest.raises(ValueError, match=r"one too many|cannot move"):
        made.measure(point, 1)
    assert made.allocator.usage.allocated == 0


class _At:
    """An executor that takes `once + layers * each` seconds."""

    def __init__(self, layers: int) -> None:
        self.seconds = 0.5 + layers * 0.25
        self.timings: list[StepTiming] = []
        self.checked_rows = layers

    def step_seconds(self, plan: StepPlan) -> float:
        self.timings.append(StepTiming(plan.step, self.seconds, self.seconds, 0.0, self.seconds))
        return self.seconds


def test_two_depths_are_extrapolated_affinely_to_the_whole_model() -> None:
    clock = TwoDepths(_At(2), _At(6), (2, 6), 32)  # type: ignore[arg-type]
    assert clock.step_seconds(StepPlan(7, {})) == pytest.approx(0.5 + 32 * 0.25)
    assert clock.timings[0].step == 7
    assert clock.checked_rows == 8


def test_a_device_at_two_depths_runs_both_on_the_same_blocks(tmp_path: Path) -> None:
    runnable = runnable_variants(scenario(tmp_path), "cpu")[0]
    deep = DeviceSpec("cpu", 5, (1, 2), num_threads=1, check_every=1)
    allocator, scheduler = runnable.server.build()
    clock = deep.clock(allocator, scheduler, SHAPE)
    scheduler.add(Request("a", 0, 9, 3))
    plan = scheduler.schedule()
    shallow, deep_one = clock._executors  # type: ignore[attr-defined]
    assert clock.step_seconds(plan) >= 0
    assert shallow.checked_rows == deep_one.checked_rows > 0


@pytest.fixture
def simulated(tmp_path: Path) -> Any:
    settings = scenario(tmp_path)
    runnable = runnable_variants(settings, "cpu")[0]
    requests = all_at_once(first_requests(settings, 0, strict_traces=False))
    return simulate(runnable, Fixed(), requests, RunRecorder, max_concurrency=5)


def test_a_plan_file_brings_the_same_steps_again(simulated: Any, tmp_path: Path) -> None:
    plan_file = simulated.plan_file
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_file.as_dict()))
    again = read_plan_file(path)
    assert again == plan_file
    clock, counts = again.run_once(DeviceSpec("cpu", 2, (2,), num_threads=1))
    assert counts == plan_file.steps
    assert len(clock.timings) == len(simulated.predicted_s) > 20
    assert sum(step.preempted for step in counts) > 0


def test_a_plan_file_measures_rows_per_repeat_and_step(simulated: Any) -> None:
    rows = list(simulated.plan_file.measure(device="cpu", repeats=2, num_threads=1))
    steps = len(simulated.plan_file.steps)
    assert [(row["repeat"], row["step"]) for row in rows] == [
        (repeat, step) for repeat in (0, 1) for step in range(steps)
    ]
    assert all(row["wall_s"] >= row["device_s"] > 0 for row in rows)
    assert rows[0]["prefill_tokens"] == simulated.plan_file.steps[0].prefill_tokens


def test_a_plan_file_with_shared_prompts_keeps_their_streams(simulated: Any) -> None:
    shared = Request("s", 0, 6, 2, segments=((("chunk", 3), 4), ("own", 2)), output_stream="o")
    plan_file = simulated.plan_file._replace(events=[shared, 1])
    document = json.loads(json.dumps(plan_file.as_dict()))
    assert plan_file_from(document, "p.json").events == [shared, 1]


def test_a_plan_file_that_was_changed_or_is_none_is_refused(simulated: Any, tmp_path: Path) -> None:
    document = json.loads(json.dumps(simulated.plan_file.as_dict()))
    with pytest.raises(InputError, match="was changed"):
        plan_file_from({**document, "layers": 3}, "p.json")
    with pytest.raises(InputError, match="is not a plan file"):
        plan_file_from([], "p.json")
    path = tmp_path / "p.json"
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="is not JSON"):
        read_plan_file(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_plan_file(tmp_path / "missing")


def test_step_errors_and_noise_are_those_of_medians() -> None:
    counts = [_counts(0), _counts(0), _counts(1)]
    measured = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0], [1.2, 2.0, 4.0], [1.0, 2.2, 4.0]])
    lockstep = Lockstep(counts, [1.1, 1.8, 5.0], measured)
    errors = lockstep.errors()
    assert errors["all"]["median"] == pytest.approx(0.1)
    assert errors["prefill"]["median"] == pytest.approx(0.25)
    assert errors["prefill"]["steps"] == 1
    assert errors["decode"]["bias"] == pytest.approx(0.0)
    # Every other repeat: 1.1, 2, 4 against 1, 2.1, 4.
    assert lockstep.noise()["decode"]["median"] == pytest.approx((0.1 / 1.05 + 0.1 / 2.05) / 2)
    assert lockstep.noise()["prefill"]["median"] == 0


def _counts(chunks: int) -> Any:
    from gpu_backend.plan_file import StepCounts

    return StepCounts(1, 10, 0, chunks, 0, 16)


def test_arrivals_are_stretched_to_a_rate_and_keep_their_order() -> None:
    requests = [Request(str(i), at, 5, 5) for i, at in enumerate([100, 300, 300, 500])]
    found = [request.arrival_ns for request in at_rate(requests, 1.5)]
    assert found == [0, 1_000_000_000, 1_000_000_000, 2_000_000_000]
    with pytest.raises(InputError, match="all requests arrive at once"):
        at_rate(all_at_once(requests), 1.0)


def test_the_grid_covers_every_variant(tmp_path: Path) -> None:
    spec = grid_of(scenario(tmp_path), "cpu")
    assert [layout.name for layout in spec.layouts] == ["paged-4", "contiguous"]
    assert (spec.slots, spec.max_num_seqs, spec.max_model_len) == (128, 6, 64)
    assert spec.measured_layers == (2,)


@pytest.mark.parametrize("name", ["paged", "paged-", "paged-0", "paged-1x", "arena", "paged-٣"])
def test_a_layout_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a layout is"):
        CacheLayout.named(name)
