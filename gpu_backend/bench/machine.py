"""Which machine a run was on."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime

import numpy as np
import torch
import triton

from gpu_backend.bench.results import Row

UNKNOWN_L2_BYTES = 64 << 20


def machine(device: torch.device) -> Row:
    """Names, versions and sizes; `l2_bytes` and `memory_bytes` are of the device."""
    facts: Row = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
    }
    if device.type != "cuda":
        name = f"no GPU ({platform.machine()}, Triton's interpreter)"
        return facts | {"name": name, "driver": None, "sm_count": 0} | _interpreted_sizes()
    properties = torch.cuda.get_device_properties(device)
    major, minor = torch.cuda.get_device_capability(device)
    return facts | {
        "name": properties.name,
        "capability": f"{major}.{minor}",
        "driver": _driver(),
        "sm_count": properties.multi_processor_count,
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)) or UNKNOWN_L2_BYTES,
        "memory_bytes": properties.total_memory,
    }


def _interpreted_sizes() -> Row:
    """As small as a tiny run needs them: nothing is cached in an interpreter."""
    return {"l2_bytes": 4 << 10, "memory_bytes": 64 << 20}


def _driver() -> str | None:
    """The driver's version as nvidia-smi gives it, None where there is no nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.split()
    return lines[0] if lines else None
