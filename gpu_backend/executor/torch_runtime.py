"""A CUDA GPU as a device: torch for the model, Triton kernels for the KV cache and attention."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any, cast

import numpy as np
import torch

from gpu_backend import configs, launches
from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.batch import Inputs
from gpu_backend.executor.padding import padded_rows
from gpu_backend.executor.runtime import Settings, Weights
from gpu_backend.executor.torch_memory import TorchContiguousMemory, TorchPagedMemory
from gpu_backend.executor.torch_model import TorchAttentionOnly, TorchDecoder, TorchModel
from gpu_backend.executor.torch_staging import DeviceInputs, Staging
from gpu_backend.kv_cache import Layout
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy
from kvsim.errors import InputError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class TorchRuntime:
    """See `Runtime`. `execute` queues the step; only `synchronize` and what reads results wait.

    `mode` is "eager": every operation is launched by the host in every step, and a step with
    little work takes as long as its launches.
    """

    mode = "eager"

    def __init__(
        self,
        allocator: PagedAllocator | ContiguousAllocator,
        addresses: PagedAddresses | ContiguousAddresses,
        settings: Settings,
        *,
        dtype: str = "bf16",
        layout: str = "nhd",
        torch_device: str = "cuda",
    ) -> None:
        """`torch_device` "cpu" is for tests: Triton's interpreter (TRITON_INTERPRET=1) runs it.

        Raises `InputError` where torch has no CUDA device.
        """
        device, kind = _device(torch_device), DTYPES[dtype]
        shape = settings.shape
        self.dtype = dtype
        is_cuda = device.type == "cuda"
        self.device_name = torch.cuda.get_device_name(device) if is_cuda else device.type
        self.memory = _memory(allocator, addresses, settings, layout, kind, device)
        make = TorchAttentionOnly if settings.attention_only else TorchDecoder
        self.model: TorchModel = make(settings, kind, device)
        self._addresses = addresses
        self._staging = Staging(device)
        self._timer = _Timer(device)
        self._sampled = torch.zeros(0, dtype=torch.int64, device=device)
        self._outputs = torch.zeros((2, 0, shape.heads, shape.head_dim), dtype=kind, device=device)
        """Attention outputs of the first and of any other layer."""
        for inputs in warm_up_inputs(settings, allocator.capacity_slots, kind, device):
            self.execute((), inputs)
            self.synchronize()

    def execute(self, copies: Seq[Copy], inputs: Inputs) -> None:
        """See `Runtime.execute`."""
        with torch.inference_mode():
            self._timer.begin()
            self._run(copies, self._staging.load(inputs, self._addresses.take_changes()))
            self._timer.end()

    def synchronize(self) -> float:
        """See `Runtime.synchronize`; from the step's first transfer to its last kernel."""
        return self._timer.wait_s()

    def attention_rows(self, tokens: NumpyArray) -> NumpyArray:
        """See `Runtime.attention_rows`."""
        index = torch.tensor(tokens, device=self._outputs.device)
        return np.asarray(self._outputs[0].index_select(0, index).float().cpu().numpy())

    def sampled(self) -> NumpyArray:
        """See `Runtime.sampled`."""
        return np.asarray(self._sampled.cpu().numpy())

    def weights(self) -> Weights:
        """See `Runtime.weights`."""
        return self.model.weights()

    def _run(self, copies: Seq[Copy], inputs: DeviceInputs) -> None:
        memory, tokens = self.memory, len(inputs.tokens)
        memory.update(inputs.changes)
        for copy in copies:
            memory.move(copy)
        outputs = self._padded_outputs(tokens)

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            memory.write(layer, key, value, inputs.slots)
            out = outputs[min(layer, 1)]
            memory.attend(layer, query, inputs, out[:tokens])
            return out

        self._sampled = self.model.forward(inputs, attend)

    def _padded_outputs(self, tokens: int) -> torch.Tensor:
        """Room [2, padded tokens, heads, head_dim] that stays; zero behind the tokens."""
        rows = padded_rows(tokens)
        _, room, *sizes = self._outputs.shape
        if rows > room:
            self._outputs = self._outputs.new_zeros((2, max(rows, 2 * room), *sizes))
        outputs = self._outputs[:, :rows]
        if rows > tokens:
            outputs[:, tokens:].zero_()
        return outputs


def warm_up_inputs(
    settings: Settings, slots: int, dtype: torch.dtype, device: torch.device
) -> list[Inputs]:
    """Steps that call every kernel in every form the later ones need, and write nothing.

    Triton compiles a kernel anew for a count that is 1 or a multiple of 16, and where a context is
    split into chunks.
    """
    chunk = configs.decode_config(
        launches.settings_name(device), settings.shape.head_dim, dtype.itemsize
    ).chunk
    # In the interpreter nothing is compiled, and chunks without tokens take time.
    longest = (1,) if launches.interpreted() else (1, 2 * chunk, 16 * chunk)
    found = []
    for rows in sorted({min(count, settings.rows) for count in (1, 2, 16)}):
        found += [_dummy_inputs(rows, 1, max_context=context) for context in longest]
        found.append(_dummy_inputs(rows, min(2, slots), max_context=2))
    if not launches.interpreted():
        each = min(settings.step_tokens, settings.max_tokens, slots)
        rows = min(-(-settings.step_tokens // each), settings.rows)
        found.append(_dummy_inputs(rows, each, max_context=each))
    return found


def _dummy_inputs(rows: int, tokens_each: int, *, max_context: int) -> Inputs:
    """Tokens that are not stored anywhere and read whatever the first slots hold."""
    starts = np.arange(rows + 1) * tokens_each
    tokens = np.zeros(rows * tokens_each, np.int64)
    positions = np.tile(np.arange(tokens_each), rows)
    contexts = np.full(rows, tokens_each)
    return Inputs(
        tokens, positions, tokens - 1, starts, contexts, starts[1:] - 1, max_context=max_context
    )


class _Timer:
    """Time between two points of the device's queue; on the CPU, which has none, of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        event: Any = torch.cuda.Event  # untyped
        is_cuda = device.type == "cuda"
        self._events = [event(enable_timing=True) for _ in range(2)] if is_cuda else []
        self._begin_s = self._end_s = 0.0

    def begin(self) -> None:
        """Now, for the queue."""
        self._begin_s = time.perf_counter()
        if self._events:
            self._events[0].record()

    def end(self) -> None:
        """Now, for the queue."""
        if self._events:
            self._events[1].record()
        self._end_s = time.perf_counter()

    def wait_s(self) -> float:
        """Wait for everything in the queue; seconds between the two."""
        if not self._events:
            return self._end_s - self._begin_s
        torch.cuda.synchronize(self._device)
        begin, end = self._events
        return float(begin.elapsed_time(end)) / 1000


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"torch {torch.__version__} finds no CUDA device",
            where="device",
            fix="Use --device cpu",
        )
    # With its index, as tensors report it: the kernels' checks compare devices.
    return torch.empty(0, device=name).device


def _memory(
    allocator: PagedAllocator | ContiguousAllocator,
    addresses: PagedAddresses | ContiguousAddresses,
    settings: Settings,
    layout: str,
    dtype: torch.dtype,
    device: torch.device,
) -> TorchPagedMemory | TorchContiguousMemory:
    if isinstance(addresses, PagedAddresses):
        return TorchPagedMemory(
            addresses,
            settings,
            num_blocks=allocator.num_blocks,
            layout=cast(Layout, layout),  # checked by the cache's shape
            dtype=dtype,
            device=device,
        )
    slots = allocator.capacity_slots
    return TorchContiguousMemory(addresses, settings, slots=slots, dtype=dtype, device=device)
