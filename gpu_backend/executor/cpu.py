"""The executor on the CPU: numba attention over a real KV cache, numpy for everything else."""

from __future__ import annotations

import time

import numpy as np

from gpu_backend.cpu import warm_up
from gpu_backend.cpu.arrays import NumpyArray
from gpu_backend.executor.batch import Batch, Inputs
from gpu_backend.executor.blas import limited_blas
from gpu_backend.executor.memory import ContiguousMemory, Memory, PagedMemory
from gpu_backend.executor.model import AttentionOnly, Decoder
from gpu_backend.executor.oracle import Oracle
from gpu_backend.executor.shape import ModelShape
from gpu_backend.executor.timing import StepTiming
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Sequence
from kvsim.core.scheduler_base import QueueScheduler
from kvsim.core.static_scheduler import StaticScheduler

CHECKED_SEQUENCES = 4
"""Sequences that a checked step compares with the reference."""


class CpuExecutor:
    """A clock that runs each step and says how long it took (`kvsim.core.protocols.Clock`).

    Weights are random with a fixed seed and token values a hash of where a token comes from, so
    two runs of the same plans compute the same. Only positions scheduled in a plan are written.

    Priority scheduling can take back a chunk whose full blocks the prefix cache already names (both
    are rules of vllm/SPEC.md); a later hit then finds KV that was never computed: a check says so.

    `num_threads` (None: all CPUs) is for attention and, where numpy brings its own OpenBLAS
    (`blas.blas_threads`), for matrix products. Another BLAS reads its environment variables.
    """

    def __init__(
        self,
        allocator: PagedAllocator | ContiguousAllocator,
        scheduler: QueueScheduler,
        shape: ModelShape,
        *,
        layers: int,
        num_threads: int | None = None,
        attention_only: bool = False,
        seed: int = 0,
        check_every: int = 0,
    ) -> None:
        """`check_every` n > 0: every n-th step, and those with or right after a preemption, a
        resumption, a prefix hit or a copy, are compared with a float64 reference, outside the
        measured time.

        Compiles the kernels and allocates everything. Raises ValueError or TypeError for what it
        cannot run: asynchronous scheduling, speculation, static batches, layer groups.
        """
        _refuse(allocator, scheduler)
        shape.check()
        if layers < 1 or check_every < 0:
            raise ValueError(
                f"layers (={layers}) must be >= 1 and check_every (={check_every}) >= 0"
            )
        self.timings: list[StepTiming] = []
        """One per step, in the order of execution."""
        self.sampled = np.empty(0, np.int64)
        """The latest step's most likely next tokens, in row order; nothing reads them."""
        self.checked_rows = 0
        """Query rows compared with the reference so far."""
        self._scheduler = scheduler
        self._num_threads = num_threads
        rows, max_tokens = scheduler.max_num_seqs, scheduler.max_model_len
        self.memory = _memory(allocator, scheduler, shape, layers, num_threads)
        self.batch = Batch(rows, self.memory, shape.vocab, scheduler.computed_tokens)
        self.model: Decoder | AttentionOnly
        if attention_only:
            self.model = AttentionOnly(shape, layers=layers, seed=seed)
        else:
            self.model = Decoder(shape, layers=layers, max_tokens=max_tokens, seed=seed)
        self._check_every = check_every
        self._disturbed = False
        self._oracle = Oracle(self.model)
        self._outputs = np.empty((2, 0, shape.heads, shape.head_dim), np.float32)
        """Attention outputs of the first and of any other layer."""
        warm_up(shape.heads, shape.kv_heads, shape.head_dim, num_threads=num_threads)
        nothing = np.zeros((1, shape.kv_heads, shape.head_dim), np.float32)
        self.memory.write(0, nothing, nothing, np.array([-1]))

    def step_seconds(self, plan: StepPlan) -> float:
        """Run the step; returns its wall time in seconds, inputs included.

        Call it between `schedule()` and `complete()`, once per plan with scheduled tokens.
        Raises AssertionError with sequence, position and both values where a check fails.
        """
        cpu, begin = time.process_time(), time.perf_counter()
        with limited_blas(self._num_threads):
            inputs = self.batch.load(plan.scheduled())
            self._reserve(len(inputs.tokens))
            ready = time.perf_counter()
            self._execute(plan, inputs)
            end, cpu_end = time.perf_counter(), time.process_time()
        self.timings.append(
            StepTiming(plan.step, end - begin, end - ready, ready - begin, cpu_end - cpu)
        )
        if self._check_every:
            self._check_if_due(plan, inputs)
        return end - begin

    def _execute(self, plan: StepPlan, inputs: Inputs) -> None:
        memory, tokens = self.memory, len(inputs.tokens)
        for copy in plan.copies:
            memory.move(copy)

        def attend(layer: int, query: NumpyArray, key: NumpyArray, value: NumpyArray) -> NumpyArray:
            memory.write(layer, key, value, inputs.slots)
            out: NumpyArray = self._outputs[min(layer, 1), :tokens]
            memory.attend(layer, query, inputs.query_start, inputs.contexts, out)
            return out

        self.sampled = self.model.forward(inputs.tokens, inputs.positions, inputs.sampled, attend)

    def _reserve(self, tokens: int) -> None:
        _, room, heads, head_dim = self._outputs.shape
        if tokens > room:
            self._outputs = np.empty((2, max(tokens, 2 * room), heads, head_dim), np.float32)

    def _check_if_due(self, plan: StepPlan, inputs: Inputs) -> None:
        resumed = any(sequence.admissions > 1 for sequence in plan.admitted)
        disturbed = bool(plan.preempted or plan.copies or resumed or any(plan.hits))
        if disturbed or self._disturbed or plan.step % self._check_every == 0:
            for sequence, new_tokens in self._suspects(plan)[:CHECKED_SEQUENCES]:
                self._check(sequence, new_tokens, inputs)
        self._disturbed = disturbed

    def _suspects(self, plan: StepPlan) -> list[tuple[Sequence, int]]:
        """What is scheduled: first whatever was moved, resumed or hit the cache, then in turn."""
        moved = {copy.target_slot for copy in plan.copies}
        first = {
            sequence.order
            for sequence, hit in zip(plan.admitted, plan.hits, strict=False)
            if hit or sequence.admissions > 1
        }
        scheduled = plan.scheduled()
        turn = plan.step * CHECKED_SEQUENCES % len(scheduled)
        return sorted(
            scheduled[turn:] + scheduled[:turn],
            key=lambda item: (
                item[0].order not in first
                and (item[0].extent is None or item[0].extent.start_slot not in moved)
            ),
        )

    def _check(self, sequence: Sequence, new_tokens: int, inputs: Inputs) -> None:
        """Compare the first and the last row of a sequence."""
        last = self._scheduler.computed_tokens(sequence) - 1
        back = np.unique([new_tokens - 1, 0])
        end = int(inputs.query_start[self.batch.rows[sequence.order] + 1])
        found = self._outputs[0, end - 1 - back]
        self._oracle.compare(sequence.request, last - back, found)
        self.checked_rows += len(back)


def _memory(
    allocator: PagedAllocator | ContiguousAllocator,
    scheduler: QueueScheduler,
    shape: ModelShape,
    layers: int,
    num_threads: int | None,
) -> Memory:
    """KV tensors over the allocator's blocks or extents, with a row per running sequence."""
    rows = scheduler.max_num_seqs
    if isinstance(allocator, PagedAllocator):
        return PagedMemory(
            allocator,
            shape,
            layers=layers,
            rows=rows,
            max_tokens=scheduler.max_model_len,
            num_threads=num_threads,
        )
    return ContiguousMemory(allocator, shape, layers=layers, rows=rows, num_threads=num_threads)


def _refuse(allocator: object, scheduler: QueueScheduler) -> None:
    if not isinstance(allocator, PagedAllocator | ContiguousAllocator):
        raise TypeError(
            f"the executor runs PagedAllocator and ContiguousAllocator, "
            f"not {type(allocator).__name__}"
        )
    if scheduler.allocator is not allocator:
        raise ValueError("the scheduler uses another allocator than the executor")
    if scheduler.is_async:
        raise ValueError("the executor runs one step at a time: switch asynchronous scheduling off")
    if scheduler.delivers_unevenly:
        raise ValueError("the executor has no draft model: switch speculation off")
    if isinstance(scheduler, StaticScheduler):
        raise ValueError("the executor computes no padded rows: static batches are not supported")
