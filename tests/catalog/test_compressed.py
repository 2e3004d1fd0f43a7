"""DeepSeek V4: caches, pages, weights. Figures are from issues and pulls of vLLM, or by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog import (
    Model,
    PageRules,
    active_parameters,
    explain_model,
    kv_groups,
    model_from_config,
    weight_bytes,
)
from kvsim.catalog.compressed import CompressedAttention
from kvsim.catalog.compressed_bytes import kept, kept_bytes
from kvsim.catalog.compressed_pages import compressed_groups, tuple_width
from kvsim.catalog.weights import parameter_terms
from kvsim.errors import InputError
from tests.catalog.hf_rows import read, row

FLASH, PRO = "nvidia/DeepSeek-V4-Flash-NVFP4", "nvidia/DeepSeek-V4-Pro-NVFP4"
TUPLES, SIZES, DENSE = (
    PageRules("tuples", counts_by_group=False),
    PageRules("sizes", counts_by_group=False),
    PageRules("dense", counts_by_group=True),
)


def flash(**changes: Any) -> Model:
    """The published checkpoint: 8 bits, experts in fp4 with a scale per 32 elements."""
    config = row(FLASH)["config"] | {"quantization_config": {"quant_method": "fp8"}} | changes
    return model_from_config(config, name="V4-Flash", source="config.json")


def block_bytes(model: Model, rules: PageRules) -> int:
    pages = compressed_groups(model, rules).pages
    assert pages is not None
    return pages.block_bytes


def test_an_entry_has_584_bytes_in_8_bits_and_1024_in_16() -> None:
    """448 elements in 8 bits, 64 in 16 (rotary), 7 scales and a byte; vllm pull 47716."""
    attention = read(FLASH).attention
    assert isinstance(attention, CompressedAttention)
    assert (attention.entry_bytes(1), attention.entry_bytes(2)) == (448 + 2 * 64 + 8, 1024)


def test_layers_keep_windows_entries_index_keys_and_states() -> None:
    """43 layers: 2 with a window alone, 21 with an entry per 4 tokens, 20 with one per 128."""
    model = read(FLASH)
    found = {
        (one.part, one.ratio): (one.layers, one.entries, one.entry_bytes)
        for one in kept(model, 1000, 1)
    }
    assert found == {
        ("window", 0): (43, 128, 584),
        ("compressed", 4): (21, 250, 584),
        ("index", 4): (21, 250, 132),
        ("state", 4): (21, 8, 2 * 2 * 512 * 4),
        ("index_state", 4): (21, 8, 2 * 2 * 128 * 4),
        ("compressed", 128): (20, 7, 584),
        ("state", 128): (20, 128, 2 * 512 * 4),
    }


def test_a_short_request_has_no_entries_and_every_token_in_its_window() -> None:
    """Three tokens: no group of 4 is full; windows and states hold all three."""
    by_hand = 3 * (43 * 584 + 21 * (8192 + 2048) + 20 * 4096)
    assert kept_bytes(read(FLASH), 3, 1) == by_hand


@pytest.mark.parametrize("tokens", [4, 128, 129, 1000, 131_072])
def test_a_request_never_needs_less_for_more_tokens(tokens: int) -> None:
    assert kept_bytes(read(PRO), tokens, 1) > kept_bytes(read(PRO), tokens - 4, 1)


@pytest.mark.parametrize(
    ("model", "rules", "by_hand"),
    [
        # A page of 64 entries 37,440, of 64 index keys 8,640, of 2 entries 1,728: multiples of 576.
        (FLASH, TUPLES, 22 * (37_440 + 8640 + 1728)),
        # Run with vLLM's own functions: 1,039,680; the pull that brought it (44454) measured
        # 333,437 tokens for 329,601 before.
        (FLASH, SIZES, 1_039_680),
        # vllm issue 54703: the group of entries, 1,002,240.
        (FLASH, DENSE, 1_002_240),
        (PRO, TUPLES, 31 * 47_808),
        # vllm pull 48993, before it: 1,473,408.
        (PRO, SIZES, 1_473_408),
        (PRO, DENSE, 30 * (37_440 + 8640) + 31 * 1728),
    ],
)
def test_blocks_have_the_bytes_of_each_range_of_releases(
    model: str, rules: PageRules, by_hand: int
) -> None:
    assert block_bytes(read(model), rules) == by_hand


def test_a_pull_measured_the_tokens_that_smaller_blocks_bring() -> None:
    """vllm pull 44454: 333,437 tokens after, 329,601 before, from the same memory."""
    ratio = block_bytes(read(FLASH), TUPLES) / block_bytes(read(FLASH), SIZES)
    assert ratio == pytest.approx(333_437 / 329_601, rel=1e-4)


def test_groups_are_those_that_a_server_reported() -> None:
    """vllm issue 54703, v0.28.1: pages of 43 windows in two groups (823,680 + 786,240), states."""
    types = compressed_groups(read(FLASH), DENSE).types
    assert [(one.layers, one.groups, one.block_tokens, one.page_bytes) for one in types] == [
        (62, 1, 256, 1_002_240),
        (43, 2, 64, 823_680 + 786_240),
        (42, 1, 4, 870_912),
        (20, 1, 8, 656_640),
    ]


def test_groups_of_pro_are_those_of_its_layers() -> None:
    """Run with vLLM 0.27.1's own functions: 1,435,968, windows 1,160,640 + 1,123,200, states."""
    types = compressed_groups(read(PRO), DENSE).types
    assert [one.page_bytes for one in types] == [1_435_968, 2_283_840, 1_017_792, 1_244_160]
    assert [one.groups for one in types] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("widths", "size"),
    [([21, 43, 21, 20], 22), ([21, 46, 21, 20], 23), ([31, 61, 30, 31], 31), ([5], 5), ([3, 2], 3)],
)
def test_the_width_of_a_group_pads_least(widths: list[int], size: int) -> None:
    """22: 1 + 1 + 1 + 2 of padding, 21 has 20 + 1; with three layers of a draft 23."""
    assert tuple_width(widths) == size


@pytest.mark.parametrize("widths", [[], [3, 0]])
def test_a_group_needs_layers(widths: list[int]) -> None:
    with pytest.raises(InputError, match="every group needs a layer"):
        tuple_width(widths)


def test_parameters_are_those_of_the_shapes() -> None:
    """Flash by hand: per layer q 1024, entry 512, 64 heads of 512, 8 groups of 1024 for 8 heads."""
    hidden, terms = 4096, parameter_terms(read(FLASH))
    products = 1024 * hidden + 512 * hidden + 64 * 512 * 1024 + 8 * 1024 * 4096 + hidden * 8192
    vectors = 1024 + 512 + 64
    index = 64 * 128 * 1024
    assert terms["attention"] == (43 * (products + vectors) + 21 * (index + 512 + 128) + 20 * 512)
    overlapping = hidden * (2 * 2 * (512 + 128) + 64) + 4 * 2 * (512 + 128)
    assert terms["compressors"] == 21 * overlapping + 20 * (hidden * 2 * 512 + 128 * 512)
    assert terms["hyper_connections"] == 2 * 43 * (24 * 4 * hidden + 24 + 3) + 4 * 4 * hidden + 5
    assert terms["hash_routing"] == 3 * 129_280 * 6
    assert terms["router"] == 43 * 256 * hidden + 40 * 256
    assert terms["experts"] == 43 * 257 * 3 * 2048 * hidden


@pytest.mark.parametrize(("model", "billions"), [(FLASH, 13), (PRO, 49)])
def test_active_parameters_agree_with_the_published_ones(model: str, billions: int) -> None:
    """Published as 13B and 49B, without the embedding that a token looks up."""
    found = read(model)
    assert active_parameters(found) - found.vocab * found.hidden == pytest.approx(
        billions * 1e9, rel=0.03
    )


def test_fp4_experts_have_a_scale_per_32_elements_or_per_16() -> None:
    """Beside them 8 bits; embeddings, compressors and the index's weights 16."""
    experts = 43 * 256 * 3 * 2048 * 4096
    micro, plain = weight_bytes(read(FLASH)), weight_bytes(flash())
    assert micro - plain == experts * 9 / 16 - experts * 17 / 32
    # 156.32 GiB with a draft of three layers, a tenth of them experts (start-up log C149).
    assert plain / (1 << 30) + 3 * 256 * 3 * 2048 * 4096 * 17 / 32 / (1 << 30) == pytest.approx(
        156.32, rel=0.02
    )


def test_wider_elements_count_as_such() -> None:
    """Hyper-connections and routing tables have 32 bits."""
    model = flash()
    less = flash(num_hash_layers=2)
    assert weight_bytes(model) - weight_bytes(less) == 129_280 * 6 * 4 - 256 * 2


def test_every_gpu_holds_the_whole_cache_and_its_part_of_the_heads() -> None:
    """Down projections, compressors and the index are replicated; output groups are not."""
    attention = read(FLASH).groups[1].attention
    whole, eighth = (sum(n * k for n, k in attention.matrices(4096, tp)) for tp in (1, 8))
    replicated = (1024 + 512) * 4096 + 64 * 128 * 1024
    assert whole - replicated == 8 * (eighth - replicated)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"compress_ratios": [4] * 42}, "compress_ratios has 42 items for 43 layers"),
        ({"compress_ratios": [4] * 46}, "compress_ratios has 46 items for 43 layers"),
        ({"compress_ratios": [16] * 43}, "compress_ratios has 16: what its layers keep"),
        ({"compress_ratios": None}, "compress_ratios must be a list"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        ({"o_groups": 7}, "do not go into 7 o_groups"),
        ({"qk_rope_head_dim": 513}, "513 of them rotary"),
        ({"expert_dtype": "int3"}, "expert_dtype 'int3' is not known"),
        ({"hc_mult": 0}, "hc_mult must be a whole number"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        flash(**changes)


def test_modules_for_prediction_may_be_listed_and_are_left_out() -> None:
    listed = row(FLASH)["config"]["compress_ratios"]
    for more in ([], [0], [0, 0, 0]):
        model = flash(compress_ratios=listed[:43] + more, num_nextn_predict_layers=3)
        assert model.layers == 43


def test_blocks_of_one_size_and_models_without_entries_are_refused() -> None:
    with pytest.raises(InputError, match="compress_ratios"):
        kv_groups(read(FLASH))
    with pytest.raises(InputError, match="no layer with compressed entries"):
        compressed_groups(flash(compress_ratios=[0] * 43), DENSE)
    with pytest.raises(InputError, match="without a compressed past"):
        compressed_groups(read("Qwen/Qwen3-1.7B"), DENSE)


def test_a_model_of_one_ratio_has_pages_of_its_caches_alone() -> None:
    """Every layer of ratio 128: no index, a small page of entries, states in pages of their own."""
    groups = compressed_groups(flash(compress_ratios=[128] * 43), DENSE)
    assert [(one.layers, one.block_tokens) for one in groups.types] == [
        (43, 256),
        (43, 64),
        (43, 8),
    ]
    assert block_bytes(flash(compress_ratios=[128] * 43), DENSE) == 43 * 37_440


def test_the_explanation_names_the_bytes_of_each_cache_and_their_sum() -> None:
    facts = {fact.name: fact for fact in explain_model(read(FLASH), kv_dtype_bytes=1)}
    assert facts["kv_request.index.ratio_4"].value == 21 * 262_144 * 132
    assert (
        "21 layers of ratio 4 * 262,144 index keys * 132 B"
        in facts["kv_request.index.ratio_4"].source
    )
    assert facts["kv_request.sum"].value == 4_052_700_160
    assert facts["kv_bytes_per_token.at_1048576"].value == round(4_052_700_160 / 1_048_576, 1)
