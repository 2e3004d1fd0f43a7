"""Clocks whose numbers the user gives."""

from __future__ import annotations

from kvsim.catalog.explain import Fact
from kvsim.core.plan import StepPlan
from kvsim.cost.checks import check_seconds
from kvsim.cost.drafts import decode_drafts
from kvsim.errors import InputError


class FixedClock:
    """Every step takes the same time, empty ones included."""

    relative_error: float | None = None
    note = "fixed step time, as given"

    def __init__(self, step_s: float, *, copy_token_s: float = 0.0) -> None:
        check_seconds(step_s=step_s, copy_token_s=copy_token_s)
        if step_s == 0.0:
            raise InputError("step_s must be > 0 s, got 0", where="step_s")
        self.step_s = step_s
        self.copy_token_s = copy_token_s

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        if plan.copies:
            return self.step_s + self.copy_token_s * sum(copy.tokens for copy in plan.copies)
        return self.step_s

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        return [
            Fact("step_s", self.step_s, "s", "given"),
            Fact("copy_token_s", self.copy_token_s, "s/token", "given"),
        ]


class LinearClock:
    """`base_s + prefill_token_s * new prompt tokens + context_token_s * context + decode_s * n`.

    Context is what attention reads back: the contexts of the decodes (their new token included,
    padded rows too) and the prior tokens of prefill chunks. Padded prompt tokens count as new.
    n counts the decodes and every draft that they verify.
    Reading takes 1/`read_efficiency` times as long: small KV blocks are read more slowly.
    """

    relative_error: float | None = None
    note = "linear step time, as given"

    def __init__(
        self,
        *,
        base_s: float,
        prefill_token_s: float,
        context_token_s: float,
        decode_s: float = 0.0,
        copy_token_s: float = 0.0,
        read_efficiency: float = 1.0,
    ) -> None:
        if not 0.0 < read_efficiency <= 1.0:
            raise InputError(
                f"must be > 0 and <= 1, got {read_efficiency!r}",
                where="read_efficiency",
                fix="1 reads the context in context_token_s per token, 0.5 takes twice as long",
            )
        check_seconds(
            base_s=base_s,
            prefill_token_s=prefill_token_s,
            context_token_s=context_token_s,
            decode_s=decode_s,
            copy_token_s=copy_token_s,
        )
        if base_s + decode_s == 0.0:
            raise InputError(
                "base_s and decode_s are both 0 s: decode steps would take no time",
                where="base_s",
                fix="Give one of them a positive value",
            )
        self.base_s = base_s
        self.prefill_token_s = prefill_token_s
        self.context_token_s = context_token_s / read_efficiency
        self.read_efficiency = read_efficiency
        self.decode_s = decode_s
        self.copy_token_s = copy_token_s

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        seconds = (
            self.base_s
            + self.decode_s * (plan.num_decodes + plan.padded_decodes + decode_drafts(plan))
            + self.context_token_s * plan.decode_context_tokens
        )
        for new_tokens, prior_tokens in plan.chunks:
            seconds += self.prefill_token_s * new_tokens + self.context_token_s * prior_tokens
        if plan.copies:
            seconds += self.copy_token_s * sum(copy.tokens for copy in plan.copies)
        return seconds

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        return [
            Fact("base_s", self.base_s, "s", "given"),
            Fact("prefill_token_s", self.prefill_token_s, "s/token", "given"),
            Fact(
                "context_token_s",
                self.context_token_s,
                "s/token",
                f"given, over a read efficiency of {self.read_efficiency:g}",
            ),
            Fact("decode_s", self.decode_s, "s/sequence", "given"),
            Fact("copy_token_s", self.copy_token_s, "s/token", "given"),
        ]
