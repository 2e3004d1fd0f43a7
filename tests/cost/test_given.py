from __future__ import annotations

from math import inf, nan

import pytest

from kvsim.cost import FixedClock, LinearClock
from kvsim.errors import InputError
from tests.cost.plans import plan


def paper_clock() -> LinearClock:
    return LinearClock(base_s=0.0225, prefill_token_s=0.00015, context_token_s=7.5e-7)


def test_a_fixed_step_takes_the_given_time_whatever_it_computes() -> None:
    clock = FixedClock(0.02)
    assert clock.step_seconds(plan()) == 0.02
    assert clock.step_seconds(plan(64, 10_000, [(512, 0)])) == 0.02


def test_a_linear_step_charges_base_prompt_tokens_and_context() -> None:
    seconds = paper_clock().step_seconds(plan(10, 4000, [(100, 0), (50, 200)]))
    assert seconds == pytest.approx(0.0225 + 150 * 0.00015 + (4000 + 200) * 7.5e-7)


def test_a_read_efficiency_stretches_the_reading_of_context_and_nothing_else() -> None:
    clock = LinearClock(
        base_s=0.01, prefill_token_s=1e-4, context_token_s=1e-6, read_efficiency=0.25
    )
    seconds = clock.step_seconds(plan(3, 4000, [(100, 0), (50, 200)]))
    assert seconds == pytest.approx(0.01 + 150 * 1e-4 + (4000 + 200) * 4e-6)
    facts = {fact.name: fact for fact in clock.explain()}
    assert facts["context_token_s"].value == 4e-6
    assert facts["context_token_s"].source == "given, over a read efficiency of 0.25"


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, nan])
def test_a_read_efficiency_that_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="read_efficiency: must be > 0 and <= 1"):
        LinearClock(base_s=0.01, prefill_token_s=0, context_token_s=0, read_efficiency=share)


def test_a_linear_step_charges_decodes_padded_rows_and_copies_when_asked() -> None:
    clock = LinearClock(
        base_s=0.01, prefill_token_s=0, context_token_s=0, decode_s=0.001, copy_token_s=1e-6
    )
    seconds = clock.step_seconds(plan(3, 0, padded=2, copied_tokens=1000))
    assert seconds == pytest.approx(0.01 + 5 * 0.001 + 1000 * 1e-6)


def test_a_fixed_clock_charges_copies_when_asked() -> None:
    clock = FixedClock(0.02, copy_token_s=1e-6)
    assert clock.step_seconds(plan(copied_tokens=500)) == pytest.approx(0.0205)
    assert FixedClock(0.02).step_seconds(plan(copied_tokens=500)) == 0.02


def test_given_clocks_claim_no_error_of_their_own() -> None:
    assert paper_clock().relative_error is None
    assert FixedClock(0.02).relative_error is None


@pytest.mark.parametrize("seconds", [-0.1, nan, inf, 0.0])
def test_a_step_time_that_is_not_positive_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="step_s must be"):
        FixedClock(seconds)


def test_a_linear_clock_that_stands_still_is_refused() -> None:
    with pytest.raises(InputError, match="decode steps would take no time"):
        LinearClock(base_s=0, prefill_token_s=1e-4, context_token_s=1e-7)
    with pytest.raises(InputError, match="context_token_s must be >= 0 s"):
        LinearClock(base_s=0.01, prefill_token_s=1e-4, context_token_s=-1e-7)
