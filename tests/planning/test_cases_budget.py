"""Public questions about the memory budget (facts/cases), with their numbers and tolerances."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvsim.catalog import GIB, Model, get_gpu, get_model, model_from_config
from kvsim.planning.document import DEFINITIONS, document, request_bytes
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.load import Load, bounds
from kvsim.planning.releases import LATEST, release_of
from kvsim.planning.start import KvLayout, start
from tests.catalog.hf_rows import row as config_row

V0 = release_of("0.6.4", "v0")
V1 = release_of("0.11.0")


def quantized(name: str, **quantization: Any) -> Model:
    """The model of a row of model_configs.jsonl with its matrices quantized."""
    config = config_row(name)["config"] | {"quantization_config": quantization}
    return model_from_config(config, name=name, source="config.json")


def llama_70b_fp8() -> Model:
    """RedHat's FP8-dynamic: 8 bits with a scale per channel, embeddings and head in 16."""
    return quantized("llama-3.1-70b-instruct", quant_method="fp8")


QWEN3_06B = model_from_config(
    config_row("Qwen/Qwen3-1.7B")["config"] | {"hidden_size": 1024, "intermediate_size": 3072},
    name="Qwen3-0.6B",
    source="config.json",
)


def on_a_3090(length: int, **flags: Any) -> Fit:
    """Case 01: what that host printed of total, weights and memory outside torch."""
    known = {"total": 23.58, "weights": 14.99, "non_torch": 0.35}
    measured = {name: round(gib * GIB) for name, gib in known.items()}
    settings = FitSettings(max_model_len=length, measured_bytes=measured, **flags)
    return fit(get_model("llama-3.1-8b"), get_gpu("rtx3090"), settings, release=V0)


@pytest.mark.parametrize(
    ("length", "verdict"),
    [(20_000, "fits"), (29_000, "does not fit"), (35_000, "fits"), (45_000, "fits")],
)
def test_case_01_a_shorter_context_can_need_more_memory(length: int, verdict: str) -> None:
    """vllm-project/vllm#10517: 29,000 tokens do not start, 35,000 and 45,000 do."""
    assert on_a_3090(length).verdict == verdict


@pytest.mark.parametrize(
    ("length", "kv_gib", "blocks"),
    [(20_000, 3.81, 1952), (29_000, 2.89, 1478), (35_000, 5.82, 2980)],
)
def test_case_01_the_profiled_batch_takes_the_difference(
    length: int, kv_gib: float, blocks: int
) -> None:
    """KV within 0.05 GiB and blocks within 0.5 %; above 32k a step has 512 tokens."""
    found = on_a_3090(length)
    assert found.budget.kv_pool.bytes / GIB == pytest.approx(kv_gib, abs=0.05)
    assert found.start.num_blocks == pytest.approx(blocks, rel=0.005)
    assert found.settings.max_num_batched_tokens == (length if length < 32_769 else 512)


def test_case_01_fewer_batched_tokens_make_29k_fit() -> None:
    """The advice of the thread: max_num_batched_tokens 2048."""
    assert on_a_3090(29_000, max_num_batched_tokens=2048).verdict == "fits"


MEASURED_H100 = [
    (get_model("gpt-oss-20b"), 0.9, 1, 13.47, 7.38, 0.13, 50.28),
    (llama_70b_fp8(), 0.9, 2, 33.88, 4.84, 0.55, 32.0),
    (get_model("llama-3.1-8b"), 0.9, 1, 14.99, 4.76, 0.13, 51.38),
    (QWEN3_06B, 0.9, 1, 1.12, 5.56, 0.13, 64.45),
    (get_model("qwen3-32b"), 0.9, 1, 61.03, 5.64, 0.14, 4.45),
    (get_model("qwen3-32b"), 0.9, 2, 30.59, 5.64, 0.54, 34.49),
    (get_model("gpt-oss-120b"), 0.95, 1, 64.38, 7.38, 0.13, 3.33),
]
"""Case 06 without Mistral-Small-3.2, whose image encoder is profiled too."""
MISTRAL = config_row("mistralai/Mistral-Small-24B-Base-2501")
MISTRAL_ROW = (
    model_from_config(MISTRAL["config"], name="Mistral-Small-3.2-24B", source="config.json"),
    *(0.95, 1, 44.76, 2.12, 0.14, 28.2),
)


def on_an_h100(model: Model, share: float, tp: int, **terms: float) -> Fit:
    """Case 06: vLLM 0.11, blocks of 128, 16,000 tokens, a card of 79.18 GiB."""
    measured = {name: round(gib * GIB) for name, gib in {"total": 79.18, **terms}.items()}
    settings = FitSettings(
        tensor_parallel_size=tp,
        gpu_memory_utilization=share,
        max_model_len=16_000,
        block_size=128,
        measured_bytes=measured,
    )
    return fit(model, get_gpu("h100"), settings, release=V1)


@pytest.mark.parametrize(
    ("model", "share", "tp", "weights", "peak", "other", "kv"), [*MEASURED_H100, MISTRAL_ROW]
)
def test_case_06_given_the_parts_the_pool_is_the_printed_one(
    model: Model, share: float, tp: int, weights: float, peak: float, other: float, kv: float
) -> None:
    """Within 0.02 GiB: CUDA graphs are outside the budget in 0.11."""
    found = on_an_h100(model, share, tp, weights=weights, activation_peak=peak, non_torch=other)
    assert found.budget.kv_pool.bytes / GIB == pytest.approx(kv, abs=0.02)


@pytest.mark.parametrize(("model", "share", "tp", "weights", "peak", "other", "kv"), MEASURED_H100)
def test_case_06_estimated_parts_come_close(
    model: Model, share: float, tp: int, weights: float, peak: float, other: float, kv: float
) -> None:
    """Weights within 2 %, the activation peak within 1 GiB, KV within 1.2 GiB."""
    budget = on_an_h100(model, share, tp).budget
    assert budget.weights.bytes / GIB == pytest.approx(weights, rel=0.02)
    assert budget.activation_peak.bytes / GIB == pytest.approx(peak, abs=1.0)
    assert budget.kv_pool.bytes / GIB == pytest.approx(kv, abs=1.2)


def test_case_06_the_two_failures_are_told() -> None:
    """The 70B model has no room on one GPU; 32,000 tokens of Qwen3-32B do not fit."""
    alone = on_an_h100(llama_70b_fp8(), 0.9, 1)
    assert alone.verdict == "does not fit"
    assert alone.budget.kv_pool.bytes / GIB == pytest.approx(-1.44, abs=1.2)
    longer = FitSettings(max_model_len=32_000, gpu_memory_utilization=0.9, block_size=128)
    found = fit(get_model("qwen3-32b"), get_gpu("h100"), longer, release=V1)
    assert found.verdict == "does not fit"


@pytest.mark.parametrize("output_tokens", [2, 200])
def test_case_21_a_load_is_held_by_computation_while_kv_is_idle(output_tokens: int) -> None:
    """llm-d-autoscaling#662: 8 requests of 6,000 tokens a second; the model is not named."""
    settings = FitSettings(max_num_batched_tokens=65_000, max_model_len=16_384)
    found = fit(get_model("qwen3-14b"), get_gpu("h100"), settings, release=V1)
    load = Load(rps=8, prompt_tokens=6000, output_tokens=output_tokens)
    limits = bounds(found, load)
    assert load.rps * load.prompt_tokens == 48_000
    assert limits.binding == "prefill"
    assert limits.prefill_utilization > 1
    assert not limits.holds


def test_case_27_one_request_needs_112_mib_of_the_whole_card() -> None:
    """vllm-project/vllm#33263: needed exactly, and the printed tokens of its pool in 0.1 %."""
    settings = FitSettings(max_model_len=1024, max_num_seqs=1)
    found = fit(get_model("qwen3-1.7b"), get_gpu("rtx4090"), settings, release=V1)
    assert request_bytes(found) == 112 * 2**20
    layout: KvLayout = found.layout
    printed = start(
        layout, V1, max_model_len=1024, max_in_flight=2048, available_bytes=int(18.78 * GIB)
    )
    assert printed.kv_tokens == pytest.approx(175_856, rel=0.001)
    needed = start(layout, V1, max_model_len=1024, max_in_flight=2048, available_bytes=128 * 2**20)
    assert needed.refusal is None
    assert needed.max_concurrency == pytest.approx(128 / 112, abs=0.01)


def test_case_32_the_activation_peak_decides() -> None:
    """llm-d-benchmark#621: left within 0.5 GiB, needed 4.88, about 8,300 tokens would do."""
    settings = FitSettings(
        gpu_memory_utilization=0.95,
        max_model_len=16_000,
        measured_bytes={"total": round(79.18 * GIB)},
    )
    found = fit(llama_70b_fp8(), get_gpu("h100"), settings, release=V1)
    assert found.verdict == "does not fit"
    assert found.budget.kv_pool.bytes / GIB == pytest.approx(2.53, abs=0.5)
    assert request_bytes(found) / GIB == pytest.approx(4.88, abs=0.005)
    told = replace(settings, measured_bytes={**settings.measured_bytes, "weights": _gib(67.72)})
    known = fit(llama_70b_fp8(), get_gpu("h100"), told, release=V1)
    assert known.start.longest_request_tokens == pytest.approx(8300, rel=0.1)


def _gib(gib: float) -> int:
    return round(gib * GIB)


def test_case_35_tokens_follow_from_the_concurrency_in_newer_releases() -> None:
    """vllm-project/vllm#51163: bytes, blocks and concurrency are figures of their own."""
    model, gpu = get_model("gemma-3-27b"), get_gpu("h100")
    settings = FitSettings(max_model_len=131_072)
    newer, older = (fit(model, gpu, settings, release=one) for one in (LATEST, V1))
    tokens_of_blocks = newer.start.num_blocks * newer.layout.block_tokens
    assert newer.start.kv_tokens == int(newer.start.max_concurrency * 131_072)
    assert newer.start.kv_tokens != tokens_of_blocks
    assert newer.layout.groups.num_groups == 7
    assert older.start.kv_tokens == older.start.num_blocks // 7 * 16
    assert older.start.max_concurrency > 2 * older.start.kv_tokens / 131_072
    answer = document(newer)
    for name in ("block_bytes", "num_blocks", "kv_tokens", "max_concurrency"):
        assert answer[name] > 0
    assert {"num_blocks", "kv_tokens", "max_concurrency", "kv_pool"} <= set(DEFINITIONS)
