"""Lengths drawn from a preset, without arrivals."""

from __future__ import annotations

from kvsim.workload.arrivals import Constant
from kvsim.workload.generated import GeneratedWorkload
from kvsim.workload.length_preset import length_preset, list_length_presets
from kvsim.workload.preset import preset


def sample_lengths(name: str, count: int, *, seed: int = 0) -> list[tuple[int, int]]:
    """`count` pairs of prompt and output tokens like those of a preset, of either kind.

    Raises `InputError` for a name that is none.
    """
    if name in list_length_presets():
        workload = GeneratedWorkload(
            Constant(1.0), length_preset(name), num_requests=count, seed=seed, source=name
        )
    else:
        workload = preset(name, num_requests=count, seed=seed)
    return [(one.prompt_tokens, one.output_tokens) for one in workload]
