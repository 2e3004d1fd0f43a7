"""What goes to the device for a step: all its vectors in one transfer, into memory that stays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.batch import Inputs

ALIGNMENT_BYTES = 16
"""Of every vector: Triton compiles a kernel anew for pointers that are aligned differently."""
FIRST_BYTES = 1 << 20
"""Room for about 40,000 tokens before a step has to make more."""
DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


class DeviceInputs(NamedTuple):
    """`Inputs` on the device: views that are valid until the next step."""

    max_context: int
    """On the host, so that nobody waits for `contexts`."""
    tokens: torch.Tensor
    """int64 [tokens]."""
    positions: torch.Tensor
    """int64 [tokens]."""
    slots: torch.Tensor
    """int64 [tokens]."""
    sampled: torch.Tensor
    """int64 [samples]."""
    query_start: torch.Tensor
    """int32 [rows + 1]."""
    contexts: torch.Tensor
    """int32 [rows]."""
    changes: torch.Tensor
    """Of the addresses: see `Addresses.take_changes`."""


class Staging:
    """A buffer on the host, pinned where the device is a GPU, and its copy on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._make_room(FIRST_BYTES)

    def load(self, inputs: Inputs, changes: NumpyArray) -> DeviceInputs:
        """The step's inputs and the changes of the addresses on the device.

        The step before must have ended: its inputs are overwritten.
        """
        vectors = [inputs.tokens, inputs.positions, inputs.slots, inputs.sampled]
        vectors += [vector.astype(np.int32) for vector in (inputs.query_start, inputs.contexts)]
        sent = self._send([*vectors, changes])
        return DeviceInputs(inputs.max_context, *sent)

    def _send(self, arrays: list[NumpyArray]) -> list[torch.Tensor]:
        """The arrays (int64 or int32) on the device, in their shapes."""
        begins, end = [], 0
        for array in arrays:
            begins.append(end)
            end += -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if end > len(self._host):
            self._make_room(max(end, 2 * len(self._host)))
        for begin, array in zip(begins, arrays, strict=True):
            flat = np.ascontiguousarray(array).reshape(-1)
            self._host[begin : begin + array.nbytes] = flat.view(np.uint8)
        self._target[:end].copy_(self._source[:end], non_blocking=True)
        return [
            self._target[begin : begin + array.nbytes].view(DTYPES[array.dtype]).view(array.shape)
            for begin, array in zip(begins, arrays, strict=True)
        ]

    def _make_room(self, size_bytes: int) -> None:
        pinned = self._device.type == "cuda"
        self._source = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._host: NumpyArray = self._source.numpy()
        self._target = torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
