from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.catalog import Engine, get_gpu, get_model
from kvsim.cost import CLOCKS, CalibratedClock, FixedClock, LinearClock, RooflineClock
from kvsim.cost.operators import (
    MoeShape,
    decode_attention_s,
    gemm_s,
    mixed_attention_s,
    moe_s,
    prefill_attention_s,
)
from kvsim.cost.runs import steps_within
from kvsim.errors import InputError
from tests.cost.plans import plan

H100 = get_gpu("h100")
LLAMA = get_model("llama-3-8b")

AnyClock = FixedClock | LinearClock | RooflineClock | CalibratedClock


def clocks() -> list[AnyClock]:
    models = [LLAMA, get_model("mixtral-8x7b"), get_model("deepseek-v3")]
    gpus = [H100, get_gpu("a100-40gb")]
    return [
        *(CalibratedClock(m, g, tp=8, engine="vllm") for m, g in product(models, gpus)),
        *(RooflineClock(m, H100, tp=8) for m in models),
        LinearClock(base_s=0.0225, prefill_token_s=0.00015, context_token_s=7.5e-7),
    ]


CLOCK = st.sampled_from(clocks())
ROWS = st.integers(0, 600)
CHUNKS = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 100_000)), max_size=4)


def test_a_decode_step_is_the_sum_of_its_operators() -> None:
    rows, context = 64, 64 * 1000
    shapes = [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)]
    gemms = sum(gemm_s(H100, "bf16", rows, n, k) for n, k in shapes)
    attention = decode_attention_s(
        H100, rows=rows, context_tokens=context, kv_heads=8, head_dim=128, kv_dtype_bytes=2
    )
    small_bw = 0.75 * 3.35e12
    small = 5 * 2.4e-6 + 2 * rows * (8 * 4096 + 32 * 128 + 8 * 128 + 3 * 14_336) / small_bw
    head = gemm_s(H100, "bf16", rows, 128_256, 4096)
    sample = 25e-6 + 8 * rows * 128_256 / small_bw
    expected = 32 * (gemms + attention + small) + head + sample
    assert CalibratedClock(LLAMA, H100).step_seconds(plan(rows, context)) == pytest.approx(
        expected, rel=1e-12
    )


def test_a_mixed_step_shares_one_attention_kernel() -> None:
    gpu = get_gpu("rtx4090")
    clock = CalibratedClock(LLAMA, gpu)
    chunks = [(512, 0), (128, 4096)]
    prefill = prefill_attention_s(gpu, chunks, heads=32, kv_heads=8, head_dim=128)
    decode = decode_attention_s(
        gpu, rows=16, context_tokens=16_000, kv_heads=8, head_dim=128, kv_dtype_bytes=2
    )
    mixed = mixed_attention_s(gpu, prefill, decode, heads_per_kv=4)
    terms = clock.breakdown(plan(16, 16_000, chunks))
    assert terms["attention"] == pytest.approx(32 * mixed, rel=1e-12)
    alone = clock.breakdown(plan(chunks=chunks))["attention"]
    assert alone == pytest.approx(32 * prefill, rel=1e-12)
    # 656 tokens are computed, 18 rows are sampled.
    head = gemm_s(gpu, "bf16", 18, 128_256, 4096)
    assert terms["lm_head"] == pytest.approx(head, rel=1e-12)
    down = gemm_s(gpu, "bf16", 656, 4096, 14_336)
    assert terms["gemm"] > 32 * down


def test_tensor_parallelism_pays_two_all_reduces_per_layer_and_one_more() -> None:
    terms = CalibratedClock(LLAMA, H100, tp=2).breakdown(plan(64, 64_000))
    one = 4.3e-6 + 2 * (1 / 2) * 2 * 64 * 4096 / 252e9
    assert terms["allreduce"] == pytest.approx(65 * one, rel=1e-12)
    assert CalibratedClock(LLAMA, H100).breakdown(plan(64, 64_000))["allreduce"] == 0.0


def test_a_mixture_of_experts_adds_router_and_experts() -> None:
    model = get_model("mixtral-8x7b")
    terms = CalibratedClock(model, H100, tp=2).breakdown(plan(64, 64_000))
    experts = moe_s(H100, "bf16", 64, MoeShape(4096, 7168, 8, 2))
    assert terms["moe"] == pytest.approx(32 * experts, rel=1e-12)
    shapes = [(3072, 4096), (4096, 2048), (8, 4096)]
    gemms = sum(gemm_s(H100, "bf16", 64, n, k) for n, k in shapes)
    assert terms["gemm"] == pytest.approx(32 * gemms, rel=1e-12)


def test_latent_decode_attention_is_bound_by_latent_bytes_or_absorbed_arithmetic() -> None:
    model, gpu = get_model("deepseek-v3"), get_gpu("h200")

    def slope(tp: int) -> float:
        clock = CalibratedClock(model, gpu, tp=tp)
        return clock.step_seconds(plan(8, 10_000)) - clock.step_seconds(plan(8, 0))

    assert slope(8) == pytest.approx(10_000 * 70_272 / (0.883 * 4.8e12))
    absorbed = 61 * 128 * 2 * (576 + 512)
    assert slope(1) == pytest.approx(10_000 * absorbed / (0.687 * 989e12))


def test_copies_read_and_write_at_the_bandwidth_of_small_kernels() -> None:
    clock = CalibratedClock(LLAMA, H100)
    extra = clock.step_seconds(plan(4, 400, copied_tokens=1000)) - clock.step_seconds(plan(4, 400))
    assert extra == pytest.approx(2 * 1000 * 131_072 / (0.75 * 3.35e12))


def test_host_time_is_per_step_and_per_row() -> None:
    step = plan(10, 1000, [(64, 0)])
    bare = CalibratedClock(LLAMA, H100).step_seconds(step)
    own = CalibratedClock(LLAMA, H100, engine=Engine("mine", 0.001, 2e-5, "measured"))
    assert own.step_seconds(step) == pytest.approx(bare + 0.001 + 11 * 2e-5)
    assert own.step_seconds(plan()) == 0.001


def test_padded_rows_cost_as_much_as_decodes() -> None:
    clock = CalibratedClock(LLAMA, H100)
    assert clock.step_seconds(plan(5, 900, padded=3)) == clock.step_seconds(plan(8, 900))


@given(CLOCK, ROWS, st.integers(0, 10**6), CHUNKS)
def test_a_step_never_gets_shorter_when_something_is_added(
    clock: AnyClock, rows: int, context: int, chunks: list[tuple[int, int]]
) -> None:
    context = context if rows else 0
    least = clock.step_seconds(plan(rows, context, chunks)) * (1 - 1e-12)
    assert clock.step_seconds(plan(rows + 1, context, chunks)) >= least
    assert clock.step_seconds(plan(rows, context, [*chunks, (1, 0)])) >= least
    if rows:
        assert clock.step_seconds(plan(rows, context + 100, chunks)) >= least
    for i, (new, prior) in enumerate(chunks):
        for change in ((new + 1, prior), (new, prior + 1)):
            changed = [*chunks[:i], change, *chunks[i + 1 :]]
            assert clock.step_seconds(plan(rows, context, changed)) >= least


@given(CLOCK, ROWS, st.integers(0, 10**6), CHUNKS)
def test_the_breakdown_sums_to_the_step(
    clock: AnyClock, rows: int, context: int, chunks: list[tuple[int, int]]
) -> None:
    step = plan(rows, context if rows else 0, chunks, copied_tokens=5)
    terms = clock.breakdown(step)
    if isinstance(clock, RooflineClock):
        total = max(terms["memory"], terms["compute"]) + terms["t0"] + terms["copies"]
    else:
        total = sum(terms.values())
    assert clock.step_seconds(step) == pytest.approx(total, rel=1e-12)


@given(st.integers(1, 500), st.integers(0, 10**6), st.integers(1, 300))
def test_k_decode_steps_take_k_times_the_first_plus_the_growth(n: int, s: int, k: int) -> None:
    clock = CalibratedClock(LLAMA, H100, engine="vllm")
    first = clock.step_seconds(plan(n, s))
    beta = 2 * 8 * 128 * 2 / (0.912 * 3.35e12)
    expected = k * first + 32 * beta * n * k * (k - 1) / 2
    assert sum(clock.step_seconds(plan(n, s + j * n)) for j in range(k)) == pytest.approx(expected)
    assert clock.run_seconds(plan(n, s), k) == pytest.approx(expected, rel=1e-9)


@given(CLOCK, st.integers(0, 500), st.integers(0, 10**6), st.integers(0, 300), st.integers(0, 300))
def test_splitting_a_run_changes_nothing(
    clock: AnyClock, n: int, s: int, first: int, second: int
) -> None:
    s = s if n else 0
    whole = clock.run_seconds(plan(n, s), first + second)
    parts = clock.run_seconds(plan(n, s), first) + clock.run_seconds(plan(n, s + first * n), second)
    assert parts == pytest.approx(whole, rel=1e-9)
    steps = sum(clock.step_seconds(plan(n, s + j * n)) for j in range(first))
    assert clock.run_seconds(plan(n, s), first) == pytest.approx(steps, rel=1e-9)


@given(CLOCK, st.integers(1, 500), st.integers(0, 10**6), st.floats(1e-4, 1e3))
def test_steps_within_is_the_largest_run_that_fits(
    clock: AnyClock, n: int, s: int, seconds: float
) -> None:
    steps = clock.steps_within(plan(n, s), seconds)
    assert clock.run_seconds(plan(n, s), steps) <= seconds
    assert clock.run_seconds(plan(n, s), steps + 1) > seconds


def test_the_search_for_a_run_takes_logarithmic_time() -> None:
    calls = 0

    def total(steps: int) -> float:
        nonlocal calls
        calls += 1
        return float(steps)

    assert steps_within(total, 1e9) == 1_000_000_000
    assert calls < 70


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "kv_dtype_bytes", "expected"),
    [
        ("llama-3-8b", "h100", 1, 2, 0.15),
        ("llama-3-8b", "h100", 4, 2, 0.15),
        ("llama-3-8b", "h100", 1, 1, 0.30),
        ("mixtral-8x7b", "h100", 2, 2, 0.30),
        ("deepseek-v3", "h200", 8, 2, 0.30),
        ("llama-3-8b", "a100-40gb", 1, 2, 0.40),
        ("llama-3-8b", "rtx4090", 1, 2, 0.15),
        ("llama-3-8b", "rtx4090", 2, 2, 0.40),
        ("llama-3-8b", "rtx3090", 1, 2, 0.40),
    ],
)
def test_the_stated_error_follows_what_was_measured_on_this_gpu(
    model: str, gpu: str, tp: int, kv_dtype_bytes: int, expected: float
) -> None:
    clock = CalibratedClock(get_model(model), get_gpu(gpu), tp=tp, kv_dtype_bytes=kv_dtype_bytes)
    assert clock.relative_error == expected
    assert f"{expected:.0%}" in clock.note


def test_the_note_of_a_class_default_names_its_origin_and_what_that_assumes() -> None:
    note = CalibratedClock(LLAMA, get_gpu("a100-40gb")).note
    assert "efficiencies of a100-80gb unchanged" in note
    assert "gemm.bf16 not measured on this GPU, whose source assumes 15 %" in note


def test_small_kernels_of_expert_layers_count_the_shared_expert() -> None:
    terms = CalibratedClock(get_model("deepseek-v3"), H100, tp=8).breakdown(plan(64, 0))
    elements = 61 * (8 * 7168 + 16 * 192 + 1 * 192)
    elements += 3 * 3 * 18_432 // 8 + 58 * 3 * 2048 // 8
    expected = 61 * 5 * 2.4e-6 + 2 * 64 * elements / (0.75 * 3.35e12)
    assert terms["small"] == pytest.approx(expected, rel=1e-12)


def test_fp8_weights_use_the_fp8_unit_where_there_is_one() -> None:
    model = replace(LLAMA, weight_dtype="fp8")
    units = {
        name: next(
            f.value
            for f in CalibratedClock(model, get_gpu(name)).explain()
            if f.name == "arithmetic"
        )
        for name in ("h100", "a100-80gb")
    }
    assert units == {"h100": "fp8", "a100-80gb": "bf16"}


def test_impossible_parallelism_and_host_times_are_refused() -> None:
    with pytest.raises(InputError, match="Known sizes: 1, 2, 4, 8"):
        CalibratedClock(get_model("llama-3-70b"), H100, tp=16)
    with pytest.raises(InputError, match="host_s must be >= 0 s"):
        CalibratedClock(LLAMA, H100, engine=Engine("mine", -1.0, 0.0, "typed wrong"))
    with pytest.raises(InputError, match="engine 'vlm'"):
        CalibratedClock(LLAMA, H100, engine="vlm")


def test_decode_steps_of_known_sizes_compute_no_operator_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = CalibratedClock(get_model("mixtral-8x7b"), H100)
    expected = [clock.step_seconds(plan(n, 1000)) for n in range(1, 50)]
    monkeypatch.setattr("kvsim.cost.shapes.hypot", None)
    monkeypatch.setattr("kvsim.cost.operators.hypot", None)
    assert [clock.step_seconds(plan(n, 1000)) for n in range(1, 50)] == expected


def test_clocks_are_found_by_kind() -> None:
    assert set(CLOCKS) == {"fixed", "linear", "roofline", "calibrated"}
