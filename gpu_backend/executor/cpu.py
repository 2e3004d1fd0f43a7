"""The CPU as a device: numba attention over a real KV cache, numpy for everything else, in fp32."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np

from gpu_backend.cpu import warm_up
from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.batch import Inputs
from gpu_backend.executor.blas import limited_blas
from gpu_backend.executor.cpu_memory import ContiguousMemory, PagedMemory
from gpu_backend.executor.cpu_model import AttentionOnly, Decoder
from gpu_backend.executor.padding import padded_rows
from gpu_backend.executor.runtime import Settings, Weights
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy


class CpuRuntime:
    """See `Runtime`. Every step has ended when `execute` returns.

    `num_threads` (None: all CPUs) is for attention and, where numpy brings its own OpenBLAS
    (`blas.blas_threads`), for matrix products. Another BLAS reads its environment variables.
    """

    mode = "eager"
    dtype = "fp32"

    def __init__(
        self,
        allocator: PagedAllocator | ContiguousAllocator,
        addresses: PagedAddresses | ContiguousAddresses,
        settings: Settings,
        *,
        num_threads: int | None = None,
    ) -> None:
        shape, layers, seed = settings.shape, settings.layers, settings.seed
        self.device_name = cpu_name()
        self.memory = _memory(allocator, addresses, settings, num_threads)
        self.model: Decoder | AttentionOnly
        if settings.attention_only:
            self.model = AttentionOnly(shape, layers=layers, seed=seed)
        else:
            self.model = Decoder(shape, layers=layers, max_tokens=settings.max_tokens, seed=seed)
        self._num_threads = num_threads
        self._seconds = 0.0
        self._sampled = np.empty(0, np.int64)
        self._outputs = np.zeros((2, 0, shape.heads, shape.head_dim), np.float32)
        """Attention outputs of the first and of any other layer."""
        warm_up(shape.heads, shape.kv_heads, shape.head_dim, num_threads=num_threads)
        nothing = np.zeros((1, shape.kv_heads, shape.head_dim), np.float32)
        self.memory.write(0, nothing, nothing, np.array([-1]))
        self._touch_buffers(settings.step_tokens, settings.rows)

    def execute(self, copies: Seq[Copy], inputs: Inputs) -> None:
        """See `Runtime.execute`."""
        begin = time.perf_counter()
        with limited_blas(self._num_threads):
            self._run(copies, inputs)
        self._seconds = time.perf_counter() - begin

    def synchronize(self) -> float:
        """See `Runtime.synchronize`."""
        return self._seconds

    def attention_rows(self, tokens: NumpyArray) -> NumpyArray:
        """See `Runtime.attention_rows`."""
        return np.asarray(self._outputs[0, tokens])

    def sampled(self) -> NumpyArray:
        """See `Runtime.sampled`."""
        return self._sampled

    def weights(self) -> Weights:
        """See `Runtime.weights`."""
        return self.model.weights()

    def _run(self, copies: Seq[Copy], inputs: Inputs) -> None:
        memory, tokens = self.memory, len(inputs.tokens)
        outputs = self._padded_outputs(tokens)
        for copy in copies:
            memory.move(copy)

        def attend(layer: int, query: NumpyArray, key: NumpyArray, value: NumpyArray) -> NumpyArray:
            memory.write(layer, key, value, inputs.slots)
            out: NumpyArray = outputs[min(layer, 1)]
            memory.attend(layer, query, inputs.query_start, inputs.contexts, out[:tokens])
            return out

        self._sampled = self.model.forward(inputs.tokens, inputs.positions, inputs.sampled, attend)

    def _touch_buffers(self, tokens: int, rows: int) -> None:
        """A step of so many tokens without attention."""
        outputs, zeros = self._padded_outputs(tokens), np.zeros(tokens, np.int64)
        with limited_blas(self._num_threads):
            self.model.forward(zeros, zeros, np.arange(min(rows, tokens)), lambda *_: outputs[0])

    def _padded_outputs(self, tokens: int) -> NumpyArray:
        """Room [2, padded tokens, heads, head_dim] that stays; zero behind the tokens."""
        rows = padded_rows(tokens)
        _, room, *sizes = self._outputs.shape
        if rows > room:
            self._outputs = np.zeros((2, max(rows, 2 * room), *sizes), np.float32)
        outputs = self._outputs[:, :rows]
        outputs[:, tokens:] = 0
        return np.asarray(outputs)


def cpu_name() -> str:
    """The processor's model name, as far as the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), platform.processor() or platform.machine() or "CPU")


def _memory(
    allocator: PagedAllocator | ContiguousAllocator,
    addresses: PagedAddresses | ContiguousAddresses,
    settings: Settings,
    num_threads: int | None,
) -> PagedMemory | ContiguousMemory:
    if isinstance(addresses, PagedAddresses):
        blocks = allocator.num_blocks
        return PagedMemory(addresses, settings, num_blocks=blocks, num_threads=num_threads)
    slots = allocator.capacity_slots
    return ContiguousMemory(addresses, settings, slots=slots, num_threads=num_threads)
