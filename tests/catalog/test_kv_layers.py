"""Bytes of requests in layers of several kinds, against published and reported figures."""

from __future__ import annotations

import pytest

from kvsim.catalog import GIB, explain_model, get_model
from kvsim.catalog.kv_groups import kv_groups
from kvsim.catalog.kv_layers import (
    GroupRule,
    LayerKv,
    group_layers,
    hybrid_bytes,
    layer_kvs,
    padding_layers,
    unified_bytes,
    unified_waste,
)
from kvsim.errors import InputError


@pytest.mark.parametrize(
    ("full", "sliding", "rule", "padding", "waste_percent"),
    [
        (19, 18, "min", 17, 89.47),
        (19, 18, "max_if_close", 1, 5.56),
        (20, 30, "min", 10, 33.33),
        (10, 16, "min", 4, 25.0),
        (20, 30, "gcd", 0, 0.0),
        (10, 16, "gcd", 0, 0.0),
    ],
)
def test_groups_of_one_size_pad_as_vllms_pull_requests_report(
    full: int, sliding: int, rule: GroupRule, padding: int, waste_percent: float
) -> None:
    """vllm pulls 29303 and 56445; waste is padding over the layers of that type."""
    counts = {"full": full, "sliding": sliding}
    found = padding_layers(counts, group_layers(counts, rule))
    assert sum(found.values()) == padding
    padded = max(found, key=lambda name: found[name])
    assert round(100 * found[padded] / counts[padded], 2) == waste_percent


def test_close_numbers_of_layers_are_those_below_the_ratio() -> None:
    assert group_layers({"full": 20, "sliding": 30}, "max_if_close") == 20
    assert group_layers({"full": 20, "sliding": 29}, "max_if_close") == 29
    assert group_layers({"full": 20, "sliding": 25}, "max_if_close", ratio=1.25) == 20


def test_the_grouping_of_catalogue_models_pads_by_the_same_rule() -> None:
    for name in ("gemma-3-27b", "gemma-3-1b"):
        model = get_model(name)
        counts = {str(group.window): group.layers for group in model.groups}
        groups = kv_groups(model)
        size = group_layers(counts, "max_if_close")
        assert size == groups.layers
        assert sum(padding_layers(counts, size).values()) == groups.padding_layers


def test_an_allocator_of_one_size_wastes_what_was_reported_of_three_models() -> None:
    """vllm issue 11382: Gemma 2 25 %, Ministral 56.25 %, Llama 3.2 Vision 79.6 %."""
    gemma = [LayerKv("full", 21, 1024), LayerKv("sliding", 21, 1024, 4096)]
    assert unified_waste(gemma, 8192) == 0.25
    ministral = [LayerKv("full", 9, 1024), LayerKv("sliding", 27, 1024, 32_768)]
    assert unified_waste(ministral, 131_072) == 0.5625
    mllama = [LayerKv("full", 32, 4096), LayerKv("cross", 8, 4096)]
    assert 100 * unified_waste(mllama, 43, 6193) == pytest.approx(79.6, abs=0.2)


def test_a_sequence_of_gpt_oss_120b_takes_half_of_what_a_planner_billed() -> None:
    """aiconfigurator pull 1537: 2.2637 GiB billed, 1.1341 GiB taken; 64 of them 72.6 GiB."""
    per_token = 2 * 8 * 64  # keys and values, 8 KV heads of 64, one byte each
    layers = [LayerKv("full", 18, per_token), LayerKv("sliding", 18, per_token, 128)]
    tokens = 65_536 + 400
    assert unified_bytes(layers, tokens) / GIB == pytest.approx(2.2637, abs=5e-5)
    assert hybrid_bytes(layers, tokens) / GIB == pytest.approx(1.1341, abs=5e-5)
    assert 64 * hybrid_bytes(layers, tokens) / GIB == pytest.approx(72.6, rel=0.005)


def test_fixed_bytes_and_slope_by_kind_of_layer() -> None:
    state = LayerKv("state", 3, state_bytes=1000)
    chunked = LayerKv("chunked", 2, 10, 100)
    cross = LayerKv("cross", 2, 10)
    assert [state.request_bytes(tokens) for tokens in (0, 1, 10**6)] == [3000] * 3
    assert [chunked.request_bytes(tokens) for tokens in (1, 100, 101)] == [20, 2000, 2000]
    assert chunked.slope_bytes(99) == 20
    assert chunked.slope_bytes(100) == state.slope_bytes(5) == cross.slope_bytes(5) == 0
    assert cross.request_bytes(500, encoder_tokens=7) == 140
    assert hybrid_bytes([state, chunked, cross], 50, 7) == 3000 + 1000 + 140


def test_a_model_with_one_kind_of_layer_wastes_nothing() -> None:
    layers = layer_kvs(get_model("llama-3-8b"))
    assert hybrid_bytes(layers, 8192) == 8192 * 131_072
    assert unified_waste(layers, 8192) == 0


def test_layers_of_a_catalogue_model_shrink_with_tensor_parallelism_and_dtype() -> None:
    whole = layer_kvs(get_model("gemma-3-27b"))
    assert [(layer.kind, layer.layers, layer.limit_tokens) for layer in whole] == [
        ("sliding", 52, 1024),
        ("full", 10, None),
    ]
    half = layer_kvs(get_model("gemma-3-27b"), tp=2, kv_dtype_bytes=1)
    assert [4 * layer.bytes_per_token for layer in half] == [w.bytes_per_token for w in whole]
    assert hybrid_bytes(whole, 1024) == unified_bytes(whole, 1024)
    assert unified_waste(whole, 131_072) == pytest.approx(52 / 62 * (1 - 1024 / 131_072))


def test_a_type_without_layers_is_refused() -> None:
    with pytest.raises(InputError, match="at least one layer"):
        group_layers({"full": 0}, "gcd")


def test_a_model_with_windows_explains_what_a_long_request_takes() -> None:
    facts = {fact.name: fact for fact in explain_model(get_model("gemma-3-27b"))}
    per_token = 2 * 16 * 128 * 2
    assert facts["kv_request.full"].value == 10 * per_token * 131_072
    assert facts["kv_request.sliding 1024"].value == 52 * per_token * 1024
    assert facts["kv_request.unified"].value == 62 * per_token * 131_072
    assert "83.22 % of it is never read" in facts["kv_request.unified"].source
    assert facts["kv_padding_layers"].value == 8
    assert "kv_request.hybrid" not in {f.name for f in explain_model(get_model("llama-3-8b"))}
