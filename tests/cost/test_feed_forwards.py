"""Clocks and feed-forwards of several widths, and experts of several forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.catalog import LayerGroup, Model, get_gpu, get_model
from kvsim.catalog.states import Mamba2
from kvsim.cost import CalibratedClock, RooflineClock
from kvsim.cost.covered import token_attention
from kvsim.errors import InputError
from tests.catalog.hf_rows import read
from tests.cost.plans import plan

STEPS = (plan(1, 100), plan(64, 64_000), plan(chunks=[(2048, 0)]))


def seconds(model: Model) -> list[float]:
    """Times of some steps under both clocks that know shapes."""
    clocks = (RooflineClock(model, get_gpu("h100")), CalibratedClock(model, get_gpu("h100")))
    return [clock.step_seconds(step) for clock in clocks for step in STEPS]


def test_layers_of_one_width_take_the_same_time_however_they_are_written() -> None:
    model = get_model("llama-3-8b")
    listed = replace(model, mlp_layers=((32, 14_336),))
    halves = replace(model, mlp_layers=((16, 14_336), (16, 14_336)))
    assert seconds(listed) == seconds(model)
    assert seconds(halves) == pytest.approx(seconds(model), rel=1e-12)


def test_narrower_feed_forwards_take_less_time() -> None:
    model = get_model("llama-3-8b")
    narrow = replace(model, mlp_layers=((16, 14_336), (16, 7168)))
    assert all(a < b for a, b in zip(seconds(narrow), seconds(model), strict=True))


def test_shared_experts_take_the_same_time_however_they_are_written() -> None:
    model = get_model("deepseek-v3")
    assert model.moe is not None
    moe = replace(model.moe, shared_experts=1, shared_intermediate=2048, layers=58, dense_layers=3)
    assert seconds(replace(model, moe=moe, mlp_layers=((3, 18_432),))) == seconds(model)


def test_experts_on_fewer_elements_take_less_time() -> None:
    model = get_model("qwen3-30b-a3b")
    assert model.moe is not None
    latent = replace(model, moe=replace(model.moe, latent=512))
    assert all(a < b for a, b in zip(seconds(latent), seconds(model), strict=True))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("zai-org/GLM-5", "sparse-attention"),
        ("google/gemma-3n-E4B", "KV-sharing"),
        ("meta-llama/Llama-3.2-11B-Vision", "cross-attention"),
        ("tiiuae/Falcon-H1-0.5B-Base", "linear-attention"),
        ("ai21labs/Jamba-v0.1", "linear-attention"),
    ],
)
def test_layers_without_a_time_by_shape_are_refused(model: str, problem: str) -> None:
    for clock in (RooflineClock, CalibratedClock):
        with pytest.raises(InputError, match=f"{problem} layers have no time by shape") as error:
            clock(read(model), get_gpu("h100"))
        assert error.value.fix


def test_a_state_beside_attention_is_refused() -> None:
    attention = get_model("llama-3-8b").attention
    group = LayerGroup(1, attention, beside=Mamba2(1, 16, 1, 16, 4, state_dtype_bytes=2))
    with pytest.raises(InputError, match="linear-attention"):
        token_attention(group)
