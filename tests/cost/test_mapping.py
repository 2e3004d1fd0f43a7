"""What mapping physical pages costs."""

from __future__ import annotations

import pytest

from kvsim.catalog import get_gpu, get_model
from kvsim.cost import FixedClock, MappingClock, RooflineClock
from kvsim.errors import InputError
from tests.cost.plans import plan


def test_every_page_set_that_a_step_maps_adds_its_time() -> None:
    clock = MappingClock(FixedClock(0.5), map_page_s=0.125)
    step = plan(4, 100)
    assert clock.step_seconds(step) == 0.5
    step.mapped_pages = 3
    assert clock.step_seconds(step) == 0.875


def test_a_mapping_clock_says_what_it_is() -> None:
    inner = RooflineClock(get_model("llama-3-8b"), get_gpu("h100"))
    clock = MappingClock(inner, map_page_s=0.001)
    assert clock.relative_error == inner.relative_error
    assert clock.note == (
        f"{inner.note}; mapping pages takes the time that was given, before the step"
    )
    fact = clock.explain()[-1]
    assert (fact.name, fact.value, fact.unit) == ("map_page_s", 0.001, "s/page set")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_mapping_without_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="map_page_s must be >= 0 s"):
        MappingClock(FixedClock(0.5), map_page_s=seconds)
