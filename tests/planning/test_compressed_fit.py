"""DeepSeek V4 at start: what servers printed (vLLM's issues and pulls), and what `fit` says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import GIB, LayerGroup, Model, PageRules, get_gpu, model_from_config
from kvsim.catalog.compressed import CompressedAttention
from kvsim.catalog.compressed_pages import compressed_groups
from kvsim.errors import InputError
from kvsim.planning.advice import advice
from kvsim.planning.explain import explained
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.others import other_fit
from kvsim.planning.releases import LATEST, Release, release_of
from kvsim.planning.start import KvLayout, start
from tests.catalog.hf_rows import row
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]
CONFIG = row("nvidia/DeepSeek-V4-Flash-NVFP4")["config"] | {
    "quantization_config": {"quant_method": "fp8"}
}
FLASH = model_from_config(CONFIG, name="DeepSeek-V4-Flash", source="config.json")


def layout(model: Model, release: Release) -> KvLayout:
    assert release.pages is not None
    groups = compressed_groups(model, release.pages)
    assert groups.pages is not None
    return KvLayout(groups, groups.pages.block_tokens, groups.pages.block_bytes)


def with_windows(layers: int) -> Model:
    """The model and layers of a draft that attend to a window alone."""
    attention = FLASH.attention
    assert isinstance(attention, CompressedAttention)
    window = replace(attention, ratio=0, index_heads=0, index_dim=0)
    return replace(FLASH, groups=(*FLASH.groups, LayerGroup(layers, window)))


def fitted(version: str = "0.33", gpu: str = "b200", **flags: Any) -> Fit:
    return fit(FLASH, get_gpu(gpu), FitSettings(**flags), release=release_of(version))


def test_a_refusal_of_vllm_0_22_is_met_to_the_last_token() -> None:
    """vllm issue 44376: 30,000 tokens need 6.66 GiB, 5.44 are available, 13,528 tokens fit.

    Two GPUs, offline: 16,384 tokens per step. 118 + 2 * 259 + 4099 + 2065 = 6800 blocks of
    22 * (37,440 + 8640 + 1728) bytes; 5.44 GiB are 5549 to 5558 of them.
    """
    one = layout(FLASH, release_of("0.22.0"))
    assert one.blocks_per_request(30_000, max_in_flight=16_384) == 118 + 2 * 259 + 4099 + 2065
    found = start(
        one,
        release_of("0.22.0"),
        max_model_len=30_000,
        max_in_flight=16_384,
        available_bytes=5554 * 22 * 47_808,
    )
    assert f"{5554 * 22 * 47_808 / GIB:.2f}" == "5.44"
    assert found.refusal is not None
    assert f"{found.refusal.needed_bytes / GIB:.2f}" == "6.66"
    assert found.longest_request_tokens == found.refusal.longest_request_tokens == 13_528


def test_a_start_of_vllm_with_a_draft_is_met_to_the_last_token() -> None:
    """vllm pull 52495: 13,270 blocks of 1,002,240 bytes, 7,363.6 MiB per request of 33,792 tokens.

    1.89 requests, 63,859 tokens. A draft of three windows; 8192 + 256 tokens in each of two steps.
    """
    one = layout(with_windows(3), LATEST)
    assert one.block_bytes == 1_002_240
    in_flight = 2 * (8192 + 256)
    blocks = one.blocks_per_request(33_792, max_in_flight=in_flight)
    assert blocks == 132 + 2 * 267 + 4227 + 2129
    assert f"{blocks * one.checked_bytes / (1 << 20):.1f}" == "7363.6"
    found = start(one, LATEST, max_model_len=33_792, max_in_flight=in_flight, num_blocks=13_270)
    assert (found.kv_tokens, f"{found.max_concurrency:.2f}") == (63_859, "1.89")


def test_vllm_0_26_counts_the_bytes_of_all_groups_in_blocks_of_the_first() -> None:
    """vllm issue 51041: 150K tokens in 7.7 GiB at 121,344; 6401 blocks counted for 7156 pages."""
    release = release_of("0.26.0")
    one = layout(FLASH, release)
    assert one.blocks_per_request(121_344, max_in_flight=16_384) == 474 + 2 * 259 + 4099 + 2065
    by_hand = 474 * 1_002_240 + 259 * 43 * 37_440 + 4099 * 21 * 46_080 + 2065 * 20 * 37_440
    assert one.counted_blocks(121_344, max_in_flight=16_384) == -(-by_hand // 1_002_240)
    tokens = [
        start(
            one,
            release,
            max_model_len=121_344,
            max_in_flight=16_384,
            available_bytes=round(gib * GIB),
        ).kv_tokens
        for gib in (7.65, 7.75)
    ]
    assert tokens[0] < 150_999
    assert tokens[1] > 150_000


@pytest.mark.parametrize(
    ("flags", "replicas", "printed"),
    [
        ({"tensor_parallel_size": 8}, 1, 20.43),
        ({"data_parallel_size": 8, "enable_expert_parallel": True}, 8, 156.9),
    ],
)
def test_the_concurrency_of_two_start_logs_is_met_to_a_twentieth(
    flags: dict[str, Any], replicas: int, printed: float
) -> None:
    """C109, vllm issue 51454: 8 B200, 0.25.0, 1,048,576 tokens; eight replicas, or one.

    Nothing else of these starts is public, nor whether a draft took part.
    """
    found = fitted(
        "0.25.0",
        gpu_memory_utilization=0.95,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        kv_cache_dtype="fp8",
        block_size=256,
        **flags,
    )
    assert found.settings.max_in_flight == 8192
    assert replicas * found.start.max_concurrency == pytest.approx(printed, rel=0.05)


def test_the_cache_is_in_8_bits_with_blocks_of_256_tokens_whatever_was_asked() -> None:
    found = fitted(tensor_parallel_size=8, max_model_len=100_000)
    assert (found.settings.kv_cache_dtype, found.settings.block_size) == ("fp8", 256)
    assert found.layout.block_tokens == 256
    assert found.start.num_blocks == found.budget.kv_pool.bytes // 1_002_240
    with pytest.raises(InputError, match="must be 256"):
        fitted(block_size=128)


def test_older_releases_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"vllm 0.16 to 0.20, v1 does not serve .*compress_ratios"):
        fitted("0.20.0")


def test_a_module_for_prediction_adds_a_window() -> None:
    """44 windows in two groups of 22; a request takes no more blocks."""
    plain, guessed = (
        fitted(tensor_parallel_size=8, max_model_len=100_000, speculative=one)
        for one in (None, "mtp")
    )
    windows = guessed.layout.groups.types[1]
    assert (windows.layers, windows.groups) == (44, 2)
    per_request = plain.layout.blocks_per_request(100_000, max_in_flight=16_384)
    assert guessed.layout.blocks_per_request(100_000, max_in_flight=16_384) == per_request
    (draft,) = guessed.budget.further
    experts = 256 * 3 * 2048 * 4096 * 17 / 32 / 8
    assert draft.bytes == pytest.approx(experts, rel=0.35)
    with pytest.raises(InputError, match="no layer of full attention"):
        fitted(tensor_parallel_size=8, speculative="eagle")


@pytest.mark.parametrize("server", ["sglang", "tensorrt-llm"])
def test_other_servers_refuse_it_by_name(server: Any) -> None:
    with pytest.raises(InputError, match="layers that do not keep every token"):
        other_fit(server, FLASH, get_gpu("b200"), tp=8)


def test_what_is_said_has_the_numbers_of_every_cache() -> None:
    found = fitted(tensor_parallel_size=8, max_model_len=131_072)
    text = "\n".join(explained(found))
    assert "21 layers of ratio 4 * 32,768 index keys * 132 B" in text
    assert "kv_request = 512 (1 * ceil(all tokens / 256)) + 518 (2 * ceil(128 and in flight" in text
    assert "= 7,194 blocks * 1,051,776 B" in text
    said = " ".join(advice(found))
    assert "a request of 131,072 tokens needs 3,968 per token" in said
    assert "not divided by tensor parallelism" in said
    older = "\n".join(explained(fitted("0.25.0", tensor_parallel_size=8)))
    assert "the bytes of its pages in blocks of the first group" in older


def test_the_command_answers_for_a_config_json(kvsim: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    run = kvsim(
        "fit", str(tmp_path / "config.json"), "--gpu", "h200", "--tp", "4", "--json",
        "--max-model-len", "131072",
    )  # fmt: skip
    assert run.status == 0
    said = json.loads(run.out)
    assert said["block_bytes"] == 1_002_240
    assert said["flags"]["kv-cache-dtype"] == "fp8"
    assert said["request_bytes"] == 7194 * 1_051_776


def test_a_pool_of_pages_counts_by_group_where_the_release_does() -> None:
    """The counted and the taken blocks agree from 0.27 on."""
    one = layout(FLASH, LATEST)
    assert one.counted_blocks(5000, max_in_flight=8192) == one.blocks_per_request(
        5000, max_in_flight=8192
    )
    assert LATEST.pages == PageRules("dense", counts_by_group=True)
