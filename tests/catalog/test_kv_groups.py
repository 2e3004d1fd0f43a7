"""Layers that keep different tokens share one pool of blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.catalog import (
    GIB,
    GqaAttention,
    GroupingRule,
    KvGroups,
    LayerGroup,
    LayerKind,
    LayerType,
    Model,
    blocks_per_request,
    compute_budget,
    explain_model,
    get_gpu,
    get_model,
    kv_groups,
    list_models,
    model_from_config,
)
from kvsim.catalog.kv import kv_bytes_per_group_token
from kvsim.catalog.kv_layers import hybrid_bytes, layer_kvs, unified_bytes
from kvsim.errors import InputError

CONFIGS = Path(__file__).parent / "data" / "model_configs.jsonl"


@pytest.mark.parametrize(
    ("name", "layers", "types"),
    [
        ("gemma-3-27b", 10, [("sliding", 1024, 52, 6), ("full", None, 10, 1)]),
        ("gemma-3-1b", 4, [("sliding", 512, 22, 6), ("full", None, 4, 1)]),
        ("mistral-7b-v0.1", 32, [("sliding", 4096, 32, 1)]),
        ("llama-4-maverick", 12, [("chunked", 8192, 36, 3), ("full", None, 12, 1)]),
        ("llama-3-8b", 32, [("full", None, 32, 1)]),
        ("deepseek-v3", 61, [("full", None, 61, 1)]),
    ],
)
def test_layers_are_grouped_as_vllm_groups_them(
    name: str, layers: int, types: list[tuple[LayerKind, int | None, int, int]]
) -> None:
    """52 and 10 layers: groups of 10, six of which (8 padding layers) have the window."""
    assert kv_groups(get_model(name)) == KvGroups(layers, tuple(LayerType(*one) for one in types))


@pytest.mark.parametrize(
    ("counts", "rule", "padding", "waste_percent"),
    [
        ((19, 18), "min", 17, 89.47),
        ((19, 18), "max_if_close", 1, 5.56),
        ((20, 30), "min", 10, 33.33),
        ((10, 16), "min", 4, 25.0),
        ((20, 30), "gcd", 0, 0.0),
        ((10, 16), "gcd", 0, 0.0),
    ],
)
def test_the_rule_decides_how_many_layers_are_padding(
    counts: tuple[int, int], rule: GroupingRule, padding: int, waste_percent: float
) -> None:
    """vllm pulls 29303 and 56445; waste is the padding over the layers of the padded type."""
    attention = get_model("llama-3-8b").attention
    split = (LayerGroup(counts[0], attention), LayerGroup(counts[1], attention, 128))
    groups = kv_groups(replace(get_model("llama-3-8b"), groups=split), rule=rule)
    assert groups.padding_layers == padding
    padded = max(groups.types, key=lambda one: one.groups * groups.layers - one.layers)
    assert round(100 * padding / padded.layers, 2) == waste_percent


@pytest.mark.parametrize("name", ["gemma-3-27b", "mistral-7b-v0.1", "llama-4-maverick"])
def test_unified_is_one_group_of_all_layers_that_keep_every_token(name: str) -> None:
    model = get_model(name)
    groups = kv_groups(model, rule="unified")
    assert groups == KvGroups(model.layers, (LayerType("full", None, model.layers),))
    assert groups.is_uniform
    assert not kv_groups(model).is_uniform


def test_a_unified_server_bills_llama_4_for_every_layer_at_full_length() -> None:
    """vllm issue 16118, 0.8.3: 24.00 GiB for 1,048,576 tokens on each of 8 GPUs."""
    model = get_model("llama-4-maverick")
    groups = kv_groups(model, tp=8, rule="unified")
    per_block = 16 * kv_bytes_per_group_token(model, groups.layers, tp=8)
    blocks = blocks_per_request(groups, 1_048_576, block_size=16, max_in_flight=8192)
    assert blocks * per_block == 24 * GIB


@pytest.mark.parametrize(
    ("counts", "layers", "groups"),
    [((12, 12), 12, 2), ((12, 17), 17, 2), ((12, 18), 12, 3), ((20, 4), 4, 6)],
)
def test_types_of_nearly_the_same_number_of_layers_make_one_group_each(
    counts: tuple[int, int], layers: int, groups: int
) -> None:
    model = get_model("llama-3-8b")
    attention = model.attention
    split = (LayerGroup(counts[0], attention, 128), LayerGroup(counts[1], attention))
    found = kv_groups(replace(model, groups=split))
    assert (found.layers, found.num_groups) == (layers, groups)


@pytest.mark.parametrize(
    ("name", "pool_gib", "kib", "blocks", "max_model_len", "each", "concurrency"),
    [
        ("gemma-3-27b", 109.86, 1280, (89_990, 90_000), 4096, 256 + 6 * 257, 50.05),
        ("gemma-3-1b", 25.39, 64, (415_900, 416_009), 2048, 128 + 6 * 129, 461.21),
    ],
)
def test_blocks_and_concurrency_are_those_of_real_start_ups(
    name: str,
    pool_gib: float,
    kib: int,
    blocks: tuple[int, int],
    max_model_len: int,
    each: int,
    concurrency: float,
) -> None:
    """vLLM 0.11 on an MI300X and 0.13 on a 32-GB GPU; the pools are printed with two digits."""
    model = get_model(name)
    groups = kv_groups(model)
    block_bytes = 16 * kv_bytes_per_group_token(model, groups.layers)
    assert block_bytes == kib * 1024
    found = int(pool_gib * GIB) // block_bytes
    assert blocks[0] <= found <= blocks[1]
    one = blocks_per_request(groups, max_model_len, block_size=16, max_in_flight=8192)
    assert one == each
    assert found / one == pytest.approx(concurrency, rel=1e-3)


def test_the_budget_counts_blocks_of_one_group() -> None:
    gpu = get_gpu("h100")
    settings = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "tp": 2}
    budget = compute_budget(get_model("gemma-3-27b"), gpu, **settings)
    assert budget.block_bytes == 16 * 10 * 8 * 2 * 128 * 2
    assert budget.num_blocks == budget.kv_pool.bytes // budget.block_bytes


def test_a_long_request_holds_its_windows_and_what_is_in_flight() -> None:
    groups = KvGroups(10, (LayerType("sliding", 1024, 10), LayerType("full", None, 10)))
    assert blocks_per_request(groups, 100_000, block_size=16, max_in_flight=2048) == 193 + 6250
    assert blocks_per_request(groups, 100_000, block_size=16, max_in_flight=4096) == 321 + 6250


def split(kv_heads: int) -> Model:
    """Half the layers keep a window and have 8 KV heads, the others so many."""
    model = get_model("llama-3-8b")
    other = GqaAttention(heads=32, kv_heads=kv_heads, head_dim=128, v_head_dim=128)
    return replace(model, groups=(LayerGroup(16, model.attention, 128), LayerGroup(16, other)))


def test_blocks_of_narrower_layers_hold_more_tokens() -> None:
    """Half the bytes per token, twice the tokens: blocks of all layers are of one size."""
    groups = kv_groups(split(4))
    assert groups.types == (LayerType("sliding", 128, 16), LayerType("full", None, 16, 1, 2))
    assert blocks_per_request(groups, 3200, block_size=16, max_in_flight=3200) == 201 + 100
    assert kv_bytes_per_group_token(split(4), 16) == 16 * 2 * 8 * 128 * 2
    with pytest.raises(InputError, match="cannot share one block table"):
        kv_groups(split(4), rule="unified")


def test_a_real_model_with_two_widths_takes_the_blocks_of_its_log() -> None:
    """C093: Gemma-4-26B with an 8-bit cache, 98,304 tokens: 3,072 and 5 * 193 blocks."""
    rows = (json.loads(line) for line in CONFIGS.read_text(encoding="utf-8").splitlines())
    config = next(row["config"] for row in rows if row["model"] == "google/gemma-4-26B-A4B")
    model = model_from_config(config, name="gemma-4-26b", source="config.json")
    groups = kv_groups(model, kv_dtype_bytes=1)
    needed = blocks_per_request(groups, 98_304, block_size=16, max_in_flight=2048)
    assert needed == 3072 + 5 * 193


def test_layers_whose_sizes_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="do not divide") as error:
        kv_groups(split(3))
    assert error.value.fix


def test_layer_types_may_be_listed_one_by_one() -> None:
    config = {
        "model_type": "gemma3_text",
        "hidden_size": 1152,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "vocab_size": 262_144,
        "max_position_embeddings": 32_768,
        "torch_dtype": "bfloat16",
        "sliding_window": 512,
        "layer_types": ["full_attention"] + ["sliding_attention"] * 3,
    }
    groups = model_from_config(config, name="x", source="x.json").groups
    assert [(group.layers, group.window) for group in groups] == [(1, None), (3, 512)]


def test_an_explained_model_says_which_layers_have_a_window() -> None:
    facts = [fact for fact in explain_model(get_model("gemma-3-27b")) if "window" in fact.name]
    assert [(fact.value, fact.unit) for fact in facts] == [(1024, "tokens")]
    assert facts[0].source.endswith("52 layers")
    names = {fact.name for fact in explain_model(get_model("llama-3-8b"))}
    assert "sliding_window" not in names


def test_every_model_of_the_catalogue_has_groups() -> None:
    for name in list_models():
        model = get_model(name)
        groups = kv_groups(model)
        kept = sum(group.layers for group in model.groups if group.kind != "none")
        assert groups.layers * groups.num_groups >= kept


def test_a_gpt_oss_120b_needs_what_its_server_asked_for() -> None:
    """vllm issue 27508: 4.54 GiB for one request of 131,072 tokens at 1,024 tokens per step."""
    model = get_model("gpt-oss-120b")
    groups = kv_groups(model)
    blocks = blocks_per_request(groups, 131_072, block_size=16, max_in_flight=1024)
    block_bytes = 16 * kv_bytes_per_group_token(model, groups.layers)
    assert blocks * block_bytes / GIB == pytest.approx(4.54, abs=0.01)
    unified = kv_groups(model, rule="unified")
    whole = blocks_per_request(unified, 131_072, block_size=16, max_in_flight=1024)
    assert whole * 16 * kv_bytes_per_group_token(model, unified.layers) / GIB == 9.0


def test_a_sequence_of_gpt_oss_120b_takes_half_of_what_a_planner_billed() -> None:
    """aiconfigurator pull 1537, fp8 cache: 2.2637 GiB billed, 1.1341 GiB taken."""
    layers = layer_kvs(get_model("gpt-oss-120b"), kv_dtype_bytes=1)
    assert unified_bytes(layers, 65_536 + 400) / GIB == pytest.approx(2.2637, abs=5e-5)
    assert hybrid_bytes(layers, 65_536 + 400) / GIB == pytest.approx(1.1341, abs=5e-5)
