"""Settings below `workload.lengths` and `workload.arrivals`: laws that generate requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.scenario.fields import ContentSha256, Section, Tokens, by_key, key_tag
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.names import LengthPresetName, TraceName
from kvsim.workload.arrivals import AllAtOnce, Arrivals, Constant, Gamma, Poisson
from kvsim.workload.lengths import (
    MAX_TOKENS,
    ConstantTokens,
    LognormalTokens,
    QuantileTokens,
    TokenLaw,
    UniformTokens,
)

RatePerS = Annotated[float, Field(ge=1e-6, le=1e9, description="mean arrivals per second")]
_MEAN = "mean of the law, in tokens"


class PoissonArrivals(Section):
    """Independent exponential gaps."""

    kind: Literal["poisson"]
    rate_rps: RatePerS

    def build(self) -> Arrivals:
        """The law."""
        return Poisson(self.rate_rps)


class GammaArrivals(Section):
    """Gamma gaps: burstier than Poisson below 1, more regular above."""

    kind: Literal["gamma"]
    rate_rps: RatePerS
    burstiness: Annotated[float, Field(ge=1e-3, le=1e6)] = Field(
        default=1.0, description="shape of the gamma law; the gaps' CV is 1/sqrt(burstiness)"
    )

    def build(self) -> Arrivals:
        """The law."""
        return Gamma(self.rate_rps, self.burstiness)


class ConstantArrivals(Section):
    """Equal gaps."""

    kind: Literal["constant"]
    rate_rps: RatePerS

    def build(self) -> Arrivals:
        """The law."""
        return Constant(self.rate_rps)


class AllAtOnceArrivals(Section):
    """Everything arrives at time 0: an offline batch, or with max_concurrency a closed loop."""

    kind: Literal["all_at_once"]

    def build(self) -> Arrivals:
        """The law."""
        return AllAtOnce()


ARRIVAL_KINDS: dict[str, type[Section]] = {
    "poisson": PoissonArrivals,
    "gamma": GammaArrivals,
    "constant": ConstantArrivals,
    "all_at_once": AllAtOnceArrivals,
}
ArrivalSettings = Annotated[
    PoissonArrivals | GammaArrivals | ConstantArrivals | AllAtOnceArrivals,
    Field(discriminator="kind", description="when requests arrive"),
]


class ConstantLength(Section):
    """Always the same length."""

    kind: Literal["constant"]
    tokens: Tokens = Field(description="the length")

    def build(self) -> TokenLaw:
        """The law."""
        return ConstantTokens(self.tokens)


class UniformLength(Section):
    """Every integer between two bounds equally often: `low` and `high`, or `mean` and ratio."""

    kind: Literal["uniform"]
    low: Tokens | None = Field(default=None, description="shortest length, in tokens")
    high: Tokens | None = Field(default=None, description="longest length, in tokens")
    mean: Tokens | None = Field(default=None, description=_MEAN)
    range_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="lengths are within mean * (1 -+ range_ratio)"
    )

    @model_validator(mode="after")
    def _buildable(self) -> UniformLength:
        self.build()
        return self

    def build(self) -> TokenLaw:
        """The law. Raises `ValueError` unless exactly one pair of settings is there."""
        bounds, around = (self.low, self.high), (self.mean, self.range_ratio)
        if around == (None, None) and self.low is not None and self.high is not None:
            return UniformTokens(self.low, self.high)
        if bounds == (None, None) and self.mean is not None and self.range_ratio is not None:
            return UniformTokens.around(self.mean, self.range_ratio)
        raise SettingsError(
            "", "needs low and high, or mean and range_ratio", "Give one of the two pairs"
        )


class LognormalLength(Section):
    """A lognormal law, given by two of `mean`, `p50` and `sigma`."""

    kind: Literal["lognormal"]
    mean: Annotated[float, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        default=None, description=_MEAN
    )
    p50: Annotated[float, Field(gt=0, le=MAX_TOKENS)] | None = Field(
        default=None, description="median, in tokens"
    )
    sigma: Annotated[float, Field(ge=0, le=10)] | None = Field(
        default=None, description="standard deviation of the logarithm"
    )
    low: Tokens = Field(default=1, description="shorter lengths become this, in tokens")
    high: Tokens = Field(default=MAX_TOKENS, description="longer lengths become this, in tokens")

    @model_validator(mode="after")
    def _buildable(self) -> LognormalLength:
        self.build()
        return self

    def build(self) -> TokenLaw:
        """The law. Raises `ValueError` unless exactly two of its three settings are there."""
        if [self.mean, self.p50, self.sigma].count(None) != 1:
            raise SettingsError(
                "", "needs exactly two of mean, p50 and sigma", "Give two of the three"
            )
        if self.mean is not None:
            law = LognormalTokens.of_mean(self.mean, sigma=self.sigma, p50=self.p50)
        else:
            assert self.p50 is not None
            assert self.sigma is not None
            law = LognormalTokens(self.p50, self.sigma)
        return replace(law, low=self.low, high=self.high)


class QuantileLength(Section):
    """Linear between quantiles."""

    kind: Literal["quantiles"]
    probabilities: list[float] = Field(
        min_length=2, max_length=10_000, description="probabilities, rising from 0 to 1"
    )
    values: list[float] = Field(
        min_length=2, max_length=10_000, description="the length at each probability, in tokens"
    )

    @model_validator(mode="after")
    def _buildable(self) -> QuantileLength:
        self.build()
        return self

    def build(self) -> TokenLaw:
        """The law. Raises `ValueError` for lists that are no quantile table."""
        return QuantileTokens(tuple(self.probabilities), tuple(self.values))


LENGTH_KINDS: dict[str, type[Section]] = {
    "constant": ConstantLength,
    "uniform": UniformLength,
    "lognormal": LognormalLength,
    "quantiles": QuantileLength,
}
LengthLaw = Annotated[
    ConstantLength | UniformLength | LognormalLength | QuantileLength,
    Field(discriminator="kind", description="a law of lengths"),
]


class IndependentLengthSettings(Section):
    """Prompt and output each by a law of its own."""

    prompt: LengthLaw = Field(description="law of the prompt length")
    output: LengthLaw = Field(description="law of the output length")


class PairFileSettings(Section):
    """Prompt and output together from the rows of a file."""

    path: str = Field(description="a file of lengths; relative paths start at the scenario file")
    sha256: ContentSha256 = None
    order: Literal["file", "sample"] = Field(
        default="file", description="file (row after row, again from the start) or sample"
    )


class PairTraceSettings(Section):
    """Prompt and output together from the rows of a published trace."""

    trace: TraceName = Field(description="name of a published trace or list of lengths")
    order: Literal["file", "sample"] = Field(
        default="file", description="file (row after row, again from the start) or sample"
    )


class PairPresetSettings(Section):
    """Prompt and output together from a law derived from published data; needs no file."""

    preset: LengthPresetName = Field(description="name of a preset of lengths, e.g. sharegpt")


LENGTH_SOURCES: dict[str, type[Section]] = {
    "prompt": IndependentLengthSettings,
    "path": PairFileSettings,
    "trace": PairTraceSettings,
    "preset": PairPresetSettings,
}
LengthSettings = Annotated[
    Annotated[IndependentLengthSettings, key_tag("prompt")]
    | Annotated[PairFileSettings, key_tag("path")]
    | Annotated[PairTraceSettings, key_tag("trace")]
    | Annotated[PairPresetSettings, key_tag("preset")],
    by_key("prompt", "path", "trace", "preset"),
    Field(description="how long prompts and outputs are"),
]
