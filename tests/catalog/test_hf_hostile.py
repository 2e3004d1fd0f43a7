"""Configurations are untrusted: whatever they hold, a model or a short, clear error, at once."""

from __future__ import annotations

import copy
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.catalog import (
    Model,
    explain_model,
    kv_bytes_per_token,
    model_from_config,
    weight_bytes,
)
from kvsim.catalog.compressed_bytes import compresses, kept_bytes
from kvsim.catalog.hf.fields import LARGEST_LAYERS, LARGEST_NESTING
from kvsim.errors import InputError
from tests.catalog.hf_rows import ROWS, row
from tests.timing import slow

LLAMA: dict[str, Any] = row("yi-34b")["config"]


def nested(depth: int) -> dict[str, Any]:
    """An object of so many levels."""
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def refused(config: Any, quantization: Any = None) -> str:
    """The message; it is short, says where, and comes at once."""
    start = time.perf_counter()
    with pytest.raises(InputError) as error:
        model_from_config(config, name="x", source="x.json", quantization=quantization)
    assert time.perf_counter() - start < slow(1.0, time.perf_counter)
    assert error.value.where == "x.json"
    assert error.value.fix
    message = str(error.value)
    assert len(message) < 4000
    return message


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 10**12}, "num_hidden_layers must be a whole number in 1..10000"),
    ({"num_hidden_layers": LARGEST_LAYERS + 1}, "num_hidden_layers must be a whole number"),
    ({"num_hidden_layers": 10**5000}, "got a whole number of 16610 bits"),
    ({"num_hidden_layers": "60"}, "num_hidden_layers must be a whole number in 1..10000, got '60'"),
    ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number in 1..10000, got True"),
    ({"num_hidden_layers": 60.0}, "got 60.0"),
    ({"num_hidden_layers": None}, "got None"),
    ({"num_hidden_layers": math.nan}, "got nan"),
    ({"num_hidden_layers": math.inf}, "got inf"),
    ({"num_hidden_layers": -1}, "got -1"),
    ({"num_hidden_layers": 0}, "got 0"),
    ({"num_hidden_layers": [60]}, "got a list of 1 items"),
    ({"num_hidden_layers": {"a": 1}}, "got an object of 1 fields"),
    ({"hidden_size": 10**12}, "hidden_size must be a whole number"),
    ({"vocab_size": None}, "vocab_size must be a whole number"),
    ({"num_attention_heads": 0}, "num_attention_heads must be a whole number"),
    ({"num_attention_heads": 10**6}, "num_attention_heads must be a whole number in 1..100000"),
    ({"num_key_value_heads": 57}, "num_attention_heads 56 is no multiple of 57 KV heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads must be a whole number"),
    ({"max_position_embeddings": 10**12}, "max_position_embeddings must be a whole number"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
    ({"attention_bias": 1}, "attention_bias must be true or false, got 1"),
    ({"model_type": None, "architectures": None}, "model_type None is not known"),
    ({"model_type": 7}, "model_type 7 is not known"),
    ({"model_type": "x" * 100_000}, "is not known"),
    ({"model_type": ["llama"]}, "model_type a list of 1 items is not known"),
    ({"torch_dtype": 16}, "torch_dtype 16 is not known"),
    ({"torch_dtype": "int8"}, "torch_dtype 'int8' is not known"),
    ({"layer_types": "full_attention"}, "layer_types must be a list"),
    ({"layer_types": ["full_attention"] * 10**5}, "layer_types has 100000 items for 60 layers"),
    ({"layer_types": [None] * 60}, "layer type None is not covered"),
    ({"quantization_config": "fp8"}, "quantization_config must be an object, got 'fp8'"),
    ({"quantization_config": {"quant_method": "x" * 9999}}, "is not supported yet"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 10**9}}, "bits must be a whole"),
    ({"extra": nested(10_000)}, f"more than {LARGEST_NESTING} levels"),
    ({"extra": [[[[0] * 10] * 10] * 100] * 1000}, "or 1000000 values"),
    ({"text_config": nested(30)}, f"more than {LARGEST_NESTING} levels"),
]


@pytest.mark.parametrize(("change", "problem"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_value_is_refused_with_its_field(change: dict[str, Any], problem: str) -> None:
    assert problem in refused(LLAMA | change)


@pytest.mark.parametrize("config", [None, [], "llama", 7, b"{}"])
def test_what_is_no_object_is_refused(config: Any) -> None:
    assert "a configuration must be an object" in refused(config)


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 25


def test_shared_lists_do_not_multiply() -> None:
    """A thousand times a thousand times a thousand items, of three lists."""
    inner: list[Any] = [[]] * 1000
    assert "levels" in refused(LLAMA | {"extra": [[inner] * 1000] * 1000})


def test_a_file_that_nests_itself_for_ever_ends() -> None:
    config = dict(LLAMA)
    config["text_config"] = config
    assert "levels" in refused(config)


@pytest.mark.parametrize(
    ("model", "change", "problem"),
    [
        ("nvidia/Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "M*X"}, "layers 'X'"),
        ("nvidia/Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": ""}, "has 0 layers"),
        ("nvidia/Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "M*"}, "contradicts"),
        ("nvidia/Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "M" * 10**6}, "at most"),
        ("nvidia/Nemotron-H-56B-Base-8K", {"hybrid_override_pattern": "M" * 118}, "no layer that"),
        ("ai21labs/Jamba-v0.1", {"attn_layer_period": 0}, "attn_layer_period must be a whole"),
        ("ai21labs/Jamba-v0.1", {"attn_layer_offset": 9}, "no layer that keeps keys and values"),
        ("XiaomiMiMo/MiMo-V2-Flash", {"moe_layer_freq": [1] * 47}, "has 47 items for 48 layers"),
        ("XiaomiMiMo/MiMo-V2-Flash", {"hybrid_layer_pattern": [True] * 48}, "whole numbers"),
        ("deepseek-ai/DeepSeek-V3", {"num_experts_per_tok": 257}, "257 experts of 256"),
        ("deepseek-ai/DeepSeek-V3", {"n_routed_experts": 10**9}, "n_routed_experts must be"),
        ("openai/gpt-oss-20b", {"sliding_window": "128"}, "sliding_window must be a whole"),
        ("databricks/dbrx-base", {"attn_config": None}, "attn_config must be an object"),
        ("stepfun-ai/Step-3.5-Flash", {"moe_layers_enum": "3,99"}, "names layer '99' of 45"),
        ("ibm-ai-platform/Bamba-9B", {"attn_layer_indices": [99]}, "below 32"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": [1] * 80}, "attention of"),
        ("bigscience/bloom-7b1", {"n_layer": -1}, "n_layer must be a whole number"),
    ],
)
def test_hostile_values_of_single_families_are_refused(
    model: str, change: dict[str, Any], problem: str
) -> None:
    assert problem in refused(row(model)["config"] | change)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**12, 10**40, "", "32", "full_attention", "fp8", "M*E-"])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(ROWS), st.data())
def test_any_change_gives_a_model_or_an_input_error(one: dict[str, Any], data: Any) -> None:
    """Up to three fields, at any level, become something else."""
    config = copy.deepcopy(one["config"])
    for _ in range(data.draw(st.integers(1, 3))):
        where = config
        key = data.draw(st.sampled_from(sorted(where)))
        while isinstance(where[key], dict) and where[key] and data.draw(st.booleans()):
            where = where[key]
            key = data.draw(st.sampled_from(sorted(where)))
        where[key] = data.draw(VALUES)
    model: Model | None = None
    message = ""
    try:
        model = model_from_config(
            config, name="x", source="x.json", quantization=one.get("hf_quant_config")
        )
    except InputError as error:
        message = str(error)
    assert len(message) < 4000
    if model is None:
        return
    if compresses(model):
        assert kept_bytes(model, 1000, 1) > 0
    else:
        assert kv_bytes_per_token(model) > 0
    assert weight_bytes(model) > 0
    assert explain_model(model)


def test_the_time_to_read_grows_with_the_layers_and_no_faster() -> None:
    """10,000 layers, the most there may be, take less than a second."""
    config = row("google/gemma-3n-E4B")["config"]["text_config"] | {
        "num_hidden_layers": 10_000,
        "layer_types": ["sliding_attention", "full_attention"] * 5000,
        "intermediate_size": list(range(1, 10_001)),
    }
    start = time.perf_counter()
    model = model_from_config(config, name="x", source="x.json")
    assert time.perf_counter() - start < slow(1.0, time.perf_counter)
    assert model.layers == 10_000
    assert json.dumps(kv_bytes_per_token(model)) == str(9985 * 2 * 512 * 2)
