"""Terms of a start-up by release: formulas against numbers by hand and from logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.catalog import GIB, estimate_budget, get_gpu, get_model, weight_bytes
from kvsim.catalog.budget import Budget
from kvsim.catalog.start_rules import (
    BY_FREE_MEMORY,
    SORTED,
    UNSORTED,
    StartRules,
    activation_peak,
    stored_model,
)
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.releases import release_of
from kvsim.planning.ways import ways_out


def budget(
    rules: StartRules, *, model: str = "llama-3-8b", gpu: str = "h100", tp: int = 1
) -> Budget:
    """With 8,192 tokens and 256 sequences."""
    return estimate_budget(
        get_model(model),
        get_gpu(gpu),
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        tp=tp,
        rules=rules,
    )


def test_the_sampler_holds_its_copies_beside_the_hidden_states() -> None:
    """256 sequences of 128,256 logits in float32, 8,192 hidden states of 4,096 in 16 bits."""
    peak = budget(SORTED).activation_peak.bytes
    assert peak == round(9.57 * 256 * 128_256 * 4) + 8192 * 4096 * 2


@pytest.mark.parametrize(
    ("model", "tokens", "seqs", "tp", "printed_gib"),
    [
        ("qwen3-32b", 8192, 1024, 1, 5.64),
        ("gpt-oss-20b", 8192, 1024, 1, 7.38),
        ("llama-3.1-8b", 8192, 1024, 1, 4.76),
        ("llama-3.1-8b", 20_000, 256, 1, 2.07),
        ("qwen3-235b-a22b", 2048, 256, 4, 1.40),
    ],
)
def test_peaks_are_those_that_servers_printed(
    model: str, tokens: int, seqs: int, tp: int, printed_gib: float
) -> None:
    """Within 1 %: llm-d-planner's table, C001 and C146."""
    peak = activation_peak(get_model(model), SORTED, tp=tp, batched_tokens=tokens, seqs=seqs)
    assert peak.middle / GIB == pytest.approx(printed_gib, rel=0.01)
    assert peak.low < peak.middle < peak.high


def test_a_chunk_of_v0_is_not_sampled() -> None:
    """vllm#10517: 15.05 - 14.99 GiB at 35,000 tokens, of 512 tokens of feed-forward."""
    chunk = replace(SORTED, samples=False)
    peak = activation_peak(get_model("llama-3.1-8b"), chunk, tp=1, batched_tokens=512, seqs=256)
    assert peak.middle == 512 * (3 * 14_336 + 3 * 4096) * 2
    assert peak.middle / GIB == pytest.approx(0.06, abs=0.01)


def test_experts_take_what_is_routed_to_them() -> None:
    """Mixtral, tp 2, by hand: 2 of 8 experts, twice 7,168 in and through, one 7,168 out."""
    silent = replace(SORTED, samples=False)
    model = get_model("mixtral-8x7b")
    peak = activation_peak(model, silent, tp=2, batched_tokens=1000, seqs=1)
    assert peak.middle == 2 * 1000 * 2 * (2 * 7168 + 7168) + 2 * 2 * 1000 * 4096


def test_mxfp4_experts_are_padded_on_each_gpu() -> None:
    """gpt-oss: 2,880 become 3,072 on one GPU; printed 13.47 and 64.38 GiB (llm-d-planner)."""
    for name, printed in (("gpt-oss-20b", 13.47), ("gpt-oss-120b", 64.38)):
        model = get_model(name)
        assert weight_bytes(stored_model(model, 1)) / GIB == pytest.approx(printed, rel=0.005)
        assert weight_bytes(model) / GIB < 0.96 * printed
    stored = stored_model(get_model("gpt-oss-120b"), 8)
    assert stored.moe is not None
    assert stored.moe.intermediate == 8 * 512
    dense = get_model("llama-3-8b")
    assert stored_model(dense, 8) is dense


def test_terms_outside_the_framework_depend_on_gpus_and_their_maker() -> None:
    """AMD's context takes 0.45 GiB more."""
    ours = [budget(SORTED, tp=tp).non_torch.bytes / GIB for tp in (1, 2, 4)]
    assert ours == pytest.approx([0.09, 0.55, 0.8])
    amd = budget(SORTED, gpu="mi300x").non_torch
    assert (amd.low / GIB, amd.bytes / GIB, amd.high / GIB) == pytest.approx((0.465, 0.54, 0.8))


def test_later_releases_sample_with_less_and_early_ones_are_unsure() -> None:
    """4.6 copies from 0.16 on, up to 8.3; before 0.6.4 up to five times the peak."""
    later = budget(UNSORTED).activation_peak
    logits, hidden = 256 * 128_256 * 4, 8192 * 4096 * 2
    assert later.high == pytest.approx(8.3 * logits + hidden, abs=1)
    assert later.bytes == 8192 * (3 * 14_336 + 3 * 4096) * 2
    early, usual = budget(BY_FREE_MEMORY).activation_peak, budget(SORTED).activation_peak
    assert early.bytes == usual.bytes
    assert early.high == pytest.approx(5 * early.bytes, abs=1)


def test_weights_are_never_much_less_than_their_shapes() -> None:
    """Buffers come on top, nothing is left out."""
    weights = budget(SORTED).weights
    assert weights.low == weights.bytes
    assert weights.high == pytest.approx(1.03 * weights.bytes, abs=1)


def test_without_rules_a_budget_is_that_of_the_shipped_scenarios() -> None:
    """The simulations' pools do not move with the estimate of start-ups."""
    model, gpu = get_model("llama-3-8b"), get_gpu("h100")
    plain = estimate_budget(model, gpu, max_num_batched_tokens=8192, max_num_seqs=256)
    assert plain.activation_peak.bytes == round(9.66 * 256 * 128_256 * 4)
    assert plain.non_torch.bytes == round(0.1 * GIB)


def fit_on(gpu: str, version: str, engine: str | None = None, **flags: object) -> Fit:
    """Llama-3.1-8B."""
    release = release_of(version, engine)  # type: ignore[arg-type]
    settings = FitSettings(**flags)  # type: ignore[arg-type]
    return fit(get_model("llama-3.1-8b"), get_gpu(gpu), settings, release=release)


@pytest.mark.parametrize(
    ("version", "engine", "length", "tokens", "samples"),
    [
        ("0.5.3", "v0", 40_000, 40_000, True),
        ("0.5.4", "v0", 40_000, 512, False),
        ("0.6.6", "v0", 40_000, 512, False),
        ("0.7.0", "v0", 40_000, 2048, False),
        ("0.7.0", "v0", 32_768, 32_768, True),
        ("0.7.0", "v0", 100, 2048, True),
        ("0.9.0", "v1", 40_000, 2048, True),
    ],
)
def test_the_profiling_step_follows_release_and_context(
    version: str, engine: str, length: int, tokens: int, samples: bool
) -> None:
    """v0 prefills contexts above 32,768 tokens in chunks from 0.5.4 on."""
    found = fit_on("l40s", version, engine, max_model_len=length)
    assert found.settings.max_num_batched_tokens == tokens
    assert found.rules.samples == samples


def test_v1_of_0_8_runs_1024_sequences_on_every_gpu() -> None:
    """From 0.9 on only where the GPU has 70 GiB."""
    assert fit_on("l40s", "0.8.4").settings.max_num_seqs == 1024
    assert fit_on("l40s", "0.9.0").settings.max_num_seqs == 256
    assert fit_on("h100", "0.9.0").settings.max_num_seqs == 1024


def test_a_share_that_leaves_nothing_outside_the_budget_is_never_sure() -> None:
    """CUDA graphs of 0.11 need 0.9 GiB beside the budget, 2 % of a 3090 are 0.47."""
    tight = fit_on("rtx3090", "0.11", max_model_len=4096, gpu_memory_utilization=0.98)
    assert tight.start_low.refusal is None
    assert tight.on_top_bytes == tight.budget.cuda_graphs.bytes > tight.spare_bytes
    assert tight.verdict == "too close to call"
    usual = fit_on("rtx3090", "0.11", max_model_len=4096, gpu_memory_utilization=0.9)
    assert usual.verdict == "fits"
    given = FitSettings(max_model_len=4096, gpu_memory_utilization=0.98)
    assert [way.what for way in ways_out(tight, given)][:1] == ["gpu_memory_utilization 0.96"]
