"""Prompt and output lengths from a joint histogram, smoothed by the quantiles of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError
from kvsim.workload.checks import check_ascending, check_integer
from kvsim.workload.lengths import Ints, QuantileTokens, Streams

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class JointHistogram:
    """A cell of the histogram first, then a place inside it on the curve of each length.

    prompt, output              quantile curves of each length alone; tokens
    prompt_edges, output_edges  the histogram's bins [e_i, e_{i+1}), the first and last edge those
                                of the curves; tokens
    counts                      pairs per cell, a row for each bin of prompts
    max_total_tokens            most tokens of prompt and output together

    A cell that the total cuts through keeps its count: first the output, then the prompt stay
    below what the other leaves.
    """

    prompt: QuantileTokens
    output: QuantileTokens
    prompt_edges: tuple[int, ...]
    output_edges: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    max_total_tokens: int

    def __post_init__(self) -> None:
        check_integer(self.max_total_tokens, "max_total_tokens", 2, 2**31)
        check_ascending(list(self.prompt_edges), "prompt_edges")
        check_ascending(list(self.output_edges), "output_edges")
        rows, columns = len(self.prompt_edges) - 1, len(self.output_edges) - 1
        flat = [count for row in self.counts for count in row]
        if len(self.counts) != rows or {len(row) for row in self.counts} != {columns}:
            raise InputError(
                f"must have {rows} rows of {columns} counts",
                where="counts",
                fix="Give one row per bin of prompts, one count per bin of outputs",
            )
        if min(flat) < 0 or not sum(flat):
            raise InputError(
                "must be counts >= 0 with a pair among them", where="counts", fix="Count pairs"
            )

    def draw(self, streams: Streams, start: int, count: int) -> tuple[Ints, Ints]:
        """See `Lengths`."""
        table = np.array(self.counts, dtype=np.float64)
        ends = np.cumsum(table) / table.sum()
        wanted = streams.outputs.random(count)
        cells = np.searchsorted(ends, wanted, side="right")
        share = (wanted - np.append(0.0, ends)[cells]) / (table.ravel()[cells] / table.sum())
        rows, columns = np.divmod(cells, table.shape[1])
        room = self.max_total_tokens - np.array(self.prompt_edges)[rows]
        outputs = _within(self.output, table.sum(axis=0), columns, share, room)
        room = self.max_total_tokens - outputs
        share = streams.prompts.random(count)
        return _within(self.prompt, table.sum(axis=1), rows, share, room), outputs


def _within(law: QuantileTokens, totals: Floats, bins: Ints, share: Floats, limit: Ints) -> Ints:
    """Lengths at `share` of each one's bin, none above its `limit`. `totals` are pairs per bin."""
    edges = np.append(0.0, np.cumsum(totals) / totals.sum())
    low, high = edges[bins], edges[bins + 1]
    # A length n stands for the stretch from n - 1/2 to n + 1/2 of the curve.
    high = np.minimum(high, np.interp(limit + 0.5, law.values, law.probabilities))
    return np.minimum(law.at(low + share * np.maximum(high - low, 0.0)), limit)
