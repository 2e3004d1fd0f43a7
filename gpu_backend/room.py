"""Whether a model's weights and KV fit the device, before anything is allocated."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from gpu_backend.executor import ModelShape
from kvsim.errors import InputError

GIB = 2**30
SHARE = 0.9
"""Of the free memory that may be used: activations and the rest need some too."""


def executor_bytes(
    shape: ModelShape, *, layers: int, slots: int, dtype: str, attention_only: bool
) -> int:
    """Weights and KV of one executor, in bytes; activations are not counted."""
    element = 4 if dtype == "fp32" else 2
    kv = layers * 2 * shape.kv_heads * shape.head_dim * slots
    if attention_only:
        return element * kv
    attended = shape.heads * shape.head_dim
    layer = shape.hidden * (shape.qkv_elements + attended + 3 * shape.intermediate)
    return element * (layers * layer + shape.vocab * shape.hidden + kv)


def require_cuda() -> None:
    """Raise `InputError` unless torch is there and finds a CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "torch finds no CUDA device", where="--device", fix="Use --device cpu, or a GPU machine"
        )


def free_bytes(device: str) -> int:
    """Memory of the device that nobody uses, in bytes; torch's own cache counts as free."""
    if device == "cuda":
        import torch

        require_cuda()
        gc.collect()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + int(cached)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_room(needed_bytes: int, device: str) -> None:
    """Raise `InputError` with both sizes and the ways out unless so much is free."""
    free = free_bytes(device)
    if needed_bytes > SHARE * free:
        raise InputError(
            f"weights and KV need {needed_bytes / GIB:.1f} GiB, {free / GIB:.1f} GiB are free on "
            f"{device}",
            where="device",
            fix="Set device.measured_layers to two small depths, such as [2, 4], or "
            "device.attention_only to true, or give less KV memory with memory.num_blocks",
        )
