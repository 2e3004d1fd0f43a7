"""SGLang, TensorRT-LLM, LMDeploy and llama.cpp: what real servers printed, from their parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from kvsim.catalog import GIB
from kvsim.errors import InputError
from kvsim.planning import llama_cpp, lmdeploy, sglang, tensorrt_llm
from kvsim.planning.start import printed_gib
from tests.planning.logs import ROWS, row

HALF_A_DIGIT = 0.005 * GIB


def consistent(server: str) -> set[str]:
    return {one["id"] for one in ROWS if one["server"] == server and one["status"] == "consistent"}


class Shape(NamedTuple):
    """Layers with keys and values of one rank, and bytes of each per token and layer."""

    layers: int
    k_bytes: int
    v_bytes: int


SGLANG = {
    "C116": Shape(94, 128 * 2, 128 * 2),
    "C117": Shape(61, 576 * 2, 0),
    "C118": Shape(24, 2 * 64 * 2, 2 * 64 * 2),
    "C119": Shape(32, 8 * 128 * 2, 8 * 128 * 2),
    "C120": Shape(6, 128 * 2, 128 * 2),
    "C121": Shape(4, 8 * 128 * 2, 8 * 128 * 2),
    "C123": Shape(61, 576, 0),
}
"""Qwen3-235B at tp 4 (1 KV head); Kimi-K2.5, latent; Qwen2.5-0.5B; Llama-3.1-8B; a hybrid at tp 4
(2 KV heads, replicated); another; DeepSeek-V3 with an fp8 latent."""


@pytest.mark.parametrize("log", SGLANG)
def test_sglang_prints_these_tokens_and_sizes(log: str) -> None:
    """Any pool that ends within the last token gives the printed tokens; K and V round apart."""
    printed, shape = row(log), SGLANG[log]
    k, v = shape.layers * shape.k_bytes, shape.layers * shape.v_bytes
    assert k + v == printed["bytes_per_token_per_gpu"]
    tokens = printed["kv_tokens"]
    for left_over in (0, k + v - 1):
        found = sglang.pool(tokens * (k + v) + left_over, k_token_bytes=k, v_token_bytes=v)
        assert found.tokens == tokens
    sizes = float(printed_gib(found.k_bytes)) + float(printed_gib(found.v_bytes))
    assert f"{sizes:.2f}" == f"{printed['kv_size_gib']:.2f}"
    short = sglang.pool(tokens * (k + v) - 1, k_token_bytes=k, v_token_bytes=v)
    assert short.tokens == tokens - 1


def test_every_consistent_row_of_these_servers_is_looked_at() -> None:
    """No exceptions."""
    assert consistent("sglang") == SGLANG.keys()
    assert consistent("tensorrt-llm") == TENSORRT.keys()
    assert consistent("llama.cpp") == LLAMA.keys()
    assert consistent("lmdeploy") == {"C132"}


def test_sglang_states_take_a_slot_per_request_and_one_more() -> None:
    """C121: 48 running requests, 27 layers of 128 heads by 80 by 128 in f32: 6.46 GB."""
    states = sglang.state_pool_bytes(
        running_requests=row("C121")["max_num_seqs"], layers=27, layer_bytes=128 * 80 * 128 * 4
    )
    assert printed_gib(states) == "6.46"


def test_sglang_leaves_the_rest_of_the_free_memory_to_steps() -> None:
    """By hand: 78 GiB free, 55.25 of weights, 0.93: 22.75 - 78 * 0.07 = 17.29, less 1 of states."""
    free = {
        "free_before_weights_bytes": 78 * GIB,
        "free_after_weights_bytes": 91 * GIB // 4,
        "mem_fraction_static": 0.93,
    }
    assert sglang.kv_memory_bytes(**free) == pytest.approx(17.29 * GIB, abs=1)
    less = sglang.kv_memory_bytes(**free, state_pool_bytes=GIB)
    assert less == sglang.kv_memory_bytes(**free) - GIB
    assert sglang.kv_memory_bytes(**free | {"mem_fraction_static": 0.7}) < 0


def test_sglang_keeps_whole_pages_and_a_cap() -> None:
    """100 tokens fit: 96 in pages of 16, 64 under a cap of 79; nothing where nothing is left."""
    sizes = {"k_token_bytes": 6, "v_token_bytes": 4}
    assert sglang.pool(1009, **sizes).tokens == 100
    assert sglang.pool(1009, **sizes, page_size=16).tokens == 96
    capped = sglang.pool(1009, **sizes, page_size=16, max_total_tokens=79)
    assert (capped.tokens, capped.k_bytes, capped.v_bytes) == (64, 384, 256)
    assert sglang.pool(-5, **sizes).kv_bytes == 0


TENSORRT = {"C126": 131_072, "C128": 147_456, "C131": 22 * 4 * 2 * 64 * 2}
"""Bytes per token of a Llama of 8B, of Qwen3-8B, of TinyLlama."""


@pytest.mark.parametrize("log", TENSORRT)
def test_tensorrt_llm_prints_these_blocks_tokens_and_sizes(log: str) -> None:
    """Pages of 32 tokens; the allocated GiB are those of whole blocks."""
    printed, token_bytes = row(log), TENSORRT[log]
    assert token_bytes == printed["bytes_per_token_per_gpu"]
    available = printed["kv_tokens"] * token_bytes
    for left_over in (0, 32 * token_bytes - 1):
        found = tensorrt_llm.pool(available + left_over, token_bytes=token_bytes)
        assert found.tokens == printed["kv_tokens"]
        assert found.num_blocks == (printed["num_gpu_blocks"] or printed["kv_tokens"] // 32)
        assert printed_gib(found.kv_bytes) == f"{printed['kv_size_gib']:.2f}"
    assert tensorrt_llm.pool(available - 1, token_bytes=token_bytes).tokens == found.tokens - 32


def test_tensorrt_llm_takes_a_fraction_of_what_is_free_after_loading() -> None:
    """60 GiB free at 0.9 are 54 GiB; 54 blocks of 1 GiB, or those of 100 tokens: 4 of 32."""
    available = tensorrt_llm.kv_memory_bytes(free_after_load_bytes=60 * GIB)
    assert available == 54 * GIB
    assert tensorrt_llm.pool(available, token_bytes=GIB // 32).num_blocks == 54
    capped = tensorrt_llm.pool(available, token_bytes=GIB // 32, max_tokens=100)
    assert (capped.num_blocks, capped.tokens, capped.kv_bytes) == (4, 128, 4 * GIB)


def test_lmdeploy_prints_these_blocks() -> None:
    """C132: 6,214 blocks of 8 MiB in 0.8 of what the weights leave, 60.69 GiB."""
    printed = row("C132")
    for free in (60.69, 60.685):
        found = lmdeploy.pool(int(free * GIB), token_bytes=131_072)
        assert found.num_blocks == printed["num_gpu_blocks"]
        assert found.tokens == printed["kv_tokens"]
        assert printed_gib(found.kv_bytes) == f"{printed['kv_size_gib']:.2f}"


LLAMA: dict[str, tuple[int, int, str]] = {
    "C137": (126, 8 * 128, "f16"),
    "C138": (32, 32 * 96, "f16"),
    "C139": (32, 8 * 128, "f16"),
    "C141": (12, 8 * 64, "f16"),
    "C142": (26, 3200, "f16"),
    "C143": (60, 6656, "f32"),
}
"""Layers, elements of keys (and of values) per layer and token, cache type."""


@pytest.mark.parametrize("log", LLAMA)
def test_llama_cpp_prints_these_sizes_exactly(log: str) -> None:
    """To the last byte: the logs print whole and half MiB."""
    printed = row(log)
    layers, elements, cache_type = LLAMA[log]
    cells = llama_cpp.full_cells(printed["max_model_len"])
    found = llama_cpp.pool(
        cells,
        layers=layers,
        k_elements=elements,
        v_elements=elements,
        k_type=cache_type,
        v_type=cache_type,
    )
    assert found.tokens == printed["kv_tokens"]
    assert found.kv_bytes == printed["kv_size_gib"] * GIB
    assert found.k_bytes == found.v_bytes


def test_llama_cpp_windows_keep_the_window_and_a_batch() -> None:
    """C141: 128 + 512 padded to 768 cells, 18 MiB in 12 layers, never more than the others."""
    cells = llama_cpp.window_cells(131_072, window=128, n_ubatch=512)
    assert cells == 768
    windows = llama_cpp.pool(cells, layers=12, k_elements=512, v_elements=512)
    assert llama_cpp.printed_mib(windows.kv_bytes) == "18.00"
    assert llama_cpp.window_cells(512, window=128, n_ubatch=512) == 512
    four = llama_cpp.window_cells(131_072, window=128, n_ubatch=512, sequences=4)
    assert four == 1024


@pytest.mark.parametrize(
    ("n_ctx", "streams", "cells"),
    [(1, 1, 256), (256, 1, 256), (257, 1, 512), (4096, 4, 1024), (4097, 4, 1280)],
)
def test_llama_cpp_pads_each_stream_to_256_cells(n_ctx: int, streams: int, cells: int) -> None:
    """A stream has its part of the context."""
    assert llama_cpp.full_cells(n_ctx, streams=streams) == cells


@pytest.mark.parametrize(
    ("cache_type", "size"),
    [
        ("f32", 4096),
        ("f16", 2048),
        ("bf16", 2048),
        ("q8_0", 1088),
        ("q5_1", 768),
        ("q5_0", 704),
        ("q4_1", 640),
        ("q4_0", 576),
        ("iq4_nl", 576),
    ],
)
def test_llama_cpp_types_take_these_bytes_per_1024_elements(cache_type: str, size: int) -> None:
    """Blocks of 32 with one or two 16-bit scales, and a fifth bit in 4 bytes."""
    assert llama_cpp.type_bytes(1024, cache_type) == size
    mixed = llama_cpp.pool(256, layers=3, k_elements=1024, v_elements=512, k_type=cache_type)
    assert mixed.k_bytes == 256 * 3 * size
    assert mixed.v_bytes == 256 * 3 * 1024


def test_llama_cpp_keeps_states_in_f32_per_sequence() -> None:
    """598.5 MiB for four (case 29): 48 layers, 3 * 10,240 inputs and 48 heads of 128 by 128."""
    states = llama_cpp.recurrent_bytes(
        layers=48, r_elements=3 * 10_240, s_elements=48 * 128 * 128, sequences=4
    )
    assert llama_cpp.printed_mib(states) == "598.50"


REFUSED: list[tuple[Any, dict[str, Any]]] = [
    (
        sglang.kv_memory_bytes,
        {"free_before_weights_bytes": 2, "free_after_weights_bytes": 1, "mem_fraction_static": 1.0},
    ),
    (sglang.pool, {"available_bytes": 9, "k_token_bytes": 0, "v_token_bytes": 0}),
    (sglang.pool, {"available_bytes": 9, "k_token_bytes": 1, "v_token_bytes": 1, "page_size": 0}),
    (tensorrt_llm.kv_memory_bytes, {"free_after_load_bytes": 1, "fraction": 0.0}),
    (tensorrt_llm.pool, {"available_bytes": 9, "token_bytes": 1, "tokens_per_block": 0}),
    (llama_cpp.type_bytes, {"elements": 32, "cache_type": "q9"}),
    (llama_cpp.type_bytes, {"elements": 48, "cache_type": "q8_0"}),
    (llama_cpp.full_cells, {"n_ctx": 0}),
    (llama_cpp.full_cells, {"n_ctx": 256, "streams": 0}),
]


@pytest.mark.parametrize(("function", "arguments"), REFUSED)
def test_values_out_of_range_are_refused(function: Any, arguments: dict[str, Any]) -> None:
    """Instead of a division by zero or a negative pool."""
    with pytest.raises(InputError):
        function(**arguments)
