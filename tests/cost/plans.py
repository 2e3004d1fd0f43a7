"""Step plans for clock tests."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.core.plan import Chunk, Copy, StepPlan


def plan(
    decodes: int = 0,
    context_tokens: int = 0,
    chunks: Sequence[tuple[int, int]] = (),
    *,
    padded: int = 0,
    copied_tokens: int = 0,
) -> StepPlan:
    """A plan with just what clocks read."""
    step = StepPlan(0, {})
    step.num_decodes = decodes
    step.padded_decodes = padded
    step.decode_context_tokens = context_tokens
    step.chunks = [Chunk(*chunk) for chunk in chunks]
    step.copies = [Copy(0, 64, copied_tokens)] if copied_tokens else []
    return step
