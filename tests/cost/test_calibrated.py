from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.catalog import Engine, get_gpu, get_model
from kvsim.cost import CalibratedClock, LinearClock, RooflineClock
from kvsim.errors import InputError
from tests.cost.plans import plan

H100 = get_gpu("h100")
LLAMA = get_model("llama-3-8b")

AnyClock = LinearClock | RooflineClock | CalibratedClock


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


def test_latent_decode_attention_is_bound_by_latent_bytes_or_absorbed_arithmetic() -> None:
    model, gpu = get_model("deepseek-v3"), get_gpu("h200")

    def slope(tp: int) -> float:
        clock = CalibratedClock(model, gpu, tp=tp)
        return clock.step_seconds(plan(8, 10_000)) - clock.step_seconds(plan(8, 0))

    # Datasheet bandwidth and FLOP/s: the formula fits no fraction of them here.
    assert slope(8) == pytest.approx(10_000 * 70_272 / 4.8e12)
    absorbed = 61 * 128 * 2 * (576 + 512)
    assert slope(1) == pytest.approx(10_000 * absorbed / 989e12)


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


def test_a_decode_step_is_affine_in_the_context() -> None:
    """Slope: KV bytes of a token over the fitted bandwidth; by it k steps sum to a closed form."""
    clock, n, s, k = CalibratedClock(LLAMA, H100, engine="vllm"), 300, 100_000, 200
    first = clock.step_seconds(plan(n, s))
    beta = 2 * 8 * 128 * 2 / (0.912 * 3.35e12)
    expected = k * first + 32 * beta * n * k * (k - 1) / 2
    assert sum(clock.step_seconds(plan(n, s + j * n)) for j in range(k)) == pytest.approx(expected)


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


def test_the_host_times_of_an_engine_name_the_error_they_were_found_with() -> None:
    facts = {f.name: f for f in CalibratedClock(LLAMA, H100, engine="vllm").explain()}
    assert "median 9.7 %, p90 47.3 % on runs that were not fitted" in facts["host_s"].source


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
    monkeypatch.setattr("kvsim.cost.operators.hypot", None)
    assert [clock.step_seconds(plan(n, 1000)) for n in range(1, 50)] == expected
