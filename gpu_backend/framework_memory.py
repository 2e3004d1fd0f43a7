"""PyTorch's caching allocator as the memory that a request's KV tensors are taken from."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from gpu_backend.kv_memories import KvShape, Levels


class TorchFramework:
    """PyTorch's caching allocator on `device`, of which `memory_stats` tells the state.

    What the process already held is subtracted. The process may be limited to so many bytes of the
    device from outside, with `torch.cuda.set_per_process_memory_fraction`.
    """

    def __init__(
        self,
        shape: KvShape,
        *,
        device: torch.device | str = "cuda",
        memory_stats: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        """`memory_stats` replaces `torch.cuda.memory_stats` (keys and units as there)."""
        self._shape = shape
        self._device = torch.device(device)
        self._dtype = {1: torch.uint8, 2: torch.float16, 4: torch.float32}[shape.element_bytes]
        self._stats = memory_stats or self._cuda_stats
        self._start = self._begin()

    def take(self, tokens: int) -> torch.Tensor | None:
        """A tensor, not initialised; None when the framework is out of memory."""
        shape = (self._shape.kv_heads, tokens, self._shape.head_dim)
        try:
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        except torch.OutOfMemoryError:
            return None

    def grow(self, tensor: torch.Tensor, tokens: int) -> torch.Tensor | None:
        """`torch.cat` of the tensor and the new tokens, as dynamic caches do."""
        more = self.take(tokens - tensor.shape[1])
        if more is None:
            return None
        try:
            return torch.cat([tensor, more], dim=1)
        except torch.OutOfMemoryError:
            return None

    def free(self, tensor: torch.Tensor) -> None:
        """Nothing to do: a tensor is freed with its last reference, which the caller drops."""

    def levels(self) -> Levels:
        """What the framework says it holds beyond the start."""
        now = self._stats()
        names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
        values = (f"{name}.all.current" for name in names)
        return Levels(*(now.get(key, 0) - self._start.get(key, 0) for key in values))

    def totals(self) -> dict[str, Any]:
        """Peaks beyond the start; retries after a refused cudaMalloc; refusals to the caller."""
        end = self._stats()

        def since(key: str, of: str | None = None) -> int:
            return end.get(key, 0) - self._start.get(of or key, 0)

        return {
            "peak_allocated_bytes": since(
                "allocated_bytes.all.peak", "allocated_bytes.all.current"
            ),
            "peak_reserved_bytes": since("reserved_bytes.all.peak", "reserved_bytes.all.current"),
            "retries": since("num_alloc_retries"),
            "out_of_memory": since("num_ooms"),
        }

    def _begin(self) -> dict[str, int]:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        return self._stats()

    def _cuda_stats(self) -> dict[str, int]:
        return dict(torch.cuda.memory_stats(self._device))
