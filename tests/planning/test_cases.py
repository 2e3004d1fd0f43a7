"""Public questions and bug reports: the program's answer against the right one.

Each test names the case (facts/cases) and its source; tolerances are the cases' own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.catalog import GIB, Model, get_gpu, get_model, kv_bytes_per_token, kv_groups
from kvsim.catalog.kv_layers import (
    GroupRule,
    group_layers,
    hybrid_bytes,
    layer_kvs,
    padding_layers,
    unified_bytes,
)
from kvsim.planning import llama_cpp, sglang
from kvsim.planning.advice import advice
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.fractions import why_tokens_differ
from kvsim.planning.releases import Release, release_of
from kvsim.planning.start import KvLayout, Start, printed_gib, start
from tests.planning import shapes

V1 = release_of("0.11.0")
NOTHING_ELSE = {"weights": 0, "activation_peak": 0, "non_torch": 0, "cuda_graphs": 0}


def layout_of(
    model: Model, *, tp: int = 1, kv_dtype_bytes: int | None = None, block_size: int = 16
) -> KvLayout:
    """Of layers that all keep every token."""
    token_bytes = kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
    return KvLayout(kv_groups(model, tp=tp), block_size, block_size * token_bytes)


def started(layout: KvLayout, *, gib: float, max_model_len: int, release: Release = V1) -> Start:
    return start(
        layout,
        release,
        max_model_len=max_model_len,
        max_in_flight=8192,
        available_bytes=int(gib * GIB),
    )


def fit_with_pool(model: Model, gib: float, settings: FitSettings, release: Release = V1) -> Fit:
    """A set-up whose pool is known: what the GPU holds less what is measured."""
    share = settings.gpu_memory_utilization or release.gpu_memory_utilization
    total = round(gib * GIB / share)
    settings = replace(settings, measured_bytes={"total": total, **NOTHING_ELSE})
    return fit(model, get_gpu("h100"), settings, release=release)


def test_02_fp8_doubles_the_tokens() -> None:
    """vllm pull 24577: Qwen3-0.6B, 69.66 GiB on an A100; 0.1 %."""
    model = shapes.QWEN3_06B
    assert kv_bytes_per_token(model) == 114_688
    bf16 = started(layout_of(model), gib=69.66, max_model_len=4096)
    fp8 = started(layout_of(model, kv_dtype_bytes=1), gib=69.66, max_model_len=4096)
    assert bf16.kv_tokens == pytest.approx(652_144, rel=1e-3)
    assert bf16.max_concurrency == pytest.approx(159.21, rel=1e-3)
    assert fp8.kv_tokens == pytest.approx(1_304_288, rel=1e-3)
    assert fp8.max_concurrency == pytest.approx(318.4, rel=1e-3)


def test_03_the_same_token_costs_the_same_in_both_servers() -> None:
    """vllm issue 21348: Qwen3-235B on 4 H100; 1.5 % (the GiB are one rank's)."""
    model = get_model("qwen3-235b-a22b")
    token_bytes = kv_bytes_per_token(model, tp=4)
    assert token_bytes == 48_128
    vllm = started(layout_of(model, tp=4), gib=8.11, max_model_len=32_768)
    other = sglang.pool(
        int(2 * 8.23 * GIB), k_token_bytes=token_bytes // 2, v_token_bytes=token_bytes // 2
    )
    assert vllm.kv_tokens == pytest.approx(178_880, rel=0.015)
    assert other.tokens == pytest.approx(367_404, rel=0.015)
    assert (
        printed_gib(
            sglang.pool(367_404 * 48_128, k_token_bytes=24_064, v_token_bytes=24_064).k_bytes
        )
        == "8.23"
    )
    why = why_tokens_differ("sglang")
    assert "the whole GPU" in why
    assert "free at start" in why
    assert "different headroom" in why


def test_07_one_live_request_wastes_the_tail_of_its_last_block() -> None:
    """The document of case 6, Mistral-Small-3.2: 15,049 tokens in blocks of 128."""
    model = shapes.MISTRAL_SMALL
    assert kv_bytes_per_token(model) == 163_840
    layout = layout_of(model, block_size=128)
    found = start(layout, V1, max_model_len=131_072, max_in_flight=8192, num_blocks=1444)
    assert found.kv_tokens == 184_832
    assert 1444 * layout.block_bytes / GIB == pytest.approx(28.2, abs=0.05)
    blocks = layout.blocks_per_request(15_049, max_in_flight=8192)
    assert blocks == 118
    assert blocks / found.num_blocks == pytest.approx(0.0817, abs=0.0005)
    wasted = blocks * 128 - 15_049
    assert wasted == 55
    assert wasted / (blocks * 128) == pytest.approx(0.0036414194915254236)


def test_08_offloading_does_not_lift_the_limit_of_one_request() -> None:
    """LMCache issue 1372: 32,768 tokens, 3.58 GiB left; 0.2 %."""
    settings = FitSettings(max_model_len=32_768)
    found = fit_with_pool(shapes.QWEN3_4B, 3.58, settings)
    refusal = found.start.refusal
    assert found.verdict == "does not fit"
    assert refusal is not None
    assert printed_gib(refusal.needed_bytes) == "4.50"
    assert 26_000 <= refusal.longest_request_tokens <= 26_070
    assert refusal.longest_request_tokens == pytest.approx(26_032, rel=2e-3)
    said = advice(found)[0]
    assert "does not lift the limit of one request" in said
    assert "a running request must be in GPU memory" in said
    fitting = fit_with_pool(shapes.QWEN3_4B, 5.0, settings)
    assert not any("Offloading" in one for one in advice(fitting))
    assert "allocated in full at start" in advice(fitting)[0]
    close = replace(fitting, start_low=found.start)
    assert close.verdict == "too close to call"
    assert advice(close)[0] == said


def test_10_a_window_needs_the_tokens_in_flight_too() -> None:
    """vllm issue 27508: gpt-oss-120b on one H100 with 1.71 GiB left; 0.01 GiB."""
    model = get_model("gpt-oss-120b")
    settings = FitSettings(
        gpu_memory_utilization=0.95, max_num_batched_tokens=1024, max_model_len=131_072
    )
    found = fit_with_pool(model, 1.71, settings)
    refusal = found.start.refusal
    assert found.verdict == "does not fit"
    assert refusal is not None
    assert refusal.needed_bytes / GIB == pytest.approx(4.54, abs=0.01)
    assert 47 * 1024 <= refusal.longest_request_tokens < 48 * 1024
    layers = layer_kvs(model)
    assert unified_bytes(layers, 131_072) / GIB == pytest.approx(9.0, abs=0.01)
    assert hybrid_bytes(layers, 131_072) / GIB == pytest.approx(4.504, abs=0.001)
    assert any("Only 18 of 36 layers keep every token" in one for one in advice(found))
    assert any("mxfp4" in one for one in advice(found))


def test_11_windows_are_not_billed_at_full_context() -> None:
    """ai-dynamo/aiconfigurator pull 1537: gpt-oss-120b, fp8 KV, 64 requests on 180 GiB; 0.5 %."""
    model, tokens = get_model("gpt-oss-120b"), 65_536 + 400
    layers = layer_kvs(model, kv_dtype_bytes=1)
    request = hybrid_bytes(layers, tokens) / GIB
    assert request == pytest.approx(1.134, rel=0.005)
    assert 64 * request == pytest.approx(72.6, rel=0.005)
    assert unified_bytes(layers, tokens) / GIB == pytest.approx(2.2637, rel=0.005)
    settings = FitSettings(kv_cache_dtype="fp8", max_model_len=tokens)
    found = fit(model, get_gpu("b200"), settings, release=V1)
    assert found.verdict == "fits"
    assert found.start_low.max_concurrency > 64
    assert not any("Quantised" in one for one in advice(found))


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
def test_15_groups_of_layers_are_padded(
    counts: tuple[int, int], rule: GroupRule, padding: int, waste_percent: float
) -> None:
    """vllm pulls 29303 and 56445: padding, as a share of its type's layers; exact."""
    layers = dict(zip(("full", "sliding"), counts, strict=True))
    padded = padding_layers(layers, group_layers(layers, rule))
    assert sum(padded.values()) == padding
    name = max(padded, key=lambda one: padded[one])
    assert round(100 * padded[name] / layers[name], 2) == waste_percent


def test_15_padding_is_told() -> None:
    """Gemma-3-27B: 52 windows in groups of 10 leave 8 of 70 layers empty."""
    found = fit(get_model("gemma-3-27b"), get_gpu("h100"), FitSettings(), release=V1)
    assert any("8 layers that hold nothing: 11 %" in one for one in advice(found))


def test_23_weights_of_8_bits_and_the_hidden_size_do_not_enter() -> None:
    """vllm issue 22291: Qwen2.5-7B GPTQ-Int8, 3,072 tokens; exact, and the slope within 5 %."""
    model = replace(get_model("qwen2.5-7b"), weight_dtype="int8")
    token_bytes = kv_bytes_per_token(model)
    assert token_bytes == 57_344
    assert 1_605_632 / token_bytes == 28.0
    request = 3072 * token_bytes / GIB
    assert request == pytest.approx(0.1641, abs=5e-5)
    measured = [(10.6, 5), (13.0, 20), (18.1, 50)]
    slope = (measured[-1][0] - measured[0][0]) / (measured[-1][1] - measured[0][1])
    assert request == pytest.approx(slope, rel=0.05)
    said = advice(fit(model, get_gpu("l40s"), FitSettings(), release=V1))
    assert any("Only 4 of 28 heads are cached" in one for one in said)
    assert any("Quantised weights (int8) do not shrink the KV" in one for one in said)
    plain = advice(fit(get_model("llama-2-7b"), get_gpu("l40s"), FitSettings(), release=V1))
    assert not any("heads are cached" in one or "Quantised" in one for one in plain)


def test_24_the_configs_head_size_counts() -> None:
    """LMCache issue 688: Qwen3-4B has heads of 128, not of 2560 / 32; exact."""
    assert kv_bytes_per_token(shapes.QWEN3_4B) == 147_456
    derived = shapes.dense("derived", layers=36, hidden=2560, heads=32, kv_heads=8)
    assert kv_bytes_per_token(derived) == 92_160
    short = 1 - kv_bytes_per_token(derived) / kv_bytes_per_token(shapes.QWEN3_4B)
    assert short == pytest.approx(0.375)


def test_29_linear_attention_keeps_a_state_instead_of_tokens() -> None:
    """lmstudio-bug-tracker issue 1862: a 27B hybrid at 262,144 tokens; the KV exactly."""
    model, tokens = get_model("qwen3.5-27b"), 262_144
    kv = llama_cpp.pool(tokens, layers=16, k_elements=4 * 256, v_elements=4 * 256)
    assert llama_cpp.printed_mib(kv.kv_bytes) == "16384.00"
    layers = layer_kvs(model)
    kept = sum(one.request_bytes(tokens) for one in layers if one.kind == "full")
    assert kept == kv.kv_bytes
    assert unified_bytes(layers, tokens) == hybrid_bytes(layers, tokens)
    states = [one.request_bytes(tokens) for one in layers if one.kind == "state"]
    assert states == [one.request_bytes(1) for one in layers if one.kind == "state"]
    four = llama_cpp.recurrent_bytes(
        layers=48, r_elements=3 * 10_240, s_elements=48 * 128 * 128, sequences=4
    )
    assert llama_cpp.printed_mib(four) == "598.50"
    assert four / 4 / llama_cpp.MIB == pytest.approx(150, rel=0.01)
    naive = shapes.dense(
        "as if all kept tokens", layers=64, hidden=5120, heads=24, kv_heads=4, head_dim=256
    )
    assert tokens * kv_bytes_per_token(naive) == 65_536 * llama_cpp.MIB
    found = fit(model, get_gpu("h200"), FitSettings(max_model_len=tokens))
    assert any("16 of 64 layers keep every token, 48 one state" in one for one in advice(found))


def test_31_a_latent_cache_is_not_divided_by_tensor_parallelism() -> None:
    """SemiAnalysisAI/InferenceX issue 1587: Kimi-K2.5 at tp 8, 262,144 tokens, fp8; 0.5 %."""
    model = get_model("kimi-k2")
    assert kv_bytes_per_token(model, tp=8, kv_dtype_bytes=1) == 35_136
    layout = layout_of(model, tp=8, kv_dtype_bytes=1)
    found = started(layout, gib=8.0, max_model_len=262_144)
    assert found.refusal is not None
    assert found.refusal.needed_bytes / GIB == pytest.approx(8.58, rel=0.005)
    wide = started(layout_of(model, tp=8), gib=8.0, max_model_len=262_144)
    assert wide.refusal is not None
    assert wide.refusal.needed_bytes / GIB == pytest.approx(17.16, rel=0.005)
    said = advice(fit(model, get_gpu("h200"), FitSettings(tensor_parallel_size=8)))
    assert any("not divided by tensor parallelism: each of the 8 GPUs" in one for one in said)
    assert any("Only a latent vector is cached" in one for one in said)


def test_heads_that_are_replicated_are_told() -> None:
    """FIELD.md: few KV heads do not shrink with tp; Qwen3-235B has 4."""
    for tp, told in ((4, False), (8, True)):
        settings = FitSettings(tensor_parallel_size=tp)
        said = advice(fit(get_model("qwen3-235b-a22b"), get_gpu("h200"), settings))
        assert any("KV heads are replicated over" in one for one in said) == told
        assert any(f"Figures are per GPU of {tp}" in one for one in said)
