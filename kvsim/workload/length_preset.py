"""Laws of lengths derived from published data, shipped as small tables: they need no file."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from kvsim.errors import InputError
from kvsim.workload.joint import JointHistogram
from kvsim.workload.lengths import QuantileTokens


def list_length_presets() -> list[str]:
    """Names of the presets of lengths, sorted. They say nothing about arrivals."""
    folder = resources.files("kvsim.workload").joinpath("length_presets")
    return sorted(
        entry.name.removesuffix(".json")
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    )


def length_preset_facts(name: str) -> dict[str, Any]:
    """A preset's table: source, derivation, statistics of the original, histogram, quantiles."""
    known = list_length_presets()
    if name not in known:
        raise InputError(
            f"{name!r} is no preset of lengths",
            where="preset",
            fix=f"Use one of: {', '.join(known)}",
        )
    file = resources.files("kvsim.workload").joinpath("length_presets", f"{name}.json")
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return facts


def length_preset(name: str) -> JointHistogram:
    """The law of prompt and output lengths of a preset."""
    facts = length_preset_facts(name)
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    return JointHistogram(
        QuantileTokens(tuple(prompt["probabilities"]), tuple(prompt["values"])),
        QuantileTokens(tuple(output["probabilities"]), tuple(output["values"])),
        tuple(facts["histogram"]["prompt_edges"]),
        tuple(facts["histogram"]["output_edges"]),
        tuple(tuple(row) for row in facts["histogram"]["counts"]),
        facts["max_total_tokens"],
    )
