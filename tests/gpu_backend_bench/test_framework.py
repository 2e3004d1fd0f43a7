"""PyTorch's allocator as a framework's KV memory, with counters that a test gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpu_backend.bench import framework
from gpu_backend.fragmentation import (
    POLICIES,
    Admit,
    Event,
    Free,
    Grow,
    Policy,
    compare,
    run_events,
)
from gpu_backend.framework_memory import TorchFramework
from gpu_backend.kv_memories import KvShape, Levels
from tests.gpu_backend_bench.benches import tiny_bench

SHAPE = KvShape(layers=1, kv_heads=2, head_dim=4, element_bytes=2)
UNIT = 2 * 4 * 2  # bytes of one token in K, or in V
EVERY = Policy(whole=False)


class FakeStatistics:
    """PyTorch's counters as a test wants them: a new state at each look."""

    def __init__(self, *states: dict[str, int]) -> None:
        self._states = iter(states)

    def __call__(self) -> dict[str, int]:
        return next(self._states)


def state(allocated: int, reserved: int, split: int, **totals: int) -> dict[str, int]:
    levels = {"allocated_bytes": allocated, "reserved_bytes": reserved}
    current = {f"{name}.all.current": value for name, value in levels.items()}
    return current | {"inactive_split_bytes.all.current": split} | totals


def test_the_framework_is_reported_beyond_what_it_held_at_the_start() -> None:
    statistics = FakeStatistics(
        state(100, 1000, 7, num_ooms=2, num_alloc_retries=5),
        state(300, 1500, 57),
        state(200, 1600, 107),
        state(100, 1600, 7, num_ooms=3, num_alloc_retries=9)
        | {"allocated_bytes.all.peak": 420, "reserved_bytes.all.peak": 1700},
    )
    memory = TorchFramework(SHAPE, device="cpu", memory_stats=statistics)
    found = run_events([Admit("a", 4, 9), Free("a")], SHAPE, EVERY, memory)
    assert found == {
        "peak_allocated_bytes": 320,
        "peak_reserved_bytes": 700,
        "retries": 4,
        "out_of_memory": 1,
        "mean_allocated_bytes": 150,
        "mean_reserved_bytes": 550,
        "mean_split_bytes": 75,
        "peak_split_bytes": 100,
        "mean_idle_share": pytest.approx((1 - 200 / 500 + 1 - 100 / 600) / 2),
        "refused": 0,
    }


class Counting(TorchFramework):
    """Real tensors on the CPU; the levels are what is alive of them."""

    def __init__(self) -> None:
        super().__init__(SHAPE, device="cpu", memory_stats=dict)
        self.lengths: list[int] = []
        self.room = 10**9

    def take(self, tokens: int) -> torch.Tensor | None:
        if tokens > self.room:
            return None
        return super().take(tokens)

    def grow(self, tensor: torch.Tensor, tokens: int) -> torch.Tensor | None:
        longer = super().grow(tensor, tokens)
        if longer is not None:
            self.lengths.append(longer.shape[1])
            assert torch.equal(longer[:, : tensor.shape[1]].isnan(), tensor.isnan())
        return longer

    def levels(self) -> Levels:
        return Levels(0, 0, 0)


def test_dynamic_caches_grow_by_concatenation() -> None:
    memory = Counting()
    found = run_events([Admit("a", 4, 9), Grow("a", 5), Grow("a", 6)], SHAPE, EVERY, memory)
    assert memory.lengths == [5, 5, 6, 6]
    assert found["refused"] == 0
    tensor = memory.take(3)
    assert tensor is not None
    assert tensor.shape == (2, 3, 4)
    assert tensor.element_size() * tensor.numel() == 3 * UNIT


def test_a_framework_without_memory_refuses() -> None:
    memory = Counting()
    memory.room = 3
    assert run_events([Admit("a", 4, 9)], SHAPE, EVERY, memory)["refused"] == 1


@pytest.mark.parametrize("function", ["empty", "cat"])
def test_an_out_of_memory_error_is_a_refusal(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Counting()
    tensor = memory.take(2)
    assert tensor is not None

    def fails(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, function, fails)
    assert memory.grow(tensor, 3) is None


def test_without_a_gpu_the_framework_is_absent_and_the_report_says_so() -> None:
    report = compare([Admit("a", 4, 9)], SHAPE, EVERY, capacity_tokens=10)
    assert report["framework"] is None
    assert "no CUDA device" in report["why"]
    assert report["simulated"]["peak_allocated_bytes"] == 8 * UNIT


def test_both_sides_get_the_same_events() -> None:
    def once() -> Iterator[Event]:
        yield Admit("a", 4, 9)
        yield Grow("a", 5)

    memory = Counting()
    report = compare(once(), SHAPE, EVERY, capacity_tokens=50, framework=memory)
    assert memory.lengths == [5, 5]
    assert report["framework"]["refused"] == 0
    assert "why" not in report


def test_the_section_reports_every_way_of_allocating() -> None:
    rows = list(framework.measure(tiny_bench()))
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all(row["framework"] is None and row["why"] for row in rows)
    grow, strides, whole = (row["simulated"] for row in rows)
    assert grow["mean_allocated_bytes"] < whole["mean_allocated_bytes"]
    assert grow["mean_allocated_bytes"] < strides["mean_allocated_bytes"]
    assert math.isfinite(grow["mean_idle_share"])
