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
    drafts: int = 0,
    drafts_in_chunks: int = 0,
) -> StepPlan:
    """A plan with just what clocks read; `drafts` are verified by the decodes."""
    step = StepPlan(0, {})
    step.num_decodes = decodes
    step.padded_decodes = padded
    step.decode_context_tokens = context_tokens
    step.chunks = [Chunk(*chunk) for chunk in chunks]
    step.prefill_tokens = sum(new for new, _ in chunks) - drafts_in_chunks
    step.draft_tokens = drafts + drafts_in_chunks
    step.copies = [Copy(0, 64, copied_tokens)] if copied_tokens else []
    return step
