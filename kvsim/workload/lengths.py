"""How long prompts and outputs are: laws that give integer tokens, at least 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError
from kvsim.workload.checks import check_ascending, check_integer, check_number

Ints = npt.NDArray[np.int64]
MAX_TOKENS = 100_000_000


class Streams(NamedTuple):
    """Separate random streams, so that changing one law leaves the other's draws alone."""

    prompts: np.random.Generator
    outputs: np.random.Generator


class TokenLaw(Protocol):
    """A law of one length."""

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """`count` lengths; drawing them in several calls gives the same ones."""


class Lengths(Protocol):
    """A law of prompt and output together."""

    def draw(self, streams: Streams, start: int, count: int) -> tuple[Ints, Ints]:
        """Prompts and outputs of requests `start` to `start + count`, called in order."""


@dataclass(frozen=True)
class ConstantTokens:
    """Always `tokens`."""

    tokens: int

    def __post_init__(self) -> None:
        check_integer(self.tokens, "tokens", 1, MAX_TOKENS)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """See `TokenLaw`."""
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class UniformTokens:
    """Every integer from `low` to `high`, both included, equally often."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_integer(self.low, "low", 1, MAX_TOKENS)
        check_integer(self.high, "high", self.low, MAX_TOKENS)

    @classmethod
    def around(cls, mean: int, range_ratio: float) -> Self:
        """As vLLM's `random` dataset: floor(mean (1 - ratio)) to ceil(mean (1 + ratio))."""
        check_integer(mean, "mean", 1, MAX_TOKENS // 2)
        check_number(range_ratio, "range_ratio", 0, 1)
        low = max(math.floor(mean * (1 - range_ratio)), 1)
        return cls(low, math.ceil(mean * (1 + range_ratio)))

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """See `TokenLaw`."""
        return rng.integers(self.low, self.high, count, dtype=np.int64, endpoint=True)


@dataclass(frozen=True)
class LognormalTokens:
    """exp(N(ln `p50`, `sigma`)), rounded, held within `low` and `high`."""

    p50: float
    sigma: float
    low: int = 1
    high: int = MAX_TOKENS

    def __post_init__(self) -> None:
        check_number(self.p50, "p50", 1e-6, MAX_TOKENS, "tokens")
        check_number(self.sigma, "sigma", 0, 10)
        check_integer(self.low, "low", 1, MAX_TOKENS)
        check_integer(self.high, "high", self.low, MAX_TOKENS)

    @classmethod
    def of_mean(cls, mean: float, *, sigma: float | None = None, p50: float | None = None) -> Self:
        """The law with this mean (before rounding) and either `sigma` or `p50` (below the mean)."""
        check_number(mean, "mean", 1, MAX_TOKENS, "tokens")
        if (sigma is None) == (p50 is None):
            raise InputError(
                f"needs a mean and either sigma or p50, got sigma={sigma}, p50={p50}",
                where="lognormal",
                fix="Give exactly one of the two",
            )
        if p50 is not None:
            check_number(p50, "p50", 1e-6, mean, "tokens (the mean)")
            return cls(p50, math.sqrt(2 * math.log(mean / p50)))
        assert sigma is not None
        check_number(sigma, "sigma", 0, 10)
        return cls(mean * math.exp(-(sigma**2) / 2), sigma)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """See `TokenLaw`."""
        values = self.p50 * np.exp(self.sigma * rng.standard_normal(count))
        return np.rint(np.clip(values, self.low, self.high)).astype(np.int64)


@dataclass(frozen=True)
class QuantileTokens:
    """Linear between quantiles: `values[i]` at probability `probabilities[i]`, from 0 to 1."""

    probabilities: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        check_quantiles(self.probabilities, self.values)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """See `TokenLaw`."""
        return self.at(rng.random(count))

    def at(self, places: npt.NDArray[np.float64]) -> Ints:
        """Lengths at these probabilities."""
        drawn = np.interp(places, self.probabilities, self.values)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)


@dataclass(frozen=True)
class IndependentLengths:
    """Prompt and output know nothing of each other."""

    prompt: TokenLaw
    output: TokenLaw

    def draw(self, streams: Streams, start: int, count: int) -> tuple[Ints, Ints]:
        """See `Lengths`."""
        return self.prompt.draw(streams.prompts, count), self.output.draw(streams.outputs, count)


@dataclass(frozen=True)
class JointQuantiles:
    """Prompt quantiles, and output quantiles for each of equally likely classes of prompts.

    `outputs[c][i]` is the output at probability `output_probabilities[i]` where the prompt is in
    class c of len(outputs), from short to long.
    """

    prompt: QuantileTokens
    output_probabilities: tuple[float, ...]
    outputs: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.outputs:
            raise InputError(
                "must have at least one class", where="outputs", fix="List the output quantiles"
            )
        for values in self.outputs:
            check_quantiles(self.output_probabilities, values)

    def draw(self, streams: Streams, start: int, count: int) -> tuple[Ints, Ints]:
        """See `Lengths`."""
        places = streams.prompts.random(count)
        table = np.array(self.outputs)
        grid = np.array(self.output_probabilities)
        classes = (places * len(table)).astype(np.int64)
        wanted = streams.outputs.random(count)
        left = np.clip(np.searchsorted(grid, wanted, side="right") - 1, 0, len(grid) - 2)
        share = (wanted - grid[left]) / (grid[left + 1] - grid[left])
        low = table[classes, left]
        drawn = low + share * (table[classes, left + 1] - low)
        return self.prompt.at(places), np.maximum(np.rint(drawn), 1).astype(np.int64)


def check_quantiles(probabilities: tuple[float, ...], values: tuple[float, ...]) -> None:
    """Raise unless there is one rising value in 1..MAX_TOKENS per probability, from 0 to 1."""
    if len(probabilities) != len(values) or len(values) < 2:
        raise InputError(
            f"{len(probabilities)} probabilities for {len(values)} values",
            where="quantiles",
            fix="Give two or more values, and one probability for each",
        )
    check_ascending(list(probabilities), "probabilities")
    check_ascending(list(values), "values")
    if probabilities[0] != 0 or probabilities[-1] != 1 or len(set(probabilities)) < len(values):
        raise InputError(
            f"must rise from 0 to 1, got {probabilities[0]:g} to {probabilities[-1]:g}",
            where="probabilities",
            fix="Start with the minimum at 0, end with the maximum at 1, each probability once",
        )
    check_number(values[0], "values", 1, MAX_TOKENS, "tokens")
    check_number(values[-1], "values", 1, MAX_TOKENS, "tokens")
