"""Whether a profile was measured as the variants of a scenario are run."""

from __future__ import annotations

from typing import Any

from gpu_backend.scenario_device import Runnable
from kvsim.cost.profile import Profile
from kvsim.errors import InputError


def check_profile(profile: Profile, runnables: list[Runnable], device: str) -> None:
    """Raise `InputError` unless the profile was measured as these variants are run."""
    spec = runnables[0].device
    found = profile.document["device"]
    measured = profile.document["model"]
    wanted: dict[str, tuple[Any, Any]] = {
        "device": (found.get("kind"), device),
        "num_threads": (found.get("num_threads"), spec.num_threads),
        "dtype": (found.get("dtype"), spec.dtype),
        "attention_only": (found.get("attention_only"), spec.attention_only),
    }
    for runnable in runnables:
        engine, limits = runnable.settings.engine, profile.document["limits"]
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(engine, name) > limits[name]:
                raise InputError(
                    f"the profile was measured up to {name} = {limits[name]}, {runnable.name} has "
                    f"{getattr(engine, name)}",
                    where="--profile",
                    fix="Calibrate with this scenario",
                )
        shape = runnable.shape._asdict()
        wanted |= {
            "model": (measured.get("name"), runnable.model.name),
            "shape": (measured.get("shape"), shape),
            "layers": (measured.get("layers"), runnable.device.layers),
        }
        for name, (profiled, asked) in wanted.items():
            if profiled != asked:
                raise InputError(
                    f"the profile was measured with {name} = {profiled}, {runnable.name} has "
                    f"{asked}",
                    where="--profile",
                    fix="Calibrate with this scenario",
                )
