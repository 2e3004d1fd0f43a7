from __future__ import annotations

import pytest

from kvsim.catalog import get_gpu, get_model, kv_groups, list_gpus, list_models
from kvsim.cost import CalibratedClock, RooflineClock
from tests.cost.plans import plan

# Llama-3-8B on one A100-40GB: 8,030,261,248 parameters, 131,072 B of KV per token, 32 layers of
# 32 heads of 128; 1.555e12 B/s and 312e12 FLOP/s on the datasheet. A token is multiplied with the
# matrices of the layers, a sampled row with the language model head; embeddings are looked up.
WEIGHTS = 2 * 8_030_261_248
LAYERS = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14_336)
HEAD = 128_256 * 4096
BANDWIDTH = 1.555e12
FLOPS = 312e12


def llama_clock(tp: int = 1, t0_s: float = 0.0) -> RooflineClock:
    return RooflineClock(get_model("llama-3-8b"), get_gpu("a100-40gb"), tp=tp, t0_s=t0_s)


def test_a_decode_step_of_few_rows_is_bound_by_memory() -> None:
    seconds = llama_clock(t0_s=0.001).step_seconds(plan(64, 64 * 1000))
    assert seconds == pytest.approx((WEIGHTS + 131_072 * 64_000) / BANDWIDTH + 0.001, rel=1e-12)


def test_a_decode_step_of_many_short_rows_is_bound_by_arithmetic() -> None:
    rows, context = 4096, 4096 * 2
    flops = 2 * (LAYERS + HEAD) * rows + 4 * 32 * 32 * 128 * context
    assert llama_clock().step_seconds(plan(rows, context)) == pytest.approx(flops / FLOPS)


def test_a_prefill_is_causal_and_chunks_of_it_add_up() -> None:
    whole = llama_clock().step_seconds(plan(chunks=[(4096, 0)]))
    flops = 2 * LAYERS * 4096 + 2 * HEAD + 2 * 32 * 32 * 128 * 4096**2
    assert whole == pytest.approx(flops / FLOPS)
    halves = [llama_clock().step_seconds(plan(chunks=[(2048, prior)])) for prior in (0, 2048)]
    assert sum(halves) == pytest.approx(whole + 2 * HEAD / FLOPS)


def test_the_head_is_computed_for_the_rows_that_are_sampled() -> None:
    """Decodes, padded ones too, and one row per chunk, however long the chunks are."""
    seconds = llama_clock().step_seconds(plan(100, 0, [(1000, 0)] * 16, padded=28))
    tokens, rows = 128 + 16_000, 128 + 16
    attention = 4 * 32 * 32 * 128 * 16 * 1000 * 500
    assert seconds == pytest.approx((2 * LAYERS * tokens + 2 * HEAD * rows + attention) / FLOPS)


def test_a_mixed_step_adds_bytes_and_flops_before_taking_the_larger() -> None:
    seconds = llama_clock().step_seconds(plan(8, 8000, [(16, 100)], padded=2))
    size = WEIGHTS + 131_072 * (8000 + 116)
    assert seconds == pytest.approx(size / BANDWIDTH)


def test_a_mixture_of_experts_reads_the_experts_its_tokens_touch() -> None:
    clock = RooflineClock(get_model("mixtral-8x7b"), get_gpu("h100"))
    experts = 8 * 3 * 4096 * 14_336 * 32
    other = 46_702_792_704 - experts
    for rows in (1, 3):
        touched = 1 - (1 - 2 / 8) ** rows
        expected = 2 * (other + experts * touched) / 3.35e12
        assert clock.step_seconds(plan(rows, 0)) == pytest.approx(expected, rel=1e-9)


def test_tensor_parallelism_divides_bytes_and_flops() -> None:
    one, two = llama_clock(), llama_clock(tp=2)
    for step in (plan(64, 64_000), plan(4096, 8192), plan(chunks=[(4096, 0)])):
        # Norms are replicated, hence not exactly one half.
        assert two.step_seconds(step) == pytest.approx(one.step_seconds(step) / 2, rel=1e-4)


def test_latent_attention_decodes_on_the_latent_vector_and_prefills_on_expanded_heads() -> None:
    """Slopes of steps with so many tokens that arithmetic takes longer than memory."""
    seconds = RooflineClock(get_model("deepseek-v3"), get_gpu("h200"), tp=8).step_seconds
    decode = seconds(plan(8192, 108_192)) - seconds(plan(8192, 8192))
    assert decode == pytest.approx(100_000 * 61 * 16 * 2 * (576 + 512) / 989e12)
    prefill = seconds(plan(chunks=[(8192, 1000)])) - seconds(plan(chunks=[(8192, 0)]))
    assert prefill == pytest.approx(8_192_000 * 61 * 16 * 2 * (192 + 128) / 989e12)


def test_copies_read_and_write_every_byte() -> None:
    clock = llama_clock()
    extra = clock.step_seconds(plan(4, 400, copied_tokens=1000)) - clock.step_seconds(plan(4, 400))
    assert extra == pytest.approx(2 * 1000 * 131_072 / BANDWIDTH)


def test_an_8_bit_cache_halves_the_context_bytes() -> None:
    clock = RooflineClock(get_model("llama-3-8b"), get_gpu("a100-40gb"), kv_dtype_bytes=1)
    assert clock.step_seconds(plan(1, 8000)) == pytest.approx((WEIGHTS + 65_536 * 8000) / BANDWIDTH)


def test_an_empty_step_takes_t0() -> None:
    assert llama_clock(t0_s=0.001).step_seconds(plan()) == 0.001


def test_growing_contexts_turn_a_decode_step_from_arithmetic_to_memory_bound() -> None:
    clock, rows = llama_clock(), 512
    compute = (2 * (LAYERS + HEAD) * rows + 4 * 32 * 32 * 128 * rows) / FLOPS
    assert clock.step_seconds(plan(rows, rows)) == pytest.approx(compute)
    memory = (WEIGHTS + 131_072 * 400 * rows) / BANDWIDTH
    assert clock.step_seconds(plan(rows, 400 * rows)) == pytest.approx(memory)


def test_no_dense_model_is_faster_under_calibrated_constants_than_under_the_roofline() -> None:
    """Every GPU and dense model of the catalogue; routing skew may touch fewer experts."""
    steps = [
        plan(1, 10),
        plan(64, 64_000),
        plan(256, 256 * 4000),
        plan(chunks=[(8192, 0)]),
        plan(chunks=[(512, 0)] * 16),
        plan(64, 64_000, [(2048, 100_000)]),
    ]
    ratios = []
    for gpu in map(get_gpu, list_gpus()):
        for model in map(get_model, list_models()):
            if model.moe is None and not kv_groups(model).has("state"):
                roofline, fitted = RooflineClock(model, gpu), CalibratedClock(model, gpu)
                ratios += [roofline.step_seconds(s) / fitted.step_seconds(s) for s in steps]
    assert len(ratios) > 1000
    assert max(ratios) <= 1
