"""Moving KV out of the device and back: closed form 10 of FIELD.md, and the paper's Fig. 19a."""

from __future__ import annotations

import pytest

from kvsim.core.plan import StepPlan, Transfer
from kvsim.cost import FixedClock, Link, TransferClock, crossover_block_size
from kvsim.errors import InputError

OPT_13B_BYTES = 819_200
LAYERS = 40
OUT = Link(OPT_13B_BYTES, 13.05e9, 2 * LAYERS, 1.92e-6)
IN = Link(OPT_13B_BYTES, 12.19e9, 2 * LAYERS, 3.35e-6)
BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
PAPER_OUT_MS = [55.5, 35.7, 26.0, 21.0, 18.5, 17.3, 16.7, 16.4, 16.0]
PAPER_IN_MS = [82.0, 53.5, 35.2, 26.0, 21.5, 19.3, 18.3, 17.6, 17.3]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_one_direction_is_bytes_over_bandwidth_and_a_cost_per_copy(block_size: int) -> None:
    """l * kappa / BW + c * 2 * L * ceil(l / B); the figure, digitised to 1.5 %, lies on it."""
    tokens, blocks = 256, -(-256 // block_size)
    expected = tokens * 819_200 / 13.05e9 + 1.92e-6 * 2 * 40 * blocks
    assert OUT.seconds(tokens, blocks) == pytest.approx(expected, rel=1e-12)
    row = BLOCK_SIZES.index(block_size)
    assert OUT.seconds(tokens, blocks) * 1e3 == pytest.approx(PAPER_OUT_MS[row], rel=0.015)
    assert IN.seconds(tokens, blocks) * 1e3 == pytest.approx(PAPER_IN_MS[row], rel=0.048)


def test_swapping_beats_recomputing_from_blocks_of_20_tokens_on() -> None:
    """Recomputing 256 tokens takes 38.6 ms at block 16: the curves cross between 16 and 32."""
    crossover = crossover_block_size(256, 38.6e-3, OUT, IN)
    assert crossover is not None
    assert round(crossover) == 20
    slow, fast = (OUT.seconds(256, n) + IN.seconds(256, n) for n in (256 // 16, 256 // 32))
    assert fast < 38.6e-3 < slow
    assert crossover_block_size(256, 30e-3, OUT, IN) is None


def test_a_step_waits_for_its_transfers() -> None:
    """Each transfer has its own way; nothing moved costs nothing, not even the latency."""
    clock = TransferClock(
        FixedClock(0.5), {"out": Link(10, 100.0), "in": Link(10, 50.0, 2, 0.25, 3)}
    )
    plan = StepPlan(1, {})
    plan.num_decodes = 1
    assert clock.step_seconds(plan) == 0.5
    plan.transfers = [Transfer("out", 20, 2), Transfer("in", 5, 1), Transfer("in", 0, 0)]
    assert clock.step_seconds(plan) == 0.5 + 2.0 + (3 + 1 + 0.5)
    assert {fact.name for fact in clock.explain()} >= {"out.copy_s", "in.bandwidth_bytes_per_s"}


@pytest.mark.parametrize("name", ["bytes_per_token", "bandwidth_bytes_per_s", "copies_per_block"])
def test_a_link_without_size_or_speed_is_refused(name: str) -> None:
    """The setting and the value are named."""
    sizes = {"bytes_per_token": 1, "bandwidth_bytes_per_s": 1.0, "copies_per_block": 1}
    with pytest.raises(InputError, match=f"{name} must be > 0 and finite, got 0"):
        Link(**{**sizes, name: 0})  # type: ignore[arg-type]
