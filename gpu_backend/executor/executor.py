"""The clock that measures: inputs from a plan, a step on a device, its time, checks when due."""

from __future__ import annotations

import time

from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.batch import Batch
from gpu_backend.executor.blas import limited_blas
from gpu_backend.executor.checker import Checker
from gpu_backend.executor.runtime import Engine, Runtime
from gpu_backend.executor.timing import StepTiming
from kvsim.core.plan import StepPlan


class Executor:
    """A clock that runs each step and says how long it took (`kvsim.core.protocols.Clock`).

    Weights are random with a fixed seed and token values a hash of where a token comes from, so
    two runs of the same plans compute the same. Only positions scheduled in a plan are written.

    Priority scheduling can take back a chunk whose full blocks the prefix cache already names (both
    are rules of vllm/SPEC.md); a later hit then finds KV that was never computed: a check says so.

    Of a plan it reads `scheduled()`, `step`, `copies`, `admitted`, `hits` and `preempted`, so a
    plan made by hand runs too. `build_executor` makes one.
    """

    def __init__(
        self,
        engine: Engine,
        addresses: PagedAddresses | ContiguousAddresses,
        runtime: Runtime,
        *,
        device: str,
        vocab: int,
        check_every: int = 0,
        num_threads: int | None = None,
    ) -> None:
        """`runtime` reads `addresses`; `device` is what it was asked for; `vocab` in tokens.

        `num_threads` limits the matrix products of checks: threads that the BLAS starts for them
        would spin on into the next steps.
        """
        self.timings: list[StepTiming] = []
        """One per step since the start or the last `forget_timings`, in the order of execution."""
        self.checked_rows = 0
        """Query rows compared with the reference so far."""
        self.device = device
        self.device_name = runtime.device_name
        self.mode = runtime.mode
        self.addresses = addresses
        self.runtime = runtime
        self.batch = Batch(engine.max_num_seqs, addresses, vocab, engine.computed_tokens)
        self._checker = Checker(engine, self.batch, runtime, every=check_every)
        self._check_every = check_every
        self._num_threads = num_threads

    @property
    def sampled(self) -> NumpyArray:
        """The latest step's most likely next tokens, in row order; no step reads them."""
        return self.runtime.sampled()

    def forget_timings(self) -> None:
        """Empty `timings`."""
        self.timings.clear()

    def step_seconds(self, plan: StepPlan) -> float:
        """Run the step; returns its wall time in seconds, inputs included, checks excluded.

        Call it between `schedule()` and `complete()`, once per plan with scheduled tokens.
        Raises AssertionError with sequence, position and both values where a check fails.
        """
        cpu, begin = time.process_time(), time.perf_counter()
        inputs = self.batch.load(plan.scheduled())
        ready = time.perf_counter()
        self.runtime.execute(plan.copies, inputs)
        device_s = self.runtime.synchronize()
        end, cpu_end = time.perf_counter(), time.process_time()
        self.timings.append(
            StepTiming(plan.step, end - begin, device_s, ready - begin, cpu_end - cpu)
        )
        if self._check_every:
            with limited_blas(self._num_threads):
                self.checked_rows += self._checker.check_if_due(plan, inputs)
        return end - begin
