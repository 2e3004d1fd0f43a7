"""Bytes per element by quantization method, and the type of the cache."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog import kv_bytes_per_token, model_from_config, weight_bytes
from kvsim.catalog.weights import parameter_terms
from kvsim.errors import InputError
from tests.catalog.hf_rows import read, row

LLAMA: dict[str, Any] = row("meta-llama/Meta-Llama-3.1-8B")["config"]
ATTENTION, MLP = 32 * (4096 * 6144 + 4096 * 4096), 32 * 3 * 4096 * 14_336
KEPT = 2 * 128_256 * 4096 + 65 * 4096
"""Embeddings, head and norms, in 16 bits."""


def quantized(given: dict[str, Any] | None, file: dict[str, Any] | None = None) -> Any:
    """Llama 3.1 8B with this quantization_config and this hf_quant_config.json."""
    config = LLAMA | ({} if given is None else {"quantization_config": given})
    return model_from_config(config, name="x", source="x.json", quantization=file)


def weights_group(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"weights": weights, "targets": ["Linear"]}}


CASES: list[tuple[dict[str, Any], float]] = [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0),
    ({"quant_method": "fbgemm_fp8"}, 1.0),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.5 + 2.5 / 128),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 0.5 + 2.5 / 64),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, 0.5 + 2.5 / 32),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False}, 1.0),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128}, 0.375 + 2.375 / 128),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, 1.0),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
    (
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_use_double_quant": True,
        },
        0.5 + 1 / 64 + 4 / 256 / 64,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": weights_group(num_bits=4, type="int", group_size=128, symmetric=True),
        },
        0.5 + 2 / 128,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": weights_group(num_bits=8, type="int", strategy="channel"),
        },
        1.0,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": weights_group(num_bits=8, type="float", strategy="tensor"),
        },
        1.0,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": weights_group(num_bits=4, type="float", group_size=16),
        },
        0.5 + 1 / 16,
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": weights_group(num_bits=4, type="float", group_size=32),
        },
        0.5 + 1 / 32,
    ),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, 1.0),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, 0.5 + 1 / 16),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
    ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64}, 0.5 + 2 / 64),
    ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, 1.0),
]


@pytest.mark.parametrize(("given", "bytes_per_element"), CASES, ids=range(len(CASES)))
def test_matrices_take_their_bits_and_their_groups_scales(
    given: dict[str, Any], bytes_per_element: float
) -> None:
    expected = round((ATTENTION + MLP) * bytes_per_element) + 2 * KEPT
    assert weight_bytes(quantized(given)) == pytest.approx(expected, abs=1)


def test_a_published_checkpoint_of_4_bits_has_that_size() -> None:
    """Qwen2.5-72B-Instruct-AWQ: 41.6 GB of files on its page."""
    assert weight_bytes(read("Qwen/Qwen2.5-72B-Instruct-AWQ")) / 1e9 == pytest.approx(41.6, abs=0.1)


def test_a_published_checkpoint_with_experts_of_4_bits_has_that_size() -> None:
    """Kimi-K2-Thinking: 594 GB of files; attention and shared experts in 16 bits."""
    names = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]
    given = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": weights_group(num_bits=4, type="int", group_size=32, symmetric=True),
        "ignore": names,
    }
    model = read("moonshotai/Kimi-K2-Instruct", quantization_config=given)
    assert weight_bytes(model) / 1e9 == pytest.approx(594, abs=1)


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("ignore", ["lm_head", "re:.*self_attn.*"]),
        ("modules_to_not_convert", ["self_attn"]),
        ("exclude_modules", ["lm_head", "model.layers.*.self_attn*"]),
    ],
)
def test_attention_that_is_left_out_keeps_16_bits(key: str, names: list[str]) -> None:
    given = {"quant_method": "fp8", key: names}
    assert weight_bytes(quantized(given)) == 2 * ATTENTION + MLP + 2 * KEPT
    # one layer's attention, or the one of images, is not all of it
    for partly in (["model.layers.0.self_attn.q_proj"], ["vision_model.self_attn"], ["lm_head"]):
        given = {"quant_method": "fp8", key: partly}
        assert weight_bytes(quantized(given)) == ATTENTION + MLP + 2 * KEPT


@pytest.mark.parametrize(
    ("given", "file", "size"),
    [
        (None, None, 2),
        ({"quant_method": "fp8"}, None, 2),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, None, 1),
        (None, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, 1),
        (None, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None}}, 2),
        (None, {"quantization": {"kv_cache_quant_algo": "INT8"}}, 1),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
            },
            None,
            1,
        ),
    ],
)
def test_the_cache_has_8_bits_where_the_files_say_so(
    given: dict[str, Any] | None, file: dict[str, Any] | None, size: int
) -> None:
    assert kv_bytes_per_token(quantized(given, file)) == 65_536 * size


def test_experts_alone_of_gpt_oss_have_4_bits() -> None:
    model = read("openai/gpt-oss-120b")
    experts = 36 * 128 * 3 * 2880 * 2880
    rest = sum(parameter_terms(model).values()) - experts
    assert weight_bytes(model) == experts * 17 // 32 + 2 * rest


def test_layers_of_mixed_precision_are_named_or_counted_in_16_bits() -> None:
    layers = {
        "model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "NVFP4"},
        "model.layers.0.mlp.gate_proj": {"quant_algo": "FP8"},
    }
    given = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    model = quantized(given | {"quantized_layers": layers})
    assert weight_bytes(model) == 2 * ATTENTION + MLP + 2 * KEPT
    assert model.assumptions == ()
    unnamed = quantized(given)
    assert weight_bytes(unnamed) == 2 * (ATTENTION + MLP + KEPT)
    assert "MIXED_PRECISION without quantized_layers" in unnamed.assumptions[0]


def test_what_a_file_leaves_open_is_said() -> None:
    model = quantized({"quant_method": "compressed-tensors", "format": "pack-quantized"})
    assert model.assumptions == ("4 bits are counted: config_groups is missing",)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "gguf"}, "quant_method 'gguf' is not supported yet"),
    ({"quant_method": "mxfp4"}, "quant_method 'mxfp4'"),
    ({"quant_method": "gptq"}, "bits must be a whole number"),
    ({"quant_method": "gptq", "bits": 7}, "bits 7 is not supported"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size must be a whole number"),
    ({"quant_method": "bitsandbytes"}, "must set one of load_in_4bit and load_in_8bit"),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": True},
        "must set one of",
    ),
    ({"quant_method": "compressed-tensors"}, "format None"),
    ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format 'marlin-24'"),
    ({"quant_method": "compressed-tensors", "config_groups": [1]}, "config_groups must be"),
    ({"quant_method": "compressed-tensors", "config_groups": {"a": 1}}, "weights of config_groups"),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": weights_group(num_bits=4, type="x"),
        },
        "type 'x' of 4 bits is not supported",
    ),
    ({"quant_algo": "W2A2"}, "quant_algo 'W2A2' is not supported yet"),
    ({"quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo 'NVFP4'"),
    ({"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 4}}, "num_bits 4 of kv_cache_scheme"),
    ({"quant_method": "fp8", "ignore": "lm_head"}, "ignore must be a list"),
]


@pytest.mark.parametrize(("given", "problem"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_understood_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        quantized(given)
    assert error.value.where == "x.json"
    assert error.value.fix


def test_two_files_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"quant_method 'awq' contradicts hf_quant_config\.json"):
        quantized({"quant_method": "awq"}, {"quantization": {"quant_algo": "FP8"}})
