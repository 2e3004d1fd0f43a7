from __future__ import annotations

import pytest

from kvsim.catalog import get_gpu, get_model
from kvsim.cost import RooflineClock
from tests.cost.plans import plan

# Llama-3-8B on one A100-40GB: 8,030,261,248 parameters, 131,072 B of KV per token, 32 layers of
# 32 heads of 128; 1.555e12 B/s and 312e12 FLOP/s on the datasheet.
WEIGHTS = 2 * 8_030_261_248
BANDWIDTH = 1.555e12
FLOPS = 312e12


def llama_clock(tp: int = 1, t0_s: float = 0.0) -> RooflineClock:
    return RooflineClock(get_model("llama-3-8b"), get_gpu("a100-40gb"), tp=tp, t0_s=t0_s)


def test_a_decode_step_of_few_rows_is_bound_by_memory() -> None:
    seconds = llama_clock(t0_s=0.001).step_seconds(plan(64, 64 * 1000))
    assert seconds == pytest.approx((WEIGHTS + 131_072 * 64_000) / BANDWIDTH + 0.001, rel=1e-12)


def test_a_decode_step_of_many_short_rows_is_bound_by_arithmetic() -> None:
    rows, context = 4096, 4096 * 2
    flops = 2 * 8_030_261_248 * rows + 4 * 32 * 32 * 128 * context
    assert llama_clock().step_seconds(plan(rows, context)) == pytest.approx(flops / FLOPS)


def test_a_prefill_is_causal_and_chunks_of_it_add_up() -> None:
    whole = llama_clock().step_seconds(plan(chunks=[(4096, 0)]))
    flops = 2 * 8_030_261_248 * 4096 + 2 * 32 * 32 * 128 * 4096**2
    assert whole == pytest.approx(flops / FLOPS)
    halves = [llama_clock().step_seconds(plan(chunks=[(2048, prior)])) for prior in (0, 2048)]
    assert sum(halves) == pytest.approx(whole)


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
    terms = RooflineClock(get_model("deepseek-v3"), get_gpu("h200"), tp=8).breakdown
    per_context = terms(plan(1, 1000))["compute"] - terms(plan(1, 0))["compute"]
    assert per_context == pytest.approx(1000 * 61 * 16 * 2 * (576 + 512) / 989e12)
    per_pair = terms(plan(chunks=[(2, 1000)]))["compute"] - terms(plan(chunks=[(2, 0)]))["compute"]
    assert per_pair == pytest.approx(2000 * 61 * 16 * 2 * (192 + 128) / 989e12)


def test_copies_read_and_write_every_byte() -> None:
    clock = llama_clock()
    extra = clock.step_seconds(plan(4, 400, copied_tokens=1000)) - clock.step_seconds(plan(4, 400))
    assert extra == pytest.approx(2 * 1000 * 131_072 / BANDWIDTH)


def test_an_8_bit_cache_halves_the_context_bytes() -> None:
    clock = RooflineClock(get_model("llama-3-8b"), get_gpu("a100-40gb"), kv_dtype_bytes=1)
    assert clock.step_seconds(plan(1, 8000)) == pytest.approx((WEIGHTS + 65_536 * 8000) / BANDWIDTH)


def test_an_empty_step_takes_t0() -> None:
    assert llama_clock(t0_s=0.001).step_seconds(plan()) == 0.001
    assert llama_clock(t0_s=0.001).run_seconds(plan(), 3) == pytest.approx(0.003)


def test_a_run_crosses_from_arithmetic_to_memory_bound() -> None:
    clock, rows, first = llama_clock(), 512, 512
    steps = [clock.step_seconds(plan(rows, first + j * rows)) for j in range(400)]
    terms = [clock.breakdown(plan(rows, first + j * rows)) for j in (0, 399)]
    assert terms[0]["compute"] > terms[0]["memory"]
    assert terms[1]["compute"] < terms[1]["memory"]
    assert clock.run_seconds(plan(rows, first), 400) == pytest.approx(sum(steps), rel=1e-12)
