"""Pipelines, replicas, context parallelism, adapters and drafts, against real logs' figures."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog import GIB, get_model, kv_bytes_per_token, weight_bytes
from kvsim.errors import InputError
from kvsim.planning.parallel import (
    check_context_parallel,
    context_parallel_blocks,
    context_parallel_tokens,
    kv_layers_with_draft,
    lora_bytes,
    replicas,
    smallest_stage,
    stage_layers,
    stage_weight_bytes,
    virtual_engine_blocks,
)
from tests.planning.logs import row


@pytest.mark.parametrize(
    ("layers", "split"),
    [
        (3, (2, 1)),
        (4, (1, 2, 1)),
        (5, (2, 2, 1)),
        (6, (2, 2, 2)),
        (61, (15, 15, 16, 15)),
        (62, (15, 16, 16, 15)),
        (63, (16, 16, 16, 15)),
        (60, (30, 30)),
    ],
)
def test_layers_left_over_go_to_the_stages_before_the_last(
    layers: int, split: tuple[int, ...]
) -> None:
    """From the back: the last stage has the head."""
    assert stage_layers(layers, len(split)) == split


def test_a_users_own_split_is_taken() -> None:
    """If it has every layer once."""
    assert stage_layers(61, 2, [32, 29]) == (32, 29)


def test_a_stage_of_deepseek_holds_its_half_of_the_layers() -> None:
    """C015: 60 layers in 2 stages; 4 GiB of host memory are 7,767 blocks of 30 * 1,152 * 16 B."""
    printed, layers = row("C015"), stage_layers(60, 2)
    found = smallest_stage([4 * GIB, 4 * GIB], layers, 1152 * 16)
    assert found.num_blocks == printed["num_cpu_blocks"]
    assert layers[0] * 1152 == printed["bytes_per_token_per_gpu"]
    assert found.unused_bytes == (4 * GIB - 7767 * 552_960,) * 2


def test_the_smallest_stage_sets_the_blocks_of_all() -> None:
    """By hand: 160 / 16 = 10, 160 / 32 = 5; with less memory the first, 64 / 16 = 4."""
    found = smallest_stage([160, 160], [1, 2], 16)
    assert (found.stage, found.num_blocks, found.unused_bytes) == (1, 5, (80, 0))
    found = smallest_stage([64, 160], [1, 2], 16)
    assert (found.stage, found.num_blocks, found.unused_bytes) == (0, 4, (0, 32))
    assert smallest_stage([-5, 160], [1, 2], 16).num_blocks == 0


def test_ends_of_a_pipeline_hold_embeddings_and_head() -> None:
    """Llama-3.1-8B in 3 stages of 10, 11, 11 layers: the parts are the whole."""
    model = get_model("llama-3.1-8b")
    embedding = model.vocab * model.hidden * 2
    norm = model.hidden * 2
    layer = (weight_bytes(model) - 2 * embedding - norm) // 32
    assert layer == 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096)
    split = stage_layers(32, 3)
    assert split == (11, 11, 10)
    weights = stage_weight_bytes(
        split, layer_bytes=layer, embedding_bytes=embedding, head_bytes=embedding + norm
    )
    assert sum(weights) == weight_bytes(model)
    assert weights[1] == 11 * layer
    assert weights[0] - weights[2] == layer - norm


def test_v0_gives_a_request_its_virtual_engines_part() -> None:
    """C060: 1,650 blocks in 2 stages hold requests of 13.2k tokens, not of 24,000."""
    printed = row("C060")
    blocks = virtual_engine_blocks(printed["num_gpu_blocks"], printed["pp"])
    assert blocks * printed["block_size"] == 13_200


def test_replicas_add_tokens_but_no_length() -> None:
    """Four engines of 1,000 tokens."""
    found = replicas(4, tokens=1000, max_num_seqs=8, longest_request_tokens=992)
    assert (found.tokens, found.requests, found.longest_request_tokens) == (4000, 32, 992)


def test_context_parallelism_multiplies_the_tokens_of_a_latent_pool() -> None:
    """FIELD.md: 46.80 GiB, tp 8, dcp 8, 70,272 B: 44,696 blocks hold 5,721,088 tokens."""
    token_bytes = kv_bytes_per_token(get_model("deepseek-v3"), tp=8)
    assert token_bytes == 70_272
    low, high = (int((46.80 + way * 0.005) * GIB) // (16 * token_bytes) for way in (-1, 1))
    assert low <= 44_696 <= high
    assert context_parallel_tokens(44_696, 16, 8) == 5_721_088
    assert context_parallel_blocks(5_721_088, 16, 8) == 44_696
    assert context_parallel_blocks(129, 16, 8) == 2


@pytest.mark.parametrize(("dcp", "tp", "kv_heads"), [(8, 8, 1), (4, 8, 2), (2, 8, 4), (1, 8, 8)])
def test_context_parallelism_splits_what_is_replicated(dcp: int, tp: int, kv_heads: int) -> None:
    """Up to tp / KV heads."""
    check_context_parallel(dcp, tp=tp, kv_heads=kv_heads)
    with pytest.raises(InputError, match="does not divide"):
        check_context_parallel(2 * dcp, tp=tp, kv_heads=kv_heads)


def test_adapters_take_room_for_the_largest_rank() -> None:
    """Rank 16 in all matrices of Llama-3.1-8B: 41,943,040 parameters; four such at 16 bits."""
    attention = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096)]
    mlp = [(4096, 14_336), (4096, 14_336), (14_336, 4096)]
    matrices = 32 * (attention + mlp)
    assert lora_bytes(matrices, max_loras=1, max_lora_rank=16, element_bytes=1) == 41_943_040
    assert lora_bytes(matrices, max_loras=4, max_lora_rank=16) == 4 * 2 * 41_943_040


def test_a_draft_head_adds_a_layer_to_the_pool() -> None:
    """C074: Llama-3.1-8B with EAGLE has 33 layers, 135,168 B per token, 410,128 tokens."""
    printed = row("C074")
    layers = kv_layers_with_draft(32, "eagle")
    token_bytes = layers * kv_bytes_per_token(get_model("llama-3.1-8b")) // 32
    assert token_bytes == printed["bytes_per_token_per_gpu"]
    pool = printed["available_kv_gib"]
    low, high = (int((pool + way * 0.005) * GIB) // (16 * token_bytes) for way in (-1, 1))
    assert low <= printed["kv_tokens"] // 16 <= high
    assert (kv_layers_with_draft(61, "mtp"), kv_layers_with_draft(61, "ngram")) == (62, 61)


REFUSED: list[tuple[Any, tuple[Any, ...]]] = [
    (stage_layers, (4, 5)),
    (stage_layers, (4, 0)),
    (stage_layers, (4, 2, [4])),
    (stage_layers, (4, 2, [4, 0])),
    (stage_layers, (4, 2, [2, 1])),
    (smallest_stage, ([1], [1, 2], 16)),
    (smallest_stage, ([], [], 16)),
    (smallest_stage, ([1], [1], 0)),
]


@pytest.mark.parametrize(("function", "arguments"), REFUSED)
def test_splits_that_lose_layers_are_refused(function: Any, arguments: tuple[Any, ...]) -> None:
    """And stages without memory or layers."""
    with pytest.raises(InputError):
        function(*arguments)


def test_no_replica_is_no_server() -> None:
    """Refused."""
    with pytest.raises(InputError, match="at least 1"):
        replicas(0, tokens=1, max_num_seqs=1, longest_request_tokens=1)
