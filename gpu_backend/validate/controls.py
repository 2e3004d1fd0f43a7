"""Negative controls: clocks and servers that are wrong on purpose must fail the bounds.

A validation that passes them would pass anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_backend.scenario_device import Runnable
from gpu_backend.validate.free import compare
from gpu_backend.validate.judge import Check, Found, judge, step_bounds

if TYPE_CHECKING:
    from gpu_backend.validate.run import Evidence, Validation

WRONG_BLOCKS = 4
"""The wrong block size is so many times the right one."""


class Control(NamedTuple):
    """One thing that is made wrong in the simulation; the measured side stays."""

    name: str
    what: str
    needs_free_runs: bool
    """Whether its mistake cannot show in the times of given steps."""
    applies: Callable[[Runnable], bool]
    clock: Callable[[Found, Validation], dict[str, Any]]
    """Changes to the clock, given what the variant showed."""
    runnable: Callable[[Runnable], Runnable]


def _any(runnable: Runnable) -> bool:
    return True


def _same(runnable: Runnable) -> Runnable:
    return runnable


def _right_clock(found: Found, validation: Validation) -> dict[str, Any]:
    return {}


def _slow(found: Found, validation: Validation) -> dict[str, Any]:
    bounds = step_bounds(found.noise, validation.scenario.validation.bounds)
    return {"scale": 1 + 2 * bounds["all"]["median"]}


def _without_prefill(found: Found, validation: Validation) -> dict[str, Any]:
    return {"prefill": False}


def _can_have_larger_blocks(runnable: Runnable) -> bool:
    settings = runnable.server.memory_settings
    return runnable.server.memory == "paged" and settings["num_blocks"] >= 2 * WRONG_BLOCKS


def _larger_blocks(runnable: Runnable) -> Runnable:
    settings = runnable.server.memory_settings
    wrong = {
        **settings,
        "block_size": settings["block_size"] * WRONG_BLOCKS,
        "num_blocks": settings["num_blocks"] // WRONG_BLOCKS,
    }
    return runnable._replace(server=runnable.server._replace(memory_settings=wrong))


CONTROLS = (
    Control(
        "slow clock",
        "every step time times 1 + twice the bound of the median in force",
        False,
        _any,
        _slow,
        _same,
    ),
    Control(
        "wrong block size",
        f"the simulated server has blocks {WRONG_BLOCKS} times as large, in as much memory",
        True,
        _can_have_larger_blocks,
        _right_clock,
        _larger_blocks,
    ),
    Control(
        "no prefill",
        "prefill chunks cost nothing in the clock",
        False,
        _any,
        _without_prefill,
        _same,
    ),
)


def judge_control(
    control: Control, validation: Validation, found: Mapping[str, Found]
) -> list[Check]:
    """The checks that the wrong simulation gets against the same measurements.

    Counts are not among them: that other blocks make other steps is no evidence of anything.
    """
    wrong = {
        name: _wrong(control, validation, validation.evidence[name], one)
        for name, one in found.items()
        if control.applies(validation.evidence[name].runnable)
    }
    checks = judge(wrong, validation.scenario.validation.bounds)
    return [check for check in checks if check.name != "counts"]


def _wrong(control: Control, validation: Validation, evidence: Evidence, found: Found) -> Found:
    runnable = control.runnable(evidence.runnable)
    changes = control.clock(found, validation)
    simulated = validation.simulate_steps(runnable, **changes)
    steps_equal = simulated.plan_file.steps == evidence.simulated.plan_file.steps
    lockstep = evidence.lockstep
    errors = found.errors
    if steps_equal:
        errors = lockstep.errors(simulated.predicted_s)
    scale = changes.pop("scale", 1.0)
    free = {}
    for load in validation.loads(evidence.runnable, evidence.knee_rps):
        if load.name not in evidence.pairs:
            continue
        pairs = evidence.pairs[load.name]
        sides = [
            validation.simulate_side(
                runnable, load, pair.requests, scale=scale * pair.slowness, **changes
            )
            for pair in pairs
        ]
        free[load.name] = compare([pair.measured for pair in pairs], sides)
    return found._replace(errors=errors, free=free)
