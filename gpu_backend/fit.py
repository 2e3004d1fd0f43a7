"""Rows of a calibration -> the constants of a profile, by non-negative least squares.

The step time is linear in its constants: the table of tokens is a sum of hats, one per measured
size. Relative errors are what is made small, with less weight on rows that lie far off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.padding import padded_rows
from gpu_backend.grid import Row
from gpu_backend.steps import Point
from kvsim.cost.profile import Constants, LayoutConstants
from kvsim.errors import InputError

_FIELDS = LayoutConstants._fields
_ROUNDS = 12
_KNEE = 0.02
"""Relative error from which a row loses weight."""
_RIDGE = 1e-4
"""Weight of the pull towards 0 that decides between constants the rows cannot tell apart."""


class Measured(NamedTuple):
    """One batch in one layout and depth: the median over its rounds."""

    use: str
    layout: str
    layers: int
    point: Point
    wall_s: float
    rounds: tuple[float, ...]


class Errors(NamedTuple):
    """Relative errors of predictions."""

    points: int
    median: float
    p90: float
    bias: float
    """Median of predicted / measured - 1."""


def gather(rows: Sequence[Row]) -> list[Measured]:
    """One entry per batch, in order of appearance."""
    found: dict[tuple[str, str, int, Point], list[float]] = {}
    for row in rows:
        found.setdefault((row.use, row.layout, row.layers, row.point), []).append(row.wall_s)
    return [Measured(*key, float(np.median(walls)), tuple(walls)) for key, walls in found.items()]


def noise(measured: Sequence[Measured]) -> Errors:
    """Run-to-run: relative difference of two rounds of the same batch."""
    differences = [
        abs(a - b) / ((a + b) / 2)
        for entry in measured
        for a, b in zip(entry.rounds, entry.rounds[1:], strict=False)
    ]
    return _errors(np.array(differences))


class Fit:
    """The constants of a model of `layers` layers."""

    def __init__(self, measured: Sequence[Measured], layers: int) -> None:
        """Raises InputError for rows that cannot decide the constants."""
        fitted = [entry for entry in measured if entry.use == "fit"]
        depths = sorted({entry.layers for entry in fitted})
        if not fitted or (len(depths) == 1 and depths != [layers]):
            raise InputError(
                f"the rows are of {depths or 'no'} layers, which says nothing about {layers}",
                fix=f"Measure two depths, or {layers} layers",
            )
        points = [entry.point for entry in fitted]
        self.layouts = sorted({entry.layout for entry in fitted})
        self.token_sizes = sorted(
            {padded_rows(point.tokens) for point in points if _is_knot(point)}
        )
        self.row_sizes = sorted({padded_rows(point.rows) for point in points})
        self._has_depths = len(depths) > 1
        self._layers = layers
        self._values = self._solve(fitted)

    def predict(self, layout: str, layers: int, point: Point) -> float:
        """Seconds of a batch."""
        return float(self._features(layout, layers, point) @ self._values)

    def errors(self, measured: Sequence[Measured]) -> Errors:
        """Of the predictions for batches."""
        ratios = [
            self.predict(entry.layout, entry.layers, entry.point) / entry.wall_s - 1
            for entry in measured
        ]
        return _errors(np.array(ratios))

    def constants(self) -> Constants:
        """At the model's own depth."""
        tokens, rows = len(self.token_sizes), len(self.row_sizes)
        once, each = np.split(self._values, [tokens + rows])
        heights = once[:tokens]
        if self._has_depths:
            heights = heights + self._layers * each[:tokens]
            each = self._layers * each[tokens:]
        return Constants(
            _with_padding(self.token_sizes, heights),
            _with_padding(self.row_sizes, once[tokens:]),
            {
                name: LayoutConstants(*(float(value) for value in row))
                for name, row in zip(
                    self.layouts, each.reshape(len(self.layouts), len(_FIELDS)), strict=True
                )
            },
        )

    def _features(self, layout: str, layers: int, point: Point) -> NumpyArray:
        """Factors of the constants: the tables, then the layouts.

        With two depths tables have a part that is paid once and one per layer; heads and samplers
        are paid once, attention per layer.
        """
        tokens = _hats(self.token_sizes, padded_rows(point.tokens))
        rows = _hats(self.row_sizes, padded_rows(point.rows))
        terms = np.zeros((len(self.layouts), len(_FIELDS)))
        terms[self.layouts.index(layout)] = _terms(point)
        if not self._has_depths:
            return np.concatenate([tokens, rows, terms.ravel()])
        return np.concatenate([tokens, rows, layers * tokens, layers * terms.ravel()])

    def _solve(self, fitted: Sequence[Measured]) -> NumpyArray:
        matrix = np.array([self._features(e.layout, e.layers, e.point) for e in fitted])
        seconds = np.array([entry.wall_s for entry in fitted])
        relative = matrix / seconds[:, None]
        size = np.abs(relative).max(axis=0)
        used = size > 0
        relative = relative[:, used] / size[used]
        weights = np.ones(len(seconds))
        ridge = _RIDGE * np.eye(relative.shape[1])
        target = np.concatenate([np.ones(len(seconds)), np.zeros(len(ridge))])
        solution = np.zeros(relative.shape[1])
        for _ in range(_ROUNDS):
            system = np.vstack([relative * weights[:, None], ridge])
            goal = target * np.concatenate([weights, np.ones(len(ridge))])
            solution = scipy.optimize.lsq_linear(system, goal, bounds=(0, np.inf)).x
            error = np.abs(relative @ solution - 1)
            weights = np.sqrt(_KNEE / np.maximum(error, _KNEE))
        values = np.zeros(len(used))
        values[used] = solution / size[used]
        return values


def _terms(point: Point) -> list[float]:
    """Factors of `LayoutConstants`, in its order."""
    decodes, context = float(len(point.decodes)), float(sum(point.decodes))
    copies = float(point.copy_tokens)
    if not point.chunks:
        return [1.0, decodes, context, 0, 0, 0, 0, 0, 0, copies]
    pairs = sum(new * (prior + new / 2) for new, prior in point.chunks)
    prior_tokens = float(sum(prior for _, prior in point.chunks))
    chunks = float(len(point.chunks))
    return [0, 0, 0, 1.0, chunks, pairs, prior_tokens, decodes, context, copies]


def _is_knot(point: Point) -> bool:
    """Whether a batch's tokens are a size of the table: mixed ones lie in between."""
    return not (point.decodes and point.chunks) and not point.copy_tokens


def _hats(sizes: Sequence[int], tokens: int) -> NumpyArray:
    """Weights of the sizes in a linear interpolation at `tokens`; past the last, extrapolated."""
    hats = np.zeros(len(sizes))
    if len(sizes) == 1 or tokens <= sizes[0]:
        hats[0] = 1.0
        return hats
    after = min(max(int(np.searchsorted(sizes, tokens, side="right")), 1), len(sizes) - 1)
    low, high = sizes[after - 1], sizes[after]
    share = (tokens - low) / (high - low)
    hats[after - 1], hats[after] = 1 - share, share
    return hats


def _with_padding(sizes: Sequence[int], heights: NumpyArray) -> tuple[tuple[int, float], ...]:
    """The table with the steps of the padding: 3 tokens take as long as 4, 5 as 8."""
    padded = sorted({padded_rows(n) for n in range(1, sizes[-1] + 1)})
    table: list[tuple[int, float]] = []
    for before, size in zip([0, *padded], padded, strict=False):
        height = max(float(_hats(sizes, size) @ heights), 0.0)
        if before + 1 < size:
            table.append((before + 1, height))
        table.append((size, height))
    return tuple(_thinned(table))


def _thinned(table: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Above 64 tokens, where steps are small, the measured sizes' neighbourhoods are enough."""
    kept = [row for row in table if row[0] <= 64]
    rest = [row for row in table if row[0] > 64]
    stride = max(1, len(rest) // 1024)
    return [*kept, *rest[:-1:stride], *rest[-1:]]


def _errors(relative: NumpyArray) -> Errors:
    if not len(relative):
        return Errors(0, 0.0, 0.0, 0.0)
    size = np.abs(relative)
    return Errors(
        len(relative),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(np.median(relative)),
    )


def errors_by_kind(fit: Fit, measured: Sequence[Measured]) -> dict[str, Any]:
    """Errors of decodes alone, chunks alone and mixed batches."""
    kinds = {"decode": (True, False), "prefill": (False, True), "mixed": (True, True)}
    return {
        kind: fit.errors(
            [e for e in measured if (bool(e.point.decodes), bool(e.point.chunks)) == wanted]
        )._asdict()
        for kind, wanted in kinds.items()
    }
