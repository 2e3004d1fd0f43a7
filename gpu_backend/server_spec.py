"""A server as plain values: scheduler and memory that a bare machine can build again."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.eviction import EVICTION_ORDERS
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.vllm_scheduler import VllmScheduler

LiveScheduler = VllmScheduler | OrcaScheduler
SCHEDULERS: dict[str, type[LiveScheduler]] = {"vllm": VllmScheduler, "orca": OrcaScheduler}


class ServerSpec(NamedTuple):
    """Constructor arguments, JSON-able."""

    scheduler: str
    """A key of `SCHEDULERS`."""
    scheduler_settings: dict[str, Any]
    memory: str
    """`paged` or `contiguous`."""
    memory_settings: dict[str, Any]
    """For paged memory `eviction` is a name, or None without a prefix cache."""

    def build(self) -> tuple[PagedAllocator | ContiguousAllocator, LiveScheduler]:
        """Fresh memory and the scheduler that uses it. Raises ValueError for unknown kinds."""
        allocator = self._memory()
        if self.scheduler not in SCHEDULERS:
            raise ValueError(f"scheduler {self.scheduler!r} is none of {', '.join(SCHEDULERS)}")
        return allocator, SCHEDULERS[self.scheduler](allocator, **self.scheduler_settings)

    def _memory(self) -> PagedAllocator | ContiguousAllocator:
        settings = dict(self.memory_settings)
        if self.memory == "contiguous":
            return ContiguousAllocator(**settings)
        if self.memory != "paged":
            raise ValueError(f"memory {self.memory!r} is neither paged nor contiguous")
        eviction = settings.pop("eviction")
        order = None if eviction is None else EVICTION_ORDERS[eviction]()
        return PagedAllocator(**settings, eviction=order)
