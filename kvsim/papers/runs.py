"""Runs that measurements share: a shipped scenario under one seed, with real or preset lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.errors import InputError
from kvsim.papers.target import LengthSource, NoResultError
from kvsim.scenario import Scenario, load_scenario, run_scenario, variants
from kvsim.scenario.traffic import Sosp23Workload
from kvsim.workload import JointHistogram, PairLengths, find_trace, length_preset

TRACE = "sharegpt-opt-lengths"
PRESET = "sharegpt"


def with_lengths(scenario: Scenario, lengths: LengthSource) -> Scenario:
    """The scenario with its list of lengths, or with the preset in its place."""
    workload = scenario.workload
    if lengths == "real" or not isinstance(workload, Sosp23Workload):
        return scenario
    recipe = workload.sosp23.model_copy(update={"trace": None, "preset": PRESET})
    return scenario.model_copy(update={"workload": workload.model_copy(update={"sosp23": recipe})})


def summary_of(
    scenario: str,
    *,
    seed: int,
    lengths: LengthSource = "real",
    update: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`summary.json` of a shipped scenario, run in this process; `update` replaces settings.

    Raises `NoResultError` if a request was rejected or never ended.
    """
    loaded = with_lengths(load_scenario(scenario), lengths)
    loaded = loaded.model_copy(update={"seeds": [seed], **(update or {})})
    summary = run_scenario(loaded, strict_traces=lengths == "real", workers=1).summary
    for name, entry in summary["variants"].items():
        requests = entry["requests"]
        if requests["finished"] != requests["submitted"]:
            raise NoResultError(
                f"{scenario}, {name}: {requests['finished']} of {requests['submitted']} requests"
                f" finished, {requests['rejected']} were rejected"
            )
    return summary


def variant_of(scenario: str, name: str) -> Scenario:
    """One variant's settings."""
    return variants(load_scenario(scenario))[name]


def length_pairs(lengths: LengthSource) -> PairLengths | JointHistogram:
    """The published list, or the preset's law. Raises `InputError` where the list is not there."""
    if lengths == "preset":
        return length_preset(PRESET)
    path = find_trace(TRACE)
    if path is None:
        raise InputError(
            f"the list of lengths {TRACE} is not in the folder $KVSIM_TRACES",
            where="KVSIM_TRACES",
            fix="Set it, or use the preset",
        )
    return PairLengths(path)
