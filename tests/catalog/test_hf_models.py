"""Real configurations: KV bytes per token and parameters against figures from outside."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

import pytest

from kvsim.catalog import (
    explain_model,
    get_model,
    kv_bytes_per_token,
    model_from_config,
    parameters,
    weight_bytes,
)
from kvsim.catalog.compressed_bytes import kept_bytes
from kvsim.catalog.kv_layers import layer_kvs
from kvsim.errors import InputError
from tests.catalog.hf_rows import ROWS, by_hand, read, read_row, row
from tests.timing import slow

SIZED = [one for one in ROWS if "parameters" in one]


def name_of(one: dict[str, Any]) -> str:
    return str(one["model"])


def test_the_data_covers_what_it_should() -> None:
    """80 rows of public configurations and older families, each with a source."""
    assert len(ROWS) >= 170
    assert len(SIZED) >= 140
    assert all(one["source"] for one in ROWS)
    assert all("note" in one for one in ROWS if "parameters" not in one)
    assert len({one["config"].get("model_type") for one in ROWS}) >= 60


@pytest.mark.parametrize("one", [one for one in ROWS if "kv" in one], ids=name_of)
def test_kv_bytes_per_token_equal_the_figure_by_hand(one: dict[str, Any]) -> None:
    assert by_hand(one["kv"]) == one["kv_bytes_per_token"]
    assert kv_bytes_per_token(read_row(one)) == one["kv_bytes_per_token"]


@pytest.mark.parametrize("one", [one for one in ROWS if "kv" not in one], ids=name_of)
def test_what_a_compressed_past_keeps_equals_the_figure_by_hand(one: dict[str, Any]) -> None:
    """No bytes per token: the figure is that of a request of the model's full length."""
    model, tokens = read_row(one), one["kept_tokens"]
    assert model.max_position == tokens
    assert kept_bytes(model, tokens, 1) == by_hand(one["kept_8_bits"])
    with pytest.raises(InputError, match="compress_ratios"):
        kv_bytes_per_token(model)


@pytest.mark.parametrize("one", SIZED, ids=name_of)
def test_parameters_agree_with_the_published_size(one: dict[str, Any]) -> None:
    found = parameters(read_row(one))
    if one.get("exact"):
        assert found == one["parameters"]
    else:
        assert found == pytest.approx(one["parameters"], rel=0.01)


def test_most_published_sizes_are_met_to_the_last_parameter() -> None:
    assert sum(one.get("exact", False) for one in SIZED) >= 100


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "block_configs"),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "compress_ratios"),
        ("MiniMaxAI/MiniMax-Text-01", "attn_type_list"),
    ],
)
def test_a_list_of_layers_that_is_left_out_is_named(model: str, field: str) -> None:
    """Of a family that says there what each layer is: nothing is guessed."""
    one = row(model)
    with pytest.raises(InputError, match=field) as error:
        read_row(one, **{field: None})
    assert error.value.where == one["source"]
    assert error.value.fix


@pytest.mark.parametrize("one", ROWS, ids=name_of)
def test_every_model_explains_each_of_its_figures(one: dict[str, Any]) -> None:
    """Every fact has a source and a name of its own; the KV formula gives the KV figure."""
    model = read_row(one)
    facts = explain_model(model)
    names = [fact.name for fact in facts if fact.name not in ("assumption", "sliding_window")]
    assert len(names) == len(set(names))
    assert all(fact.source for fact in facts)
    assert {fact.name: fact.value for fact in facts}["weights"] == weight_bytes(model)


def test_a_real_start_up_confirms_index_keys_on_21_of_78_layers() -> None:
    """GLM-5.3, fp8 cache, one rank of four: 53,763 blocks of 64 tokens, 47,700 bytes each."""
    model = read("zai-org/GLM-5.2")
    assert kv_bytes_per_token(model, tp=4, kv_dtype_bytes=1) == 47_700
    assert kv_bytes_per_token(model, kv_dtype_bytes=2) == 78 * 576 * 2 + 21 * 132


def test_a_real_pool_confirms_the_states_of_nemotron_nano() -> None:
    """SGLang: 16,384 bytes per token; 6.46 GB for 49 slots of 27 Mamba layers."""
    model = read("nvidia/NVIDIA-Nemotron-Nano-9B-v2")
    assert kv_bytes_per_token(model) == 16_384
    state = next(one for one in layer_kvs(model) if one.kind == "state")
    inputs = 3 * (128 * 80 + 2 * 8 * 128) * 2
    assert (state.layers, state.state_bytes) == (27, 128 * 80 * 128 * 4 + inputs)
    assert 49 * 27 * (state.state_bytes - inputs) / (1 << 30) == pytest.approx(6.46, abs=0.01)


def test_the_case_of_a_trillion_parameters_on_eight_gpus() -> None:
    """InferenceX issue 1587: 8.58 GiB per GPU for 262,144 tokens of 8 bits, 17.16 in 16 bits."""
    model = read("nvidia/Kimi-K2.5-NVFP4")
    assert kv_bytes_per_token(model, tp=8) == 35_136
    assert 262_144 * kv_bytes_per_token(model, tp=8) / (1 << 30) == pytest.approx(8.58, abs=0.01)
    assert kv_bytes_per_token(model, tp=8, kv_dtype_bytes=2) == 70_272


def test_weights_of_gptq_do_not_change_the_cache() -> None:
    """vllm issue 22291: 57,344 bytes per token, 0.1641 GiB for 3,072 tokens."""
    model = read("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8")
    assert 3072 * kv_bytes_per_token(model) / (1 << 30) == pytest.approx(0.1641, abs=0.0001)


def test_gemma_4_keeps_pages_of_equal_size_as_a_real_start_up_shows() -> None:
    """Log C093: a full layer's page holds 32 tokens where a sliding layer's holds 16."""
    model = read("google/gemma-4-26B-A4B")
    sliding, full = layer_kvs(model, kv_dtype_bytes=1)
    assert 16 * sliding.bytes_per_token == 32 * full.bytes_per_token == 64 * 1024


def test_reading_a_configuration_takes_less_than_five_milliseconds() -> None:
    """The median over the rows, and the fastest of three of each."""
    taken = []
    for one in ROWS:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            read_row(one)
            times.append(time.perf_counter() - start)
        taken.append(min(times))
    assert statistics.median(taken) < slow(0.002, time.perf_counter)
    assert max(taken) < slow(0.005, time.perf_counter)


def test_the_catalogue_imports_neither_numpy_nor_pydantic() -> None:
    code = "import sys, kvsim.catalog; print({'numpy', 'pydantic'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_the_catalogue_and_the_files_of_the_same_model_agree() -> None:
    assert read("qwen3-14b") != get_model("qwen3-8b")
    for listed, one in (("deepseek-v3", "deepseek-ai/DeepSeek-V3"), ("yi-34b", "yi-34b")):
        assert get_model(listed).groups == read(one).groups
        assert parameters(get_model(listed)) == parameters(read(one))


def test_a_file_without_type_names_its_architecture() -> None:
    config = {key: value for key, value in read_config("yi-34b").items() if key != "model_type"}
    model = model_from_config(config, name="x", source="x.json")
    assert parameters(model) == 34_388_917_248


def read_config(model: str) -> dict[str, Any]:
    return dict(next(one["config"] for one in ROWS if one["model"] == model))
