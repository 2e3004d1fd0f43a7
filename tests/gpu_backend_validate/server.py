"""A small scenario with a profile made up for it, and a device that is simulated too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_backend.device import DeviceSpec
from gpu_backend.executor import StepTiming
from kvsim.core.plan import StepPlan
from kvsim.cost.profile import Profile, digest, profile_from
from kvsim.cost.profile_clock import ProfileClock
from kvsim.scenario.loader import load_scenario
from kvsim.scenario.settings import Scenario

SCENARIO = """
version: 1
base_name: paged-4
profile: plain
model: llama-nano
engine: {max_num_seqs: 6, max_num_batched_tokens: 64, max_model_len: 64}
memory: {kind: paged, block_size: 4, num_blocks: 32, null_block: false}
clock: {kind: fixed, step_s: 0.01}
workload:
  num_requests: 24
  arrivals: {kind: poisson, rate_rps: 5}
  lengths:
    prompt: {kind: uniform, low: 4, high: 30}
    output: {kind: uniform, low: 2, high: 30}
seeds: [0, 1, 2, 3, 4]
device: {num_threads: 1}
validation: {requests: 20, step_repeats: 2}
compare:
  contiguous-max:
    memory: {kind: contiguous, block_size: 4, num_blocks: 32, reserve: max, placement: first_fit}
"""
ERRORS = {"points": 9, "median": 0.02, "p90": 0.07, "bias": -0.01}
LAYOUT = {
    "decode_s": 2e-4,
    "decode_row_s": 5e-5,
    "decode_context_s": 1e-6,
    "prefill_s": 4e-4,
    "chunk_s": 1e-4,
    "pair_s": 2e-6,
    "prior_s": 1e-6,
    "mixed_row_s": 8e-5,
    "mixed_context_s": 1e-6,
    "copy_s": 1e-6,
}
SHAPE = {
    "hidden": 256,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "intermediate": 704,
    "vocab": 4096,
}


def scenario(folder: Path, *overrides: str, text: str = SCENARIO) -> Scenario:
    path = folder / "small.yaml"
    path.write_text(text)
    return load_scenario(str(path), overrides)


def profile(**changes: Any) -> Profile:
    content: dict[str, Any] = {
        "format": "kvsim-profile-1",
        "model": {"name": "llama-nano", "shape": SHAPE, "layers": 2},
        "device": {
            "name": "made up",
            "kind": "cpu",
            "num_threads": 1,
            "dtype": "fp32",
            "attention_only": False,
            "mode": "eager",
        },
        "limits": {
            "max_num_seqs": 6,
            "max_num_batched_tokens": 64,
            "max_model_len": 64,
            "slots": 128,
        },
        "measured_layers": [2],
        "errors": {
            "fitted": ERRORS,
            "held_out": ERRORS,
            "held_out_by_kind": {},
            "depth_check": None,
        },
        "noise": ERRORS,
        "probe": [
            {
                "layout": "paged-4",
                "layers": 2,
                "point": {"decodes": [9], "chunks": [], "copy_tokens": 0},
                "wall_s": 1e-3,
            }
        ],
        "constants": {
            "tokens": [[1, 1e-3], [8, 1.4e-3], [64, 6e-3]],
            "rows": [[1, 2e-5], [64, 1.28e-3]],
            "layouts": {"paged-4": LAYOUT, "contiguous": LAYOUT},
        },
        **changes,
    }
    return profile_from({**content, "sha256": digest(content)}, where="p.json")


class PretendedDevice:
    """Takes as long as the profile says, times a factor that depends on the step's number."""

    checked_rows = 0
    device_name = "made up"

    def __init__(self, layout: str, factor: Callable[[int], float]) -> None:
        self._clock = ProfileClock(profile(), layout)
        self._factor = factor
        self.timings: list[StepTiming] = []

    def step_seconds(self, plan: StepPlan) -> float:
        seconds = self._clock.step_seconds(plan) * self._factor(len(self.timings))
        self.timings.append(StepTiming(plan.step, seconds, seconds, 0.0, seconds))
        return seconds


def pretend(
    monkeypatch: pytest.MonkeyPatch, factor: Callable[[int], float] = lambda step: 1.0
) -> None:
    """Let every device be a pretended one."""

    def clock(spec: DeviceSpec, allocator: Any, scheduler: Any, shape: Any) -> PretendedDevice:
        layout = "contiguous" if hasattr(allocator, "_arena") else f"paged-{allocator.block_size}"
        return PretendedDevice(layout, factor)

    monkeypatch.setattr(DeviceSpec, "clock", clock)
