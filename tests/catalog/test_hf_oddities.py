"""Each way in which public configurations leave the usual form, with figures by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog import (
    GqaAttention,
    MlaAttention,
    Model,
    blocks_per_request,
    kv_bytes_per_token,
    kv_groups,
    model_from_config,
    parameters,
)
from kvsim.catalog.kv_layers import hybrid_bytes, layer_kvs
from kvsim.catalog.weights import dense_layers, dense_mlps, moe_layers, parameter_terms
from kvsim.errors import InputError
from tests.catalog.hf_rows import read, row

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


LLAMA_4: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "intermediate_size_mlp": 64,
}


def small(kind: str, **changes: Any) -> Model:
    """A tiny model of this type."""
    return model_from_config(BASE | {"model_type": kind} | changes, name="x", source="x.json")


def kinds(model: Model) -> dict[str, tuple[int, int | None]]:
    """Layers and tokens kept at most, by kind."""
    return {group.kind: (group.layers, group.limit_tokens) for group in model.groups}


def test_head_dim_is_taken_from_the_file_or_divided() -> None:
    """Qwen3-4B: 147,456 bytes with the stated 128 elements, 92,160 with 2560 / 32."""
    assert kv_bytes_per_token(read("Qwen/Qwen3-4B")) == 147_456
    assert kv_bytes_per_token(read("Qwen/Qwen3-4B", head_dim=None)) == 92_160
    with pytest.raises(InputError, match="hidden_size 64 is no multiple of num_attention_heads 5"):
        small("llama", num_attention_heads=5, num_key_value_heads=5)


@pytest.mark.parametrize(
    "outer", ["text_config", "llm_config", "language_config", "thinker_config"]
)
def test_the_language_part_is_found_inside(outer: str) -> None:
    inner = BASE | {"model_type": "qwen2", "torch_dtype": "float32"}
    config = {"model_type": "some_vision_model", "torch_dtype": "bfloat16", outer: inner}
    model = model_from_config(config, name="x", source="x.json")
    assert kv_bytes_per_token(model) == 8 * 2 * (16 + 16) * 4
    nested = {"model_type": "a", "thinker_config": {"model_type": "b", "text_config": inner}}
    assert model_from_config(nested, name="x", source="x.json").groups == model.groups


def test_outer_quantization_and_tied_embeddings_hold_for_the_language_part() -> None:
    inner = BASE | {"model_type": "qwen2", "tie_word_embeddings": False}
    outer = {"quantization_config": {"quant_method": "fp8"}, "tie_word_embeddings": True}
    config = {"model_type": "a", "text_config": inner, **outer}
    model = model_from_config(config, name="x", source="x.json")
    assert (model.weight_dtype, model.tied_embeddings) == ("fp8", True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 32}, {"full": (8, None)}),
        ({"sliding_window": 32}, {"full": (8, None)}),
        (
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 5},
            {"full": (5, None), "sliding": (3, 32)},
        ),
        (
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 8},
            {"full": (8, None)},
        ),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 32,
                "layer_types": ["sliding_attention"] * 6 + ["full_attention"] * 2,
            },
            {"sliding": (6, 32), "full": (2, None)},
        ),
    ],
)
def test_qwen_has_windows_where_the_file_switches_them_on(
    change: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert kinds(small("qwen2", **change)) == expected


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("mistral", {"sliding_window": 32}, {"sliding": (8, 32)}),
        ("mistral", {"sliding_window": None}, {"full": (8, None)}),
        ("gemma2", {"sliding_window": 32}, {"sliding": (4, 32), "full": (4, None)}),
        ("gemma3_text", {"sliding_window": 32}, {"sliding": (7, 32), "full": (1, None)}),
        (
            "gemma3_text",
            {"sliding_window": 32, "sliding_window_pattern": 2},
            {"sliding": (4, 32), "full": (4, None)},
        ),
        ("cohere2", {"sliding_window": 32}, {"sliding": (6, 32), "full": (2, None)}),
        (
            "exaone4",
            {"sliding_window": 32, "sliding_window_pattern": "LG"},
            {"sliding": (4, 32), "full": (4, None)},
        ),
        ("exaone4", {"sliding_window": None}, {"full": (8, None)}),
        ("olmo3", {"sliding_window": 32}, {"sliding": (6, 32), "full": (2, None)}),
        ("llama4", LLAMA_4 | {"attention_chunk_size": None}, {"full": (8, None)}),
        ("llama4", LLAMA_4 | {"attention_chunk_size": 32}, {"chunked": (6, 32), "full": (2, None)}),
        (
            "llama4",
            LLAMA_4
            | {
                "attention_chunk_size": 32,
                "layer_types": ["chunked_attention"] * 7 + ["full_attention"],
            },
            {"chunked": (7, 32), "full": (1, None)},
        ),
    ],
)
def test_windows_follow_the_familys_pattern(
    kind: str, change: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert kinds(small(kind, **change)) == expected


def test_layers_that_use_anothers_keys_keep_none_of_their_own() -> None:
    """Gemma 3n E4B: 35 layers, the last 15 without KV; every fifth layer is full."""
    model = read("google/gemma-3n-E4B")
    kept = {(one.kind, one.layers, one.bytes_per_token) for one in layer_kvs(model)}
    assert kept == {("sliding", 16, 2048), ("full", 4, 2048)}
    assert model.layers == 35
    groups = kv_groups(model)
    assert sum(one.layers for one in groups.types) == 20
    users = [one.attention for one in model.groups if one.kind == "none"]
    assert [(one.kv_elements(1), one.naive_kv_elements()) for one in users] == [(0, 0)] * 2
    with pytest.raises(InputError, match="num_kv_shared_layers 8 leaves no layer"):
        small("gemma3n", num_kv_shared_layers=8, layer_types=["full_attention"] * 8)


def test_gemma_3n_has_embeddings_for_each_layer_and_several_streams() -> None:
    """E4B: 35 layers, hidden 2048, 256 elements per layer; 4 streams, a residual of rank 64."""
    terms = parameter_terms(read("google/gemma-3n-E4B"))
    assert terms["per_layer_embeddings"] == 262_144 * 35 * 256
    inside = 35 * (2 * 2048 * 256 + 2048)
    assert terms["per_layer_projections"] == 2048 * 35 * 256 + 256 + inside
    assert terms["altup"] == 35 * (64 + 16 + 2048 * 4 + 2 * 2048) + 2 * 3 * 2048**2
    assert terms["laurel"] == 35 * (2 * 2048 * 64 + 2048)


def test_gemma_4_has_other_heads_in_full_layers() -> None:
    """26B-A4B: sliding 8 heads of 256, full 2 heads of 512 whose keys are the values' matrix."""
    sliding, full = (group.attention for group in read("google/gemma-4-26B-A4B").groups)
    assert isinstance(sliding, GqaAttention)
    assert isinstance(full, GqaAttention)
    assert (sliding.kv_heads, sliding.head_dim, full.kv_heads, full.head_dim) == (8, 256, 2, 512)
    assert full.matrices(2816, 1)[0] == ((16 + 2) * 512, 2816)
    assert full.kv_elements(1) == 2 * (512 + 512)


def test_gemma_4_layers_without_keys_may_have_wider_feed_forwards() -> None:
    config = row("google/gemma-4-26B-A4B")["config"]["text_config"] | {
        "enable_moe_block": False,
        "num_experts": None,
        "use_double_wide_mlp": True,
        "num_kv_shared_layers": 10,
    }
    model = model_from_config(config, name="x", source="x.json")
    assert model.mlp_layers == ((20, 2112), (10, 4224))


def test_mimo_has_other_heads_and_narrower_values_in_sliding_layers() -> None:
    full, sliding = layer_kvs(read("XiaomiMiMo/MiMo-V2-Flash"))
    assert (full.layers, full.bytes_per_token) == (9, 4 * (192 + 128) * 2)
    assert (sliding.layers, sliding.bytes_per_token) == (39, 8 * (192 + 128) * 2)
    with pytest.raises(InputError, match="attention_chunk_size 64 is not supported"):
        read("XiaomiMiMo/MiMo-V2-Flash", attention_chunk_size=64)


def test_step_has_other_query_heads_in_sliding_layers() -> None:
    full, sliding = (group.attention for group in read("stepfun-ai/Step-3.5-Flash").groups)
    assert isinstance(full, GqaAttention)
    assert isinstance(sliding, GqaAttention)
    assert (full.heads, sliding.heads, full.kv_heads, sliding.kv_heads) == (64, 96, 8, 8)
    assert moe_layers(read("stepfun-ai/Step-3.5-Flash")) == 42


def test_jamba_has_attention_in_one_layer_of_eight() -> None:
    """State per layer: 8192 channels * (16 states + 3 inputs) * 2 bytes."""
    state, full = layer_kvs(read("ai21labs/Jamba-v0.1"))
    assert (state.layers, state.state_bytes) == (28, 8192 * (16 + 3) * 2)
    assert (full.layers, full.bytes_per_token) == (4, 4096)
    assert moe_layers(read("ai21labs/Jamba-v0.1")) == 16


def test_nemotron_h_has_layers_of_one_kind_each() -> None:
    """56B: 118 layers: 54 Mamba, 54 feed-forward, 10 attention of 8 heads of 128."""
    model = read("nvidia/Nemotron-H-56B-Base-8K")
    assert [(group.kind, group.layers) for group in model.groups] == [
        ("state", 54),
        ("none", 54),
        ("full", 10),
    ]
    state, full = layer_kvs(model)
    assert state.state_bytes == 256 * 64 * 256 * 2 + 3 * (256 * 64 + 2 * 8 * 256) * 2
    assert hybrid_bytes([state, full], 1000) == 54 * state.state_bytes + 1000 * 40_960
    assert dense_mlps(model) == ((54, 32_768),)


def test_nemotron_3_experts_work_on_fewer_elements() -> None:
    """Super: 40 layers of 512 experts of 2 * 1024 * 2688 elements; shared 2 * 4096 * 5376."""
    model = read("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")
    assert model.moe is not None
    assert (model.moe.latent, moe_layers(model), dense_layers(model)) == (1024, 40, 0)
    experts = 40 * (512 * 2 * 1024 * 2688 + 2 * 4096 * 5376)
    assert parameter_terms(model)["experts"] == experts


def block(group: int | None, mult: float | None, **more: Any) -> dict[str, Any]:
    attention = {"n_heads_in_group": group, "no_op": group is None and not more}
    none = mult is None and not more
    return {"attention": attention | more, "ffn": {"ffn_mult": mult, "no_op": none} | more}


def test_nemotron_nas_has_layers_without_attention_or_feed_forward() -> None:
    """Widths are two thirds of `ffn_mult * hidden`, in steps of 256."""
    blocks = [
        block(8, 5.25),
        block(None, 5.25),
        block(4, None),
        block(8, 0.5),
        block(None, None, replace_with_linear=True),
    ]
    model = model_from_config(
        {
            "model_type": "nemotron-nas",
            "hidden_size": 8192,
            "num_hidden_layers": 5,
            "num_attention_heads": 64,
            "num_key_value_heads": None,
            "intermediate_size": None,
            "vocab_size": 128_256,
            "max_position_embeddings": 131_072,
            "torch_dtype": "bfloat16",
            "block_configs": blocks,
        },
        name="x",
        source="x.json",
    )
    assert kv_bytes_per_token(model) == (8 + 16 + 8) * (128 + 128) * 2
    assert model.mlp_layers == ((1, 2816), (2, 28_672))
    replaced = [one for one in model.groups if one.attention.matrices(8192, 1) == [(8192, 8192)]]
    assert [(one.kind, one.layers) for one in replaced] == [("none", 1)]
    terms = parameter_terms(model)
    assert terms["linear"] == 8192**2
    assert terms["mlp"] == 3 * 8192 * (2816 + 2 * 28_672)


def test_deci_lists_kv_heads_by_layer() -> None:
    model = small("deci", num_key_value_heads_per_layer=[4, 4, 2, 2, 1, 1, 1, 1])
    assert kv_bytes_per_token(model) == (8 + 4 + 4) * (16 + 16) * 2


def test_minimax_lists_linear_and_full_attention() -> None:
    """Text-01: a square matrix of 128 elements for each of 64 heads, in 70 of 80 layers."""
    state, full = layer_kvs(read("MiniMaxAI/MiniMax-Text-01"))
    assert (state.layers, state.state_bytes) == (70, 64 * 128 * 128 * 2)
    assert (full.layers, full.bytes_per_token) == (10, 8 * 256 * 2)
    with pytest.raises(InputError, match="attn_type_list has type 0, which is not covered"):
        read("MiniMaxAI/MiniMax-M2.7", attn_type_list=[0] * 62)
    with pytest.raises(InputError, match="attn_type_list has type 2"):
        read("MiniMaxAI/MiniMax-Text-01", attn_type_list=[2] * 80)


def test_minimax_m3_keeps_index_keys_of_16_bits() -> None:
    """57 sparse layers: 128 elements of 2 bytes whatever the cache's type and the GPUs."""
    model = read("MiniMaxAI/MiniMax-M3")
    assert kv_bytes_per_token(model, tp=4, kv_dtype_bytes=1) == 60 * 256 + 57 * 256
    sparse = row("MiniMaxAI/MiniMax-M3")["config"]["sparse_attention_config"]
    off = sparse | {"use_sparse_attention": False}
    assert kv_bytes_per_token(read("MiniMaxAI/MiniMax-M3", sparse_attention_config=off)) == 122_880
    values = sparse | {"sparse_disable_index_value": [0] * 60}
    with pytest.raises(InputError, match="sparse_disable_index_value"):
        read("MiniMaxAI/MiniMax-M3", sparse_attention_config=values)


@pytest.mark.parametrize(
    ("change", "heads"),
    [
        ({"multi_query": True, "new_decoder_architecture": False}, 1),
        ({"multi_query": False, "new_decoder_architecture": False}, 4),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"new_decoder_architecture": True}, 4),
        ({"n_head_kv": 2, "multi_query": False}, 2),
        ({}, 1),
    ],
)
def test_falcon_states_its_kv_heads_in_three_ways(change: dict[str, Any], heads: int) -> None:
    model = small("falcon", num_key_value_heads=None, intermediate_size=None, **change)
    assert kv_bytes_per_token(model) == 8 * heads * (16 + 16) * 2


def test_chatglm_has_groups_only_with_multi_query_attention() -> None:
    """ChatGLM3-6B: 2 groups of 128 elements; without the switch one KV head per head."""
    assert kv_bytes_per_token(read("THUDM/chatglm3-6b")) == 28 * 2 * 256 * 2
    without = read("THUDM/chatglm3-6b", multi_query_attention=False)
    assert kv_bytes_per_token(without) == 28 * 32 * 256 * 2


@pytest.mark.parametrize(
    ("attention", "heads"),
    [
        ({"attn_type": "multiquery_attention"}, 1),
        ({"attn_type": "grouped_query_attention", "kv_n_heads": 2}, 2),
        ({"attn_type": "multihead_attention"}, 4),
        ({"kv_n_heads": 2}, 2),
    ],
)
def test_mpt_has_its_kv_heads_in_attn_config(attention: dict[str, Any], heads: int) -> None:
    model = small("mpt", attn_config=attention, num_key_value_heads=None)
    assert kv_bytes_per_token(model) == 8 * heads * (16 + 16) * 2
    with pytest.raises(InputError, match="attn_type 'prefix' is not supported"):
        small("mpt", attn_config={"attn_type": "prefix"})


def test_latent_attention_with_and_without_a_low_rank_query() -> None:
    lite, v2 = read("deepseek-v2-lite"), read("deepseek-ai/DeepSeek-V2")
    for model, rank in ((lite, 0), (v2, 1536)):
        assert isinstance(model.attention, MlaAttention)
        assert model.attention.q_lora_rank == rank
    assert kv_bytes_per_token(v2, tp=8) == 69_120


def test_an_index_adds_132_bytes_on_its_layers() -> None:
    """FIELD.md section 2: 128 elements of one byte and a scale of four, at any cache type."""
    model = read("deepseek-ai/DeepSeek-V3.2")
    for size in (1, 2):
        assert kv_bytes_per_token(model, tp=8, kv_dtype_bytes=size) == 61 * (576 * size + 132)


def test_shared_indexes_are_listed_or_follow_a_period() -> None:
    """GLM-5.2: layers 0, 1, 2, then each fourth from 6 on: 21 of 78."""
    listed = read("zai-org/GLM-5.2")
    counted = read("zai-org/GLM-5.2", indexer_types=None)
    assert listed.groups == counted.groups
    assert [group.layers for group in listed.groups] == [21, 57]
    with pytest.raises(InputError, match="indexer type 'half' is not covered"):
        read("zai-org/GLM-5.2", indexer_types=["half"] * 78)
    assert kv_groups(listed).token_bytes == 78 * 576 * 2 + 21 * 132


def test_llama_4_chunks_and_rotary_layers() -> None:
    model = read("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert kinds(model) == {"chunked": (36, 8192), "full": (12, None)}


def test_cross_attention_layers_keep_the_images_tokens_only() -> None:
    """Llama 3.2 11B Vision: 32 layers for text, 8 for the image, 4096 bytes per token each."""
    model = read("meta-llama/Llama-3.2-11B-Vision")
    assert kv_bytes_per_token(model) == 32 * 4096
    layers = layer_kvs(model)
    assert {(one.kind, one.layers) for one in layers} == {("full", 32), ("cross", 8)}
    assert hybrid_bytes(layers, 43, 6193) == 32 * 4096 * 43 + 8 * 4096 * 6193
    with pytest.raises(InputError, match="cross-attention to an encoder's tokens"):
        kv_groups(model)


def test_qwen3_next_has_a_state_in_three_layers_of_four() -> None:
    state, full = layer_kvs(read("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert (state.layers, full.layers, full.bytes_per_token) == (36, 12, 2048)
    channels = 2 * 16 * 128 + 32 * 128
    assert state.state_bytes == (32 * 128 * 128 + 3 * channels) * 2


def test_kimi_linear_lists_both_kinds_of_layers() -> None:
    """32 heads of 128 * 128 elements in 32 bits, three inputs of three convolutions in 16."""
    state, full = layer_kvs(read("moonshotai/Kimi-Linear-48B-A3B-Instruct"))
    assert (state.layers, full.layers, full.bytes_per_token) == (20, 7, 1152)
    assert state.state_bytes == 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2
    linear = row("moonshotai/Kimi-Linear-48B-A3B-Instruct")["config"]["linear_attn_config"]
    changed = linear | {"kda_layers": [1, 2]}
    with pytest.raises(InputError, match="must name each of 27 layers once"):
        read("moonshotai/Kimi-Linear-48B-A3B-Instruct", linear_attn_config=changed)


def test_falcon_h1_has_attention_and_a_state_in_every_layer() -> None:
    """0.5B: 24 heads of 64 with 128 states, 1536 + 2 * 128 channels; 2 KV heads of 64."""
    model = read("tiiuae/Falcon-H1-0.5B-Base")
    (both,) = layer_kvs(model)
    assert (both.kind, both.layers, both.bytes_per_token) == ("full", 36, 512)
    assert both.state_bytes == 24 * 64 * 128 * 2 + 3 * (1536 + 2 * 128) * 2
    assert both.request_bytes(100) == 36 * (both.state_bytes + 512 * 100)
    groups = kv_groups(model)
    assert [(one.kind, one.layers, one.groups) for one in groups.types] == [
        ("full", 36, 1),
        ("state", 36, 1),
    ]
    assert groups.block_tokens(16) == 800  # the fewest whole blocks of 16 that hold a state
    assert blocks_per_request(groups, 1000, block_size=800, max_in_flight=1) == 2 + 1


def test_granite_4_and_bamba_mix_mamba_and_attention() -> None:
    granite, bamba = read("ibm-granite/granite-4.0-h-tiny"), read("ibm-ai-platform/Bamba-9B")
    assert kinds(granite) == {"state": (36, None), "full": (4, None)}
    assert kinds(bamba) == {"state": (29, None), "full": (3, None)}
    assert layer_kvs(bamba)[0].state_bytes == (8192 * 128 + 3 * (8192 + 256)) * 2
    dense = small(
        "granitemoehybrid", num_local_experts=0, shared_intermediate_size=96, intermediate_size=8
    )
    assert dense_mlps(dense) == ((8, 96),)
    assert dense.moe is None


def test_lfm2_keeps_two_inputs_of_a_convolution() -> None:
    state, full = layer_kvs(read("LiquidAI/LFM2-1.2B"))
    assert (state.layers, state.state_bytes) == (10, 2048 * 2 * 2)
    assert (full.layers, full.bytes_per_token) == (6, 2048)


def test_states_of_32_bits_are_asked_for_by_the_file() -> None:
    sixteen = read("Qwen/Qwen3.5-27B")
    config = row("Qwen/Qwen3.5-27B")["config"]["text_config"] | {"mamba_ssm_dtype": "bfloat16"}
    other = model_from_config(config, name="x", source="x.json")
    matrices = 48 * 128 * 128
    assert layer_kvs(sixteen)[0].state_bytes - layer_kvs(other)[0].state_bytes == 2 * matrices


def test_qwen_moe_has_experts_at_every_second_layer_and_a_gated_shared_one() -> None:
    sizes: dict[str, Any] = {
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 48,
    }
    model = small("qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[1], **sizes)
    assert (moe_layers(model), dense_layers(model)) == (3, 5)
    assert model.moe is not None
    assert (model.moe.shared_width, model.moe.shared_gate) == (48, True)
    norms = 17 * 64
    attention = 64 * (64 + 2 * 32) + 64 * 64 + 128
    experts = 8 * 3 * 64 * 32 + 3 * 64 * 48 + 9 * 64
    total = 2 * 64_000 + norms + 8 * attention + 5 * 3 * 64 * 128 + 3 * experts
    assert parameters(model) == total


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "model_type 't5' is not known"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder True"),
        ({"kv_lora_rank": 512}, "kv_lora_rank 512 is not supported for model_type 'llama'"),
        ({"num_local_experts": 8}, "num_local_experts 8 is not supported"),
        ({"attn_type_list": [1] * 8}, "attn_type_list a list of 8 items is not supported"),
        ({"cross_attention_layers": [1]}, "cross_attention_layers a list of 1 items"),
        ({"layer_types": ["sparse_attention"] * 8}, "layer type 'sparse_attention' is not covered"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers 2 is not supported"),
        ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern 'M\\*' is not supported"),
        ({"sliding_window": 64}, "sliding_window 64 is not supported"),
        ({"sparse_attention_config": {"a": 1}}, "sparse_attention_config an object of 1 fields"),
        ({"linear_attn_config": {"a": 1}}, "linear_attn_config an object of 1 fields"),
        ({"index_head_dim": 128}, "index_head_dim 128 is not supported"),
        ({"v_head_dim": 128}, "v_head_dim 128 is not supported"),
        ({"attention_type": "linear"}, "attention_type 'linear' is not supported"),
        ({"block_types": ["recurrent"]}, "block_types a list of 1 items is not supported"),
    ],
)
def test_a_feature_that_the_family_does_not_have_is_refused(
    change: dict[str, Any], field: str
) -> None:
    """Never a guess: the message names the field and its value."""
    with pytest.raises(InputError, match=field) as error:
        model_from_config(BASE | {"model_type": "llama"} | change, name="x", source="x.json")
    assert error.value.where == "x.json"
    assert error.value.fix
