"""Layers with a sliding window read no more of a context than the window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.catalog import LayerGroup, Model, get_gpu, get_model
from kvsim.cost import CalibratedClock, RooflineClock
from kvsim.cost.windows import decode_tokens, mean_reach, prior_tokens
from tests.cost.plans import plan


def _windowed(window: int | None, full_layers: int = 0) -> Model:
    """Llama-3-8B with a window in all but some of its 32 layers."""
    model = get_model("llama-3-8b")
    groups = (LayerGroup(32 - full_layers, model.attention, window),)
    if full_layers:
        groups += (LayerGroup(full_layers, model.attention),)
    return replace(model, groups=groups)


@given(new=st.integers(1, 300), prior=st.integers(0, 300), window=st.integers(1, 300))
def test_the_reach_of_a_chunk_is_that_of_its_queries_one_by_one(
    new: int, prior: int, window: int
) -> None:
    """Queries in the middle of their token see half of it: min(prior + i + 1/2, window)."""
    exact = sum(min(prior + i + 0.5, window) for i in range(new)) / new
    assert mean_reach(new, prior, window) == pytest.approx(exact, abs=0.13)
    assert mean_reach(new, prior, None) == prior + new / 2
    assert mean_reach(new, prior, 10**6) == prior + new / 2


def test_what_decodes_read_is_cut_at_the_window_on_average() -> None:
    assert decode_tokens(4, 400, None) == 400
    assert decode_tokens(4, 400, 200) == 400
    assert decode_tokens(4, 4000, 200) == 800
    assert (prior_tokens(5000, 200), prior_tokens(50, 200), prior_tokens(5000, None)) == (
        200,
        50,
        5000,
    )


STEPS = [plan(8, 8 * 900), plan(8, 8 * 900, [(100, 300)]), plan(chunks=[(500, 0), (7, 250)])]


@pytest.mark.parametrize("clock", [CalibratedClock, RooflineClock])
@pytest.mark.parametrize("step", STEPS)
def test_a_window_that_holds_every_context_changes_nothing(clock: type, step: object) -> None:
    gpu = get_gpu("h100")
    plain = clock(get_model("llama-3-8b"), gpu).step_seconds(step)
    wide = clock(_windowed(100_000), gpu).step_seconds(step)
    assert wide == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("clock", [CalibratedClock, RooflineClock])
def test_beyond_the_window_a_longer_context_costs_the_full_layers_only(clock: type) -> None:
    """An eighth of the layers see everything: a context grows an eighth as expensive."""
    gpu = get_gpu("h100")

    def growth(model: Model) -> float:
        built = clock(model, gpu)
        near, far = (built.step_seconds(plan(64, 64 * tokens)) for tokens in (2000, 4000))
        return float(far - near)

    plain = growth(_windowed(None))
    assert growth(_windowed(1024)) == pytest.approx(0, abs=1e-12)
    assert growth(_windowed(1024, full_layers=4)) == pytest.approx(plain / 8, rel=1e-9)


@pytest.mark.parametrize("clock", [CalibratedClock, RooflineClock])
def test_a_long_prefill_under_a_window_takes_less(clock: type) -> None:
    gpu = get_gpu("h100")
    step = plan(chunks=[(8192, 100_000)])
    times = [clock(_windowed(w), gpu).step_seconds(step) for w in (None, 4096, 1024)]
    assert times[0] > 2 * times[1]
    assert times[1] > times[2]


def test_drafts_query_the_window_too() -> None:
    gpu = get_gpu("h100")
    near = CalibratedClock(_windowed(1024), gpu).step_seconds(plan(8, 8 * 2000, drafts=24))
    far = CalibratedClock(_windowed(1024), gpu).step_seconds(plan(8, 8 * 9000, drafts=24))
    assert near == far
