"""What verifying and proposing drafts costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.catalog import get_gpu, get_model
from kvsim.core.request import Request, Sequence
from kvsim.cost import CalibratedClock, DraftingClock, FixedClock, LinearClock, RooflineClock
from kvsim.errors import InputError
from tests.cost.formula import Formula
from tests.cost.plans import plan
from tests.cost.test_formula import CASES
from tests.cost.test_roofline import BANDWIDTH, FLOPS, HEAD, LAYERS, WEIGHTS, llama_clock

CHUNKS = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 50_000)), max_size=3)


@pytest.mark.parametrize("case", CASES)
@given(
    rows=st.integers(1, 300),
    each=st.integers(1, 64),
    context=st.integers(1, 8000),
    chunks=CHUNKS,
)
def test_a_draft_is_a_decode_token_whose_context_is_read_once(
    case: str, rows: int, each: int, context: int, chunks: list[tuple[int, int]]
) -> None:
    name, gpu, tp, dtype, width = CASES[case]
    model = replace(get_model(name), weight_dtype=dtype)
    step = plan(rows, rows * context, chunks, drafts=rows * each)
    clock = CalibratedClock(model, get_gpu(gpu), tp=tp, kv_dtype_bytes=width)
    expected = Formula(model, get_gpu(gpu), tp, width).seconds(step)
    assert clock.step_seconds(step) == pytest.approx(expected, rel=1e-12)
    assert clock.step_seconds(step) > clock.step_seconds(plan(rows, rows * context, chunks))


def test_by_the_roofline_a_few_drafts_are_free_while_reading_binds() -> None:
    """Weights and context are read as often as without drafts."""
    seconds = llama_clock().step_seconds(plan(16, 16_000, drafts=48))
    assert seconds == pytest.approx((WEIGHTS + 131_072 * 16_000) / BANDWIDTH, rel=1e-12)


def test_by_the_roofline_many_drafts_cost_arithmetic() -> None:
    """Each is a token of the layers, a row of the head, and a query of its context."""
    tokens, context = 1024 * 8, 1024 * 500
    flops = 2 * (LAYERS + HEAD) * tokens + 4 * 32 * 32 * 128 * context * 8
    seconds = llama_clock().step_seconds(plan(1024, context, drafts=1024 * 7))
    assert seconds == pytest.approx(flops / FLOPS, rel=1e-12)


def test_dummy_drafts_of_a_prefill_are_tokens_of_its_chunk() -> None:
    """A lone token padded with three drafts: four tokens of the chunk, and four rows."""
    padded = llama_clock().step_seconds(plan(2000, 2000, [(4, 100)], drafts_in_chunks=3))
    flops = 2 * LAYERS * 2004 + 2 * HEAD * 2004 + 4 * 32 * 32 * 128 * (2000 + 4 * 102)
    assert padded == pytest.approx(flops / FLOPS, rel=1e-12)


def test_a_linear_clock_charges_a_draft_like_a_decode() -> None:
    clock = LinearClock(base_s=0.1, prefill_token_s=0.0, context_token_s=1e-6, decode_s=0.01)
    assert clock.step_seconds(plan(3, 900, drafts=6)) == pytest.approx(0.1 + 0.09 + 900e-6)


def test_the_drafter_adds_its_time_to_steps_that_sample_a_token() -> None:
    clock = DraftingClock(FixedClock(0.5), draft_step_s=0.125)
    assert clock.step_seconds(plan(1, 10)) == 0.625
    prefill = plan(chunks=[(10, 0)])
    assert clock.step_seconds(prefill) == 0.5
    prefill.joined = [Sequence(Request("r0", 0, 10, 2), 100)]
    assert clock.step_seconds(prefill) == 0.625


def test_a_drafting_clock_says_what_it_is() -> None:
    inner = RooflineClock(get_model("llama-3-8b"), get_gpu("h100"))
    clock = DraftingClock(inner, draft_step_s=0.001)
    assert clock.relative_error == inner.relative_error
    assert (
        clock.note
        == f"{inner.note}; drafts are verified as further query tokens, which was not measured"
    )
    assert [fact.name for fact in clock.explain()][-1] == "draft_step_s"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_drafter_without_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="draft_step_s must be >= 0 s"):
        DraftingClock(FixedClock(0.5), draft_step_s=seconds)
