from __future__ import annotations

import pytest

from gpu_backend.bench.budget import Budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_sections_share_the_time_by_weight() -> None:
    clock = Clock()
    budget = Budget(60, {"a": 3, "b": 2, "c": 1}, now=clock)
    assert budget.begin("a") == 30
    clock.now += 30
    assert budget.begin("b") == 20
    clock.now += 20
    assert budget.begin("c") == 10


def test_what_a_section_leaves_over_all_later_ones_get() -> None:
    clock = Clock()
    budget = Budget(60, {"a": 3, "b": 2, "c": 1}, now=clock)
    budget.begin("a")
    clock.now += 6
    assert budget.begin("b") == 36
    assert budget.begin("c") == 54


def test_a_section_that_takes_too_long_takes_it_from_the_later_ones() -> None:
    clock = Clock()
    budget = Budget(60, {"a": 1, "b": 1, "c": 1}, now=clock)
    budget.begin("a")
    clock.now += 40
    assert budget.seconds_left() == -20
    assert budget.begin("b") == 10
    clock.now += 30
    assert budget.begin("c") == 0
    assert budget.seconds_left() == -10


def test_the_seconds_left_are_those_of_the_running_section() -> None:
    clock = Clock()
    budget = Budget(60, {"a": 1, "b": 5}, now=clock)
    budget.begin("a")
    clock.now += 4
    assert budget.seconds_left() == 6


@pytest.mark.parametrize(("total_s", "weight"), [(0, 1), (-1, 1), (10, 0)])
def test_nothing_to_share(total_s: float, weight: float) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        Budget(total_s, {"a": weight})
