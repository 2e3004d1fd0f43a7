"""A validation judged: the document that the command prints and the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import kvsim
from gpu_backend.validate.controls import CONTROLS, Control, judge_control
from gpu_backend.validate.free import compare
from gpu_backend.validate.judge import Found, judge, layout_ratios, step_bounds
from gpu_backend.validate.run import Evidence, Validation

FORMAT = "kvsim-validation-1"


def found_of(evidence: Evidence) -> Found:
    """What a variant showed, for the judge."""
    return Found(
        evidence.runnable.layout.block_size is not None,
        evidence.counts_equal,
        evidence.lockstep.errors(),
        evidence.lockstep.noise(),
        {
            load: compare([pair.measured for pair in pairs], [pair.simulated for pair in pairs])
            for load, pairs in evidence.pairs.items()
        },
    )


def validate(validation: Validation, folder: Path | None = None) -> dict[str, Any]:
    """Run it, or read what ran elsewhere, and judge it: the document that the report shows."""
    if folder is None:
        validation.run()
    else:
        validation.read(folder)
    bounds = validation.scenario.validation.bounds
    found = {name: found_of(evidence) for name, evidence in validation.evidence.items()}
    checks = judge(found, bounds)
    failed = {(check.variant, check.name) for check in checks if not check.ok}
    controls = [
        _control(control, validation, found, failed)
        for control in CONTROLS
        if not (control.needs_free_runs and folder)
        and any(control.applies(one.runnable) for one in validation.evidence.values())
    ]
    return {
        "format": FORMAT,
        "kvsim_version": kvsim.__version__,
        "scenario": validation.scenario.name,
        "device": {**validation.profile.document["device"], "kind": validation.device},
        "profile": {
            "sha256": validation.profile.sha256,
            "device": validation.profile.device,
            "measured_at": validation.profile.document.get("measured_at"),
            "errors": validation.profile.document["errors"],
            "noise": validation.profile.document.get("noise"),
            "measured_layers": validation.profile.document.get("measured_layers"),
            "layers": validation.profile.document["model"].get("layers"),
        },
        "slowness": validation.slowness,
        "bounds": bounds.model_dump(),
        "variants": {
            name: _variant(evidence, found[name], validation)
            for name, evidence in validation.evidence.items()
        },
        "framework": {} if folder else validation.fragmentation(),
        "ratios": {name: ratio._asdict() for name, ratio in layout_ratios(found).items()},
        "checks": [check._asdict() for check in checks],
        "controls": controls,
        "failures": [check.line for check in checks if not check.ok]
        + [
            f"negative control: {control['name']} was not noticed"
            for control in controls
            if not control["noticed"]
        ],
    }


def _control(
    control: Control,
    validation: Validation,
    found: dict[str, Found],
    failed: set[tuple[str, str]],
) -> dict[str, Any]:
    """What the bounds say of a mistake; those that fail without it (`failed`) notice nothing."""
    checks = judge_control(control, validation, found)
    broken = [check for check in checks if not check.ok]
    return {
        "name": control.name,
        "what": control.what,
        "noticed": any((check.variant, check.name) not in failed for check in broken),
        "broken": [check._asdict() for check in broken],
        "variants": sorted({check.variant for check in checks if " / " not in check.variant}),
    }


def _variant(evidence: Evidence, found: Found, validation: Validation) -> dict[str, Any]:
    lockstep = evidence.lockstep
    chosen = np.unique(np.linspace(0, len(lockstep.counts) - 1, 1500).astype(int))
    return {
        "layout": evidence.runnable.layout.name,
        "knee_rps": evidence.knee_rps,
        "lockstep": {
            "steps": len(lockstep.counts),
            "repeats": lockstep.repeats,
            "counts_equal": found.counts_equal,
            "checked_rows": evidence.checked_rows,
            "errors": found.errors,
            "noise": found.noise,
            "bounds": step_bounds(found.noise, validation.scenario.validation.bounds),
            "preemptions": sum(step.preempted for step in lockstep.counts),
            "points": [
                [
                    float(lockstep.measured_s[i]),
                    float(lockstep.predicted_s[i]),
                    int(lockstep.has_chunks[i]),
                ]
                for i in chosen
            ],
        },
        "free": {
            load: {
                "rate_rps": next(
                    one.rate_rps
                    for one in validation.loads(evidence.runnable, evidence.knee_rps)
                    if one.name == load
                ),
                "figures": {name: row._asdict() for name, row in found.free[load].items()},
                "seeds": [
                    {
                        "seed": pair.seed,
                        "slowness": pair.slowness,
                        "attempts": pair.attempts,
                        "cpu_share": pair.cpu_share,
                        "measured": pair.measured.figures(),
                        "simulated": pair.simulated.figures(),
                    }
                    for pair in pairs
                ],
                "usage_shares": {
                    side: np.mean(
                        [getattr(pair, side).usage_shares() for pair in pairs], axis=0
                    ).tolist()
                    for side in ("measured", "simulated")
                },
                "curves": {
                    side: getattr(pairs[0], side).curve() for side in ("measured", "simulated")
                },
            }
            for load, pairs in evidence.pairs.items()
        },
    }
