"""A question of `kvsim fit` with everything that is said in reply: columns, ways out, command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvsim.catalog import Gpu, Model
from kvsim.errors import InputError
from kvsim.planning.commands import serve_command, serve_yaml
from kvsim.planning.fit import Fit, FitSettings
from kvsim.planning.pipeline import fit_whole
from kvsim.planning.releases import LATEST, Release
from kvsim.planning.ways import Way, ways_out
from kvsim.planning.what_if import changed_by_text

MAX_WHAT_IFS = 8


class Answer(NamedTuple):
    """What was asked, ways out of it, and what to paste: the set-up or its cheapest way out."""

    columns: dict[str, Fit]
    """The set-up and its variations by title."""
    ways: list[Way]
    line: str
    yaml: str

    @property
    def first(self) -> Fit:
        """The set-up."""
        return next(iter(self.columns.values()))


def answer(
    model: Model,
    served: str,
    gpu: Gpu,
    given: FitSettings,
    *,
    release: Release = LATEST,
    what_if: Sequence[str] = (),
) -> Answer:
    """The set-up with a column for each of `what_if` (`changed_by_text`).

    `served` is what the server would be told to serve. Raises `InputError` as `fit_whole` does, and
    for more than `MAX_WHAT_IFS` variations.
    """
    if len(what_if) > MAX_WHAT_IFS:
        raise InputError(
            f"at most {MAX_WHAT_IFS} columns beside the first, got {len(what_if)}",
            where="--what-if",
            fix="Ask in several runs",
        )
    found = fit_whole(model, gpu, given, release=release)
    ways = ways_out(found, given)
    columns = {f"{model.name}, {given.gpus} x {gpu.name}": found}
    for text in what_if:
        title = text if text not in columns else f"{text} (again)"
        columns[title] = fit_whole(model, gpu, changed_by_text(given, text), release=release)
    chosen = ways[0].fit if ways else found
    return Answer(columns, ways, serve_command(chosen, served), serve_yaml(chosen, served))
