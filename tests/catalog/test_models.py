from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.catalog import (
    active_parameters,
    explain_model,
    get_model,
    kv_bytes_per_token,
    list_models,
    model_from_config,
    naive_kv_bytes_per_token,
    parameters,
    weight_bytes,
)
from kvsim.errors import InputError

# PagedAttention paper and the models' public config.json values, 16-bit cache, one GPU.
KV_BYTES = {
    "opt-13b": 819_200,
    "opt-66b": 2_359_296,
    "opt-175b": 4_718_592,
    "llama-2-7b": 524_288,
    "llama-2-13b": 819_200,
    "llama-3-8b": 131_072,
    "llama-3-70b": 327_680,
    "llama-3.1-8b": 131_072,
    "llama-3.1-70b": 327_680,
    "llama-3.1-405b": 516_096,
    "mistral-7b": 131_072,
    "mistral-7b-v0.1": 131_072,
    "mixtral-8x7b": 131_072,
    "yi-34b": 245_760,
    "qwen2.5-7b": 57_344,
    "qwen2.5-72b": 327_680,
    "qwen3-8b": 147_456,
    "qwen3-32b": 262_144,
    "gemma-3-1b": 26_624,
    "gemma-3-27b": 507_904,
    "gemma-4-26b-a4b": 225_280,  # 25 * 8 * 512 * 2 + 5 * 2 * 1024 * 2
    "gemma-4-31b": 901_120,  # 50 * 16 * 512 * 2 + 10 * 4 * 1024 * 2
    "deepseek-v3": 70_272,
    "gpt-oss-20b": 49_152,
    "gpt-oss-120b": 73_728,
    "llama-4-maverick": 196_608,
    "qwen3.5-27b": 65_536,
    "qwen3-1.7b": 114_688,
    "qwen3-14b": 163_840,
    "qwen3-30b-a3b": 98_304,
    "qwen3-235b-a22b": 192_512,
    "qwen3.5-35b-a3b": 20_480,
    "qwen3.5-122b-a10b": 24_576,
    "qwen3.5-397b-a17b": 30_720,
    "codellama-34b": 196_608,
    "mixtral-8x22b": 229_376,
    "deepseek-v2-lite": 31_104,
    "deepseek-v3.2": 78_324,  # 61 * (576 * 2 + 132)
    "kimi-k2": 70_272,
    "glm-5": 100_152,  # 78 * (576 * 2 + 132)
    "minimax-m2.5": 253_952,
    "nemotron-3-nano-30b-a3b": 6_144,
    "nemotron-h-56b": 40_960,
    "llama-nano": 2_048,  # fp32
}

# Totals of the published checkpoints (safetensors index on the Hugging Face Hub).
CHECKPOINT_PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "gemma-3-1b": 999_885_952,
    "mistral-7b-v0.1": 7_241_732_096,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "kimi-k2": 1_026_408_232_448,
}


@pytest.mark.parametrize(("name", "expected"), KV_BYTES.items())
def test_kv_bytes_per_token_equal_the_published_figures(name: str, expected: int) -> None:
    assert kv_bytes_per_token(get_model(name)) == expected


def test_every_model_of_the_catalogue_has_a_published_kv_figure() -> None:
    assert set(KV_BYTES) == set(list_models())
    assert len(list_models()) >= 40


def test_the_naive_figure_for_llama_3_70b_charges_all_64_query_heads() -> None:
    assert naive_kv_bytes_per_token(get_model("llama-3-70b")) == 2_621_440


def test_an_8_bit_cache_halves_the_bytes() -> None:
    assert kv_bytes_per_token(get_model("llama-3-8b"), kv_dtype_bytes=1) == 65_536


@pytest.mark.parametrize(("tp", "expected"), [(1, 57_344), (2, 28_672), (4, 14_336)])
def test_tensor_parallelism_divides_kv_heads(tp: int, expected: int) -> None:
    assert kv_bytes_per_token(get_model("qwen2.5-7b"), tp=tp) == expected


def test_kv_heads_are_replicated_when_there_are_fewer_than_gpus() -> None:
    model = get_model("llama-3-70b")
    assert kv_bytes_per_token(model, tp=8) == kv_bytes_per_token(model, tp=16) == 40_960


def test_a_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    assert kv_bytes_per_token(get_model("deepseek-v3"), tp=8) == 70_272


@pytest.mark.parametrize(("name", "tp"), [("qwen2.5-7b", 3), ("llama-3-8b", 12), ("opt-13b", 0)])
def test_a_tensor_parallel_size_that_heads_cannot_follow_is_refused(name: str, tp: int) -> None:
    with pytest.raises(InputError, match="tensor parallel size"):
        kv_bytes_per_token(get_model(name), tp=tp)


def test_an_unknown_kv_width_is_refused() -> None:
    with pytest.raises(InputError, match="must be 1, 2 or 4, got 3"):
        kv_bytes_per_token(get_model("llama-3-8b"), kv_dtype_bytes=3)


@pytest.mark.parametrize(("name", "expected"), CHECKPOINT_PARAMETERS.items())
def test_parameters_by_shape_equal_the_checkpoint(name: str, expected: int) -> None:
    assert parameters(get_model(name)) == expected


@pytest.mark.parametrize("name", sorted(KV_BYTES))
def test_parameters_by_shape_agree_with_the_published_size(name: str) -> None:
    model = get_model(name)
    if model.published_size.endswith("GB"):
        # Table 1 of the PagedAttention paper rounds 2 bytes per parameter its own way.
        published = float(model.published_size[:-2]) * 1e9 / 2
        assert parameters(model) == pytest.approx(published, rel=0.015)
    else:
        digits = model.published_size[:-1]
        unit = 10 ** -len(digits.partition(".")[2]) * 1e9
        assert parameters(model) == pytest.approx(float(digits) * 1e9, abs=unit)


def test_active_parameters_count_only_the_experts_of_one_token() -> None:
    assert active_parameters(get_model("mixtral-8x7b")) == pytest.approx(12.9e9, abs=0.05e9)
    # The report's 37B leave the input embedding out.
    deepseek = get_model("deepseek-v3")
    assert active_parameters(deepseek) - 129_280 * 7168 == pytest.approx(37e9, abs=0.5e9)


def test_experts_alone_may_have_4_bits() -> None:
    """mxfp4: half a byte per element and a byte of scale per 32; 12.8 GiB in gpt-oss-20b's card."""
    model = get_model("gpt-oss-20b")
    experts = 24 * 32 * 3 * 2880 * 2880
    assert weight_bytes(model) == 2 * (parameters(model) - experts) + experts * 17 // 32
    assert weight_bytes(model) / (1 << 30) == pytest.approx(12.8, abs=0.05)
    assert (model.weight_dtype, model.expert_dtype) == ("bf16", "mxfp4")
    assert active_parameters(model) - 201_088 * 2880 == pytest.approx(3.61e9, abs=0.01e9)


def test_weights_are_two_bytes_per_parameter_and_one_when_quantized_to_fp8() -> None:
    model = get_model("llama-3-8b")
    assert weight_bytes(model) == 2 * 8_030_261_248
    # Embeddings, head and norms stay in 16 bits.
    sixteen_bit = 2 * 128_256 * 4096 + 65 * 4096
    assert weight_bytes(replace(model, weight_dtype="fp8")) == 8_030_261_248 + sixteen_bit


def test_tensor_parallelism_divides_all_weights_but_norms() -> None:
    model = get_model("llama-3-70b")
    norms = (2 * 80 + 1) * 8192 * 2
    assert weight_bytes(model, tp=8) == (weight_bytes(model) - norms) // 8 + norms


def test_names_are_case_insensitive_and_hugging_face_ids_work() -> None:
    assert get_model("Meta-Llama/Meta-Llama-3-8B").name == "llama-3-8b"
    assert get_model("LLAMA-3-8B").name == "llama-3-8b"


def test_an_unknown_model_lists_its_neighbours() -> None:
    with pytest.raises(InputError, match=r"'lama-3-8b'.*Did you mean llama-3-8b"):
        get_model("lama-3-8b")


def test_an_endless_name_is_cut_in_the_message() -> None:
    with pytest.raises(InputError) as error:
        get_model("x" * 100_000)
    assert len(str(error.value)) < 1000


def test_two_calls_give_equal_independent_models() -> None:
    assert get_model("deepseek-v3") == get_model("deepseek-v3")


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("dtype", "weights", "kv_bytes"), [("float32", "fp32", 4), ("float16", "fp16", 2)]
)
def test_both_spellings_of_the_dtype_mean_weights_and_cache(
    dtype: str, weights: str, kv_bytes: int
) -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    for given in (
        {"torch_dtype": dtype},
        {"dtype": dtype},
        {"torch_dtype": None, "dtype": dtype},
        {"torch_dtype": dtype, "dtype": dtype},
    ):
        model = model_from_config({**bare, **given}, name="x", source="x.json")
        assert (model.weight_dtype, model.kv_dtype_bytes) == (weights, kv_bytes)


def test_a_config_gives_the_same_model_as_the_catalogue() -> None:
    model = model_from_config(LLAMA, name="x", source="x.json")
    assert parameters(model) == 8_030_261_248
    assert model.groups == get_model("llama-3-8b").groups


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "unheard"}, "model_type 'unheard'"),
        ({"hidden_size": 0}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number"),
        ({"vocab_size": 10**9}, "vocab_size must be a whole number"),
        ({"torch_dtype": "float8"}, "torch_dtype 'float8'"),
        ({"dtype": "float16"}, "torch_dtype 'bfloat16' contradicts dtype 'float16'"),
        ({"quantization_config": {"quant_method": "quark"}}, "quant_method 'quark'"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quant_method 'mxfp4'"),
        ({"quantization_config": {}}, "quant_method None"),
        ({"sliding_window": 4096}, "sliding_window 4096 is not supported for model_type 'llama'"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window must be a whole number"),
        (
            {
                "model_type": "gemma3_text",
                "sliding_window": 8,
                "layer_types": ["linear_attention"] * 32,
            },
            "layer type 'linear_attention' is not covered",
        ),
    ],
)
def test_a_config_that_is_not_understood_is_refused(
    change: dict[str, object], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as error:
        model_from_config(LLAMA | change, name="x", source="x.json")
    assert error.value.where == "x.json"


def test_an_explained_model_shows_both_kv_figures_and_a_source_everywhere() -> None:
    facts = {fact.name: fact for fact in explain_model(get_model("llama-3-70b"), tp=2)}
    assert facts["kv_bytes_per_token"].value == 163_840
    assert facts["naive_kv_bytes_per_token"].value == 2_621_440
    assert "config.json of meta-llama/Meta-Llama-3-70B" in facts["layers"].source
    assert all(fact.source for fact in facts.values())


def test_an_explained_mixture_of_experts_shows_experts_and_latent_ranks() -> None:
    facts = {fact.name: fact.value for fact in explain_model(get_model("deepseek-v3"))}
    assert (facts["experts"], facts["experts_per_token"], facts["dense_layers"]) == (256, 8, 3)
    assert (facts["kv_lora_rank"], facts["qk_rope_head_dim"]) == (512, 64)


def test_formulas_of_latent_attention_name_what_is_counted() -> None:
    """DeepSeek-V3: 61 layers, 128 heads of 128 + 64 (keys) and 128 (values), latent 512 + 64."""
    facts = {fact.name: fact for fact in explain_model(get_model("deepseek-v3"), tp=2)}
    naive, kept = facts["naive_kv_bytes_per_token"], facts["kv_bytes_per_token"]
    assert naive.value == 61 * 128 * (128 + 64 + 128) * 2
    assert "layers * heads * (qk_nope_head_dim + qk_rope_head_dim + v_head_dim)" in naive.source
    assert kept.value == 61 * (512 + 64) * 2
    assert kept.source.startswith("layers * (kv_lora_rank + qk_rope_head_dim) * bytes")
