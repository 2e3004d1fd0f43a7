"""Generators derived from real traces, shipped as small tables: they need no trace file."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from kvsim.errors import InputError
from kvsim.workload.empirical import EmpiricalArrivals
from kvsim.workload.generated import GeneratedWorkload
from kvsim.workload.lengths import JointQuantiles, QuantileTokens


def list_presets() -> list[str]:
    """Names of the presets, sorted."""
    folder = resources.files("kvsim.workload").joinpath("presets")
    return sorted(
        entry.name.removesuffix(".json")
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    )


def preset_facts(name: str) -> dict[str, Any]:
    """A preset's table: source, licence, derivation, statistics of the original, quantiles."""
    known = list_presets()
    if name not in known:
        raise InputError(
            f"{name!r} is no preset", where="preset", fix=f"Use one of: {', '.join(known)}"
        )
    file = resources.files("kvsim.workload").joinpath("presets", f"{name}.json")
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return facts


def preset(
    name: str, *, num_requests: int | None = None, rate_scale: float = 1.0, seed: int = 0
) -> GeneratedWorkload:
    """Requests like those of a real trace; by default as many as it has.

    Alike in the distributions of prompt, output and gaps, in the rate over time, and in how output
    depends on prompt; not alike in the order of lengths, which are drawn independently.
    """
    facts = preset_facts(name)
    gaps, windows = facts["gaps"], facts["windows"]
    arrivals = EmpiricalArrivals(
        tuple(gaps["probabilities"]),
        tuple(gaps["values"]),
        tuple(windows["arrivals"]),
        windows["window_s"],
        facts["statistics"]["span_s"],
    )
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    lengths = JointQuantiles(
        QuantileTokens(tuple(prompt["probabilities"]), tuple(prompt["values"])),
        tuple(output["probabilities"]),
        tuple(tuple(values) for values in output["values_by_prompt_class"]),
    )
    return GeneratedWorkload(
        arrivals,
        lengths,
        num_requests=facts["statistics"]["requests"] if num_requests is None else num_requests,
        seed=seed,
        rate_scale=rate_scale,
        source=f"preset {name}",
    )
