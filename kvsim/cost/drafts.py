"""Speculative decoding: what verifying and proposing drafts costs."""

from __future__ import annotations

from kvsim.catalog.explain import Fact
from kvsim.core.plan import StepPlan
from kvsim.cost.checks import check_seconds
from kvsim.cost.predictive import PredictiveClock

NOTE = "drafts are verified as further query tokens, which was not measured"


def decode_drafts(plan: StepPlan) -> int:
    """Drafts that decodes verify; those of a prefill are tokens of its chunk."""
    if not plan.draft_tokens:
        return 0
    in_chunks = sum(chunk.new_tokens for chunk in plan.chunks) - plan.prefill_tokens
    return plan.draft_tokens - in_chunks


def queries_per_decode(plan: StepPlan) -> float:
    """Tokens that a decode computes, on average: one and its drafts."""
    drafts = decode_drafts(plan)
    return 1.0 + drafts / plan.num_decodes if drafts else 1.0


class DraftingClock:
    """Another clock's time, and that of proposing drafts at the end of a step that samples."""

    def __init__(self, clock: PredictiveClock, *, draft_step_s: float) -> None:
        """`draft_step_s` is the time to propose all drafts of all requests of a step."""
        check_seconds(draft_step_s=draft_step_s)
        self.draft_step_s = draft_step_s
        self.relative_error = clock.relative_error
        self.note = f"{clock.note}; {NOTE}"
        self._clock = clock

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        seconds = self._clock.step_seconds(plan)
        return seconds + self.draft_step_s if plan.num_decodes or plan.joined else seconds

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        given = Fact("draft_step_s", self.draft_step_s, "s", "given, all drafts of a step")
        return [*self._clock.explain(), given]
