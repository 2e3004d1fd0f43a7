"""The settings that a run's variants had, from its resolved scenario."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.errors import InputError
from kvsim.results.read_run import Run
from kvsim.scenario import Scenario, load_scenario
from kvsim.scenario import variants as named_variants


def settings_of(run: Run, variants: Sequence[str]) -> dict[str, Scenario]:
    """Settings by variant. Raises `InputError` when `scenario.yaml` has no such variant."""
    path = run.path / "scenario.yaml"
    named = named_variants(load_scenario(str(path.absolute())))
    missing = [name for name in variants if name not in named]
    if missing:
        raise InputError(
            f"the scenario has no variant {missing[0]!r}, which the summary has",
            where=str(path),
            fix="Give a run folder written by `kvsim run --out`, unchanged.",
        )
    return {name: named[name] for name in variants}
