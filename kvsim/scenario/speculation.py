"""Settings of `engine.speculative_config`, and how many drafts are right."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from itertools import accumulate
from operator import mul
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.core.request import Request
from kvsim.core.speculative_scheduler import Speculation
from kvsim.scenario.fields import Seconds, Section
from kvsim.scenario.findings import SettingsError

MAX_DRAFTS = 256
Probability = Annotated[float, Field(ge=0, le=1)]


class SpeculativeSettings(Section):
    """Drafts that the model verifies, several tokens of a request in one step.

    What a draft says is not simulated: a draft is right with the given probability, if those before
    it in the same step were.
    """

    method: Literal["ngram", "draft_model", "eagle"] = Field(
        description="who proposes: ngram (text that occurred before), draft_model (a small model),"
        " eagle (a head on the model's own states)"
    )
    num_speculative_tokens: Annotated[
        int, Field(ge=1, le=MAX_DRAFTS, json_schema_extra={"unit": "token"})
    ] = Field(description="drafts per request and step")
    acceptance_rate: Probability | None = Field(
        default=None,
        description="probability that a draft is right, given that those before it are; the same"
        " for every place",
    )
    acceptance_rates: Annotated[list[Probability], Field(min_length=1)] | None = Field(
        default=None, description="the same, one probability for each place in turn"
    )
    draft_s_per_token: Seconds | None = Field(
        default=None,
        description="seconds to propose one draft for every request of a step; left out, 0 with"
        " ngram",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SpeculativeSettings:
        if (self.acceptance_rate is None) == (self.acceptance_rates is None):
            raise SettingsError(
                "", "needs either acceptance_rate or acceptance_rates", "Give one of the two"
            )
        rates, drafts = self.acceptance_rates, self.num_speculative_tokens
        if rates is not None and len(rates) != drafts:
            raise SettingsError(
                "acceptance_rates",
                f"must have num_speculative_tokens = {drafts} items, got {len(rates)}",
                "Give one probability for each draft",
            )
        if self.draft_s_per_token is None and self.method != "ngram":
            raise SettingsError(
                "draft_s_per_token",
                f"is missing, and method is {self.method}, whose drafts take time",
                "Add the seconds that one draft for every request of a step takes, 0 to neglect it",
            )
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """Probability of each draft, given those before it."""
        if self.acceptance_rates is not None:
            return tuple(self.acceptance_rates)
        assert self.acceptance_rate is not None  # _consistent
        return (self.acceptance_rate,) * self.num_speculative_tokens

    @property
    def draft_step_s(self) -> float:
        """Seconds to propose all drafts of a step."""
        return (self.draft_s_per_token or 0.0) * self.num_speculative_tokens

    def build(self, seed: int) -> Speculation:
        """The mechanism, with its luck."""
        return Speculation(self.method, self.num_speculative_tokens, Acceptance(self.rates, seed))


class Acceptance:
    """Accepted drafts of a request's n-th verification: decided by seed, request id and n alone.

    So it does not matter when, or beside whom, the request is verified; and servers that differ in
    memory or order, or in the rates, see the same luck.
    """

    def __init__(self, rates: tuple[float, ...], seed: int) -> None:
        """`rates` are the probabilities of each draft, given those before it."""
        self._misses = [-survives for survives in accumulate(rates, mul)]
        self._seed = seed

    def __call__(self, request: Request, verification: int, verified: int) -> int:
        """Leading drafts that are right, of `verified` ones.

        The draft at place i survives if one number, uniform in [0, 1), is below the product of the
        first i rates.
        """
        name = f"{self._seed}/{verification}/{request.request_id}"
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") >> 11) / 2**53
        return min(bisect_left(self._misses, -uniform), verified)
