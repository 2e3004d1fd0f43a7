"""Layers with chunked-local attention, and layers that keep a state instead of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvsim.catalog import (
    GIB,
    GatedDeltaNet,
    KvGroups,
    LayerGroup,
    LayerType,
    blocks_per_request,
    compute_budget,
    explain_model,
    get_gpu,
    get_model,
    kv_groups,
    model_from_config,
)
from kvsim.catalog.kv import kv_bytes_per_group_token
from kvsim.catalog.kv_layers import hybrid_bytes, layer_kvs
from kvsim.errors import InputError

MIB = 1 << 20
QWEN3_NEXT = GatedDeltaNet(16, 32, 128, 128, 4, state_dtype_bytes=2)
"""config.json of Qwen/Qwen3-Next-80B-A3B-Instruct; vLLM 0.11 kept its states in 16 bits."""


def test_a_27b_model_with_linear_attention_keeps_kv_in_16_of_64_layers() -> None:
    """lmstudio bug 1862: 16,384 MiB at 262,144 tokens; 598.5 MiB of states in four slots."""
    model = get_model("qwen3.5-27b")
    state, full = layer_kvs(model)
    assert (state.kind, state.layers, full.kind, full.layers) == ("state", 48, "full", 16)
    assert full.request_bytes(262_144) == 16_384 * MIB
    assert state.request_bytes(1) == state.request_bytes(262_144)
    # llama.cpp keeps the inputs of the convolution in 32 bits too
    net = model.groups[0].attention
    assert isinstance(net, GatedDeltaNet)
    assert 4 * 48 * replace(net, conv_dtype_bytes=4).state_bytes(1) == 598.5 * MIB
    assert hybrid_bytes([state, full], 262_144) == 16_384 * MIB + 48 * net.state_bytes(1)


def test_blocks_grow_until_a_state_fits_as_in_a_real_start_up() -> None:
    """FIELD.md, log C096: fp8, tp 2, 4.99 GiB: 16 x 1,568 KiB, 4 groups, 208 blocks, 84 each."""
    model = get_model("qwen3.5-27b")
    groups = kv_groups(model, tp=2, kv_dtype_bytes=1)
    types = (LayerType("state", None, 48, 3), LayerType("full", None, 16, 1))
    assert groups == KvGroups(16, types, 1566)
    size = groups.block_tokens(16)
    block_bytes = size * kv_bytes_per_group_token(model, 16, tp=2, kv_dtype_bytes=1)
    assert (size, block_bytes) == (1568, 16 * 1568 * 1024)
    assert int(4.99 * GIB) // block_bytes == 208
    assert blocks_per_request(groups, 131_072, block_size=size, max_in_flight=8192) == 84 + 3
    assert groups.block_tokens(2048) == 2048


def test_qwen3_next_has_blocks_of_544_tokens() -> None:
    """FIELD.md, log C145: tp 2, 44.59 GiB: 12 x 544 KiB, 7,162 blocks, 482 + 3 per request."""
    model = get_model("qwen3.5-27b")
    attention = replace(model.attention, heads=16, kv_heads=2)
    split = (LayerGroup(36, QWEN3_NEXT), LayerGroup(12, attention))
    model = replace(model, groups=split)
    groups = kv_groups(model, tp=2)
    size = groups.block_tokens(16)
    block_bytes = size * kv_bytes_per_group_token(model, groups.layers, tp=2)
    assert (size, groups.num_groups, block_bytes) == (544, 4, 12 * 544 * 1024)
    assert abs(int(44.59 * GIB) // block_bytes - 7162) <= 1
    assert blocks_per_request(groups, 262_144, block_size=size, max_in_flight=8192) == 482 + 3


def test_the_budget_counts_grown_blocks() -> None:
    settings: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 256}
    budget = compute_budget(get_model("qwen3.5-27b"), get_gpu("h100"), **settings)
    assert budget.block_bytes == 784 * 16 * 4096
    larger = compute_budget(get_model("qwen3.5-27b"), get_gpu("h100"), block_size=1024, **settings)
    assert larger.block_bytes == 1024 * 16 * 4096


def test_a_state_has_no_place_in_one_group_of_all_layers() -> None:
    with pytest.raises(InputError, match="keep a state instead of tokens") as error:
        kv_groups(get_model("qwen3.5-27b"), rule="unified")
    assert error.value.where == "layer_groups"
    assert error.value.fix


@pytest.mark.parametrize(
    ("tokens", "block_size", "blocks"),
    [(100_000, 16, 640), (1000, 16, 63), (100_000, 24, 428), (100_000, 8192, 2)],
)
def test_a_chunked_group_holds_a_chunk_and_what_is_in_flight(
    tokens: int, block_size: int, blocks: int
) -> None:
    """FIELD.md section 2: ceil(min(chunk + T, len) / B); one more where chunks cut blocks."""
    groups = KvGroups(12, (LayerType("chunked", 8192, 12),))
    found = blocks_per_request(groups, tokens, block_size=block_size, max_in_flight=2048)
    assert found == blocks


LLAMA_4: dict[str, Any] = {
    "model_type": "llama4_text",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_chunk_size": 32,
    "interleave_moe_layer_step": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 1,
    "intermediate_size": 128,
    "intermediate_size_mlp": 256,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("listed", "chunked"), [([], 6), (None, 6), ([1, 1, 0, 1, 0, 1, 1, 1], 6), ([1] * 7 + [0], 7)]
)
def test_layers_without_rotary_embedding_attend_to_everything(
    listed: list[int] | None, chunked: int
) -> None:
    config = {**LLAMA_4, "no_rope_layers": listed}
    model = model_from_config(config, name="x", source="x.json")
    found = {group.kind: (group.layers, group.limit_tokens) for group in model.groups}
    assert found == {"chunked": (chunked, 32), "full": (8 - chunked, None)}
    assert model.moe is not None
    assert (model.moe.dense_layers, model.moe.shared_experts, model.intermediate) == (4, 1, 256)


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        (None, "layer_types must be a list"),
        (["full_attention", "sliding_attention"], "'sliding_attention' is not covered"),
        ([["full_attention"]], "is not covered"),
    ],
)
def test_layer_types_that_are_not_understood_are_refused(types: Any, problem: str) -> None:
    config = {**LLAMA_4, "model_type": "qwen3_5_text", "head_dim": 16, "layer_types": types}
    with pytest.raises(InputError, match=problem) as error:
        model_from_config(config, name="x", source="x.json")
    assert error.value.where == "x.json"
    assert error.value.fix


def test_explained_models_say_what_such_layers_keep() -> None:
    chunk = {fact.name: fact for fact in explain_model(get_model("llama-4-maverick"))}
    assert (chunk["attention_chunk"].value, chunk["attention_chunk"].unit) == (8192, "tokens")
    assert chunk["kv_request.chunked 8192"].value == 36 * 4096 * 8192
    state = {fact.name: fact for fact in explain_model(get_model("qwen3.5-27b"), tp=2)}
    assert state["state_bytes"].value == 24 * 128 * 128 * 4 + 3 * 5120 * 2
    assert state["kv_request.state"].value == 48 * state["state_bytes"].value
    assert "kv_request.unified" not in state
    # 16 of the 64 layers: 16 * 2 * 2 * 256 * 2 with half of the 4 heads on each GPU
    assert state["kv_bytes_per_token"].value == 32_768
    for name in ("kv_bytes_per_token", "naive_kv_bytes_per_token"):
        assert state[name].source.startswith("16 layers that keep tokens * ")
        assert chunk[name].source.startswith("layers * ")


@pytest.mark.parametrize(("tp", "where"), [(3, "tp"), (5, "tp")])
def test_states_are_divided_over_gpus_or_refused(tp: int, where: str) -> None:
    with pytest.raises(InputError, match="linear-attention") as error:
        QWEN3_NEXT.state_bytes(tp)
    assert error.value.where == where
