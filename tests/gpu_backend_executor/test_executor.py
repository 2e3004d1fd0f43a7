"""Runs on the executor: everything agrees with the reference, and every mistake is noticed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from gpu_backend.executor import Executor, build_executor
from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.blas import blas_threads
from gpu_backend.executor.cpu import CpuRuntime
from gpu_backend.executor.cpu_memory import ContiguousMemory, PagedMemory
from gpu_backend.executor.oracle import Oracle
from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy, StepPlan
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.sim import run_replica
from tests.gpu_backend_executor.runs import (
    CASES,
    SHAPE,
    Memory,
    Steps,
    extents,
    run,
    scheduler,
    shared,
    tight,
)


def cpu_memory(executor: Executor) -> PagedMemory | ContiguousMemory:
    assert isinstance(executor.runtime, CpuRuntime)
    return executor.runtime.memory


class Fixed:
    def step_seconds(self, plan: StepPlan) -> float:
        return 0.01


@pytest.mark.parametrize("attention_only", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_step_agrees_with_the_reference(name: str, attention_only: bool) -> None:
    executor, steps = run(CASES[name], attention_only=attention_only)
    assert executor.checked_rows >= len(steps.steps)
    assert {
        "tight": steps.preempted and steps.chunks_with_prior,
        "shared": steps.hit_tokens and steps.preempted,
        "extents": steps.copies,
    }[name]


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_a_simulation_when_all_requests_wait_from_the_start(name: str) -> None:
    _, measured = run(CASES[name], check_every=0, attention_only=True)
    _, engine, requests = CASES[name]()
    simulated = Steps()
    run_replica(requests, engine, Fixed(), simulated)
    assert measured.steps == simulated.steps


def test_times_are_measured_and_add_up() -> None:
    executor, steps = run(tight)
    assert len(executor.timings) == len(steps.steps)
    for timing, duration_ns in zip(executor.timings, steps.durations_ns, strict=True):
        assert duration_ns == round(timing.wall_s * 1e9) > 0
        assert timing.device_s > 0
        assert timing.host_s > 0
        assert timing.cpu_s >= 0
        assert timing.device_s + timing.host_s <= timing.wall_s * 1.01


def test_results_depend_on_the_seed_only_and_not_on_threads() -> None:
    def outputs(**changes: int) -> list[int]:
        found: list[int] = []

        def listen(executor: Executor) -> None:
            step_seconds = executor.step_seconds

            def listening(plan: StepPlan) -> float:
                seconds = step_seconds(plan)
                found.extend(executor.sampled.tolist())
                return seconds

            executor.step_seconds = listening  # type: ignore[method-assign]

        run(tight, prepare=listen, check_every=0, **changes)
        return found

    first = outputs()
    assert len(set(first)) > 20
    assert outputs(num_threads=2) == first
    assert outputs(seed=1) != first


@pytest.mark.parametrize("name", CASES)
def test_only_scheduled_positions_are_written_each_to_its_own_slot(name: str) -> None:
    written: list[int] = []

    def watch(executor: Executor) -> None:
        write = cpu_memory(executor).write

        def watching(layer: int, key: Any, value: Any, slots: Any) -> None:
            write(layer, key, value, slots)
            assert len(set(slots.tolist())) == len(slots)
            written.append(len(slots))

        cpu_memory(executor).write = watching  # type: ignore[method-assign]

    _, steps = run(CASES[name], prepare=watch, layers=1)
    assert written == [decodes + prefill for _, decodes, prefill in computed(steps)]


def computed(steps: Steps) -> list[tuple[int, int, int]]:
    return [step for step in steps.steps if step[1] or step[2]]


def test_blocks_found_in_the_cache_stay_as_they_were() -> None:
    """The second of two equal prompts starts when the first has long ended."""
    memory = PagedAllocator(24, 4, eviction=LruOrder())
    engine = scheduler(memory)
    executor = build_executor(memory, engine, SHAPE, layers=2, num_threads=1, check_every=1)
    prompt = (("system", 22),)
    steps = Steps()
    run_replica([Request("a", 0, 22, 9, segments=prompt)], engine, executor, steps)
    paged = cpu_memory(executor)
    assert isinstance(paged, PagedMemory)
    before = [cache.copy() for cache in paged.caches]
    run_replica([Request("b", 0, 22, 9, segments=prompt)], engine, executor, steps)
    assert steps.hit_tokens == 20
    same = [
        np.array_equal(old[:, block], new[:, block])
        for old, new in zip(before, paged.caches, strict=True)
        for block in range(1, 6)
    ]
    assert all(same)


def test_matrix_products_get_the_threads_of_the_executor_during_a_step_only() -> None:
    before = blas_threads()
    if before is None:
        pytest.skip("numpy has another BLAS than its own OpenBLAS")
    seen: list[int | None] = []

    def watch(executor: Executor) -> None:
        attend = cpu_memory(executor).attend

        def watching(*arguments: Any) -> None:
            seen.append(blas_threads())
            attend(*arguments)

        cpu_memory(executor).attend = watching  # type: ignore[method-assign]

    run(tight, prepare=watch, num_threads=1, check_every=0)
    assert set(seen) == {1}
    assert blas_threads() == before


def test_wall_time_leaves_the_checks_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Oracle, "compare", lambda *_: time.sleep(0.01))
    executor, _ = run(tight)
    assert executor.checked_rows > 50
    assert np.median([timing.wall_s for timing in executor.timings]) < 0.02


# Mistakes that the check must notice.


def test_a_corrupted_block_table_is_noticed() -> None:
    def corrupt(executor: Executor) -> None:
        step_seconds = executor.step_seconds

        def corrupting(plan: StepPlan) -> float:
            assert isinstance(executor.addresses, PagedAddresses)
            if plan.step == 5:
                executor.addresses.table[0, 0] = executor.addresses.table[1, 0]
            return step_seconds(plan)

        executor.step_seconds = corrupting  # type: ignore[method-assign]

    with pytest.raises(AssertionError, match=r"request 'r\d' at position \d+, .* reference says"):
        run(tight, prepare=corrupt)


def test_a_row_kept_from_before_a_preemption_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = PagedAddresses.place
    monkeypatch.setattr(
        PagedAddresses, "place", lambda self, row, s, is_new: place(self, row, s, is_new=False)
    )
    with pytest.raises(AssertionError, match="reference says"):
        run(tight)


def test_a_block_that_never_gets_into_the_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = PagedAddresses.place

    def first_only(self: PagedAddresses, row: int, sequence: Any, *, is_new: bool) -> None:
        if is_new:
            place(self, row, sequence, is_new=True)

    monkeypatch.setattr(PagedAddresses, "place", first_only)
    with pytest.raises(AssertionError, match="reference says"):
        run(tight)


def test_a_row_that_is_not_moved_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedAddresses, "move_row", lambda *_: None)
    with pytest.raises(AssertionError, match="reference says"):
        run(tight)


def test_a_skipped_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContiguousMemory, "move", lambda *_: None)
    with pytest.raises(AssertionError, match="reference says"):
        run(extents)


def test_a_stale_start_slot_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ContiguousAddresses.place

    def only_once(self: ContiguousAddresses, row: int, sequence: Any, *, is_new: bool) -> None:
        if is_new:
            place(self, row, sequence, is_new=True)

    monkeypatch.setattr(ContiguousAddresses, "place", only_once)
    with pytest.raises(AssertionError, match="reference says"):
        run(extents)


@pytest.mark.parametrize(
    ("name", "kind"), [("tight", PagedAddresses), ("extents", ContiguousAddresses)]
)
def test_a_stale_slot_mapping_is_noticed(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = kind.slots  # type: ignore[attr-defined]
    latest: list[Any] = []

    def stale(self: Any, rows: Any, positions: Any) -> Any:
        found = slots(self, rows, positions)
        latest.append(found)
        return latest[-2] if len(latest) > 1 and len(latest[-2]) == len(found) else found

    monkeypatch.setattr(kind, "slots", stale)
    with pytest.raises(AssertionError, match="reference says"):
        run(CASES[name])


def test_token_values_by_request_in_place_of_streams_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a shared block holds would be another request's."""
    seed = "gpu_backend.executor.content._seed"
    monkeypatch.setattr(seed, lambda kind, stream: hash((kind, stream)) % 2**60)
    run(shared)
    counter = iter(range(10**9))
    monkeypatch.setattr(seed, lambda kind, stream: next(counter))
    with pytest.raises(AssertionError, match="reference says"):
        run(shared)


def test_copies_of_paged_slots_move_keys_and_values_of_every_layer() -> None:
    memory, engine, _ = tight()
    executor = build_executor(memory, engine, SHAPE, layers=2, num_threads=1)
    paged = cpu_memory(executor)
    assert isinstance(paged, PagedMemory)
    for cache in paged.caches:
        cache[:] = np.random.default_rng(0).random(cache.shape, np.float32)
    before = [cache.copy() for cache in paged.caches]
    paged.move(Copy(8, 6, 7))
    for old, new in zip(before, paged.caches, strict=True):
        for slot in range(30):
            source = slot + 2 if 6 <= slot < 13 else slot
            expected = old[:, source // 5, :, source % 5]
            np.testing.assert_array_equal(new[:, slot // 5, :, slot % 5], expected)


def test_a_hit_on_a_chunk_that_was_taken_back_is_noticed() -> None:
    """Priority: `a` is preempted by `b` after its chunk filled a block, which the cache names."""

    def case() -> tuple[Memory, VllmScheduler, list[Request]]:
        memory = PagedAllocator(20, 2, eviction=LruOrder())
        engine = scheduler(
            memory,
            policy="priority",
            max_num_batched_tokens=24,
            max_model_len=64,
            long_prefill_token_threshold=5,
        )
        return memory, engine, [Request("a", 0, 27, 11), Request("b", 0, 20, 2)]

    with pytest.raises(AssertionError, match=r"request 'a' .* is nan, the reference says"):
        run(case)
