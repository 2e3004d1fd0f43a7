"""The traffic without a memory manager: one tensor per request in a framework's own allocator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_backend.fragmentation import POLICIES, compare, events_of
from gpu_backend.kv_memories import KvShape, Memory
from gpu_backend.scenario_device import Runnable
from kvsim.core.request import Request

MIB = 2**20


def framework_fragmentation(
    runnable: Runnable, requests: list[Request], step_s: float
) -> dict[str, Any]:
    """By way of allocating: PyTorch's allocator (CUDA) beside an arena as large as the KV memory.

    The events are those of the variant's scheduler with steps of `step_s` seconds. On a CPU only
    the arena is there, and `why` says so.
    """
    allocator, scheduler = runnable.server.build()
    events = list(events_of(requests, scheduler, step_s=step_s))
    shape = runnable.shape
    kv = KvShape(
        layers=runnable.device.measured_layers[-1],
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        element_bytes=4 if runnable.device.dtype == "fp32" else 2,
    )
    return {
        name: compare(
            events,
            kv,
            policy,
            capacity_tokens=allocator.capacity_slots,
            framework=_framework(kv, runnable.device.device),
        )
        for name, policy in POLICIES.items()
    }


def framework_rows(reports: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Table rows: way of allocating and whose allocator; MiB, % and counts as text."""
    rows = []
    for policy, report in reports.items():
        for side, name in (("simulated", "arena, simulated"), ("framework", "PyTorch, measured")):
            found = report[side]
            cells = [report.get("why", ""), "", "", ""] if found is None else _cells(found)
            rows.append((f"{policy}; {name}", cells))
    return rows


def _cells(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{found['peak_allocated_bytes'] / MIB:,.1f}",
        f"{found['peak_reserved_bytes'] / MIB:,.1f}",
        f"{100 * found['mean_idle_share']:.1f}",
        f"{found['refused']:,}",
    ]


def _framework(kv: KvShape, device: str) -> Memory | None:
    if device != "cuda":
        return None
    from gpu_backend.framework_memory import TorchFramework

    return TorchFramework(kv)
