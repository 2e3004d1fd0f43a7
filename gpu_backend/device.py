"""Where and how steps are run, as plain values; and the measuring clock that follows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpu_backend.executor import Executor, ModelShape, StepTiming, build_executor
from gpu_backend.executor.runtime import Engine
from gpu_backend.room import executor_bytes, require_room
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan

SHORTEST_S = 1e-9
"""Noise may extrapolate below 0; no step takes less than the resolution of a simulation."""


class MeasuringClock(Protocol):
    """A clock that runs the steps (`kvsim.core.protocols.Clock`)."""

    @property
    def timings(self) -> list[StepTiming]:
        """One per step since the start."""

    @property
    def checked_rows(self) -> int:
        """Query rows compared with the reference so far."""

    @property
    def device_name(self) -> str:
        """Of the processor or GPU."""

    def step_seconds(self, plan: StepPlan) -> float:
        """Run the step; its wall time in seconds."""


class DeviceSpec(NamedTuple):
    """A device and the depth at which it runs a model."""

    device: str
    """`cpu` or `cuda`."""
    layers: int
    """Layers of the model."""
    measured_layers: tuple[int, ...]
    """`(layers,)`, or two smaller depths that are extrapolated affinely."""
    num_threads: int | None = None
    """CPU only; None: all."""
    dtype: str = "fp32"
    """Of weights and KV, a member of `DEVICES` in `gpu_backend.executor.build`."""
    attention_only: bool = False
    check_every: int = 0
    """Every so many steps are compared with a float64 reference; 0: none."""

    def clock(
        self,
        allocator: PagedAllocator | ContiguousAllocator,
        scheduler: Engine,
        shape: ModelShape,
        *,
        seed: int = 0,
    ) -> MeasuringClock:
        """A clock over this server's memory. Raises as `build_executor` and `require_room` do."""
        needed = (
            executor_bytes(
                shape,
                layers=layers,
                slots=allocator.num_blocks * allocator.block_size,
                dtype=self.dtype,
                attention_only=self.attention_only,
            )
            for layers in self.measured_layers
        )
        require_room(sum(needed), self.device)
        executors = [
            build_executor(
                allocator,
                scheduler,
                shape,
                layers=layers,
                device=self.device,
                num_threads=self.num_threads,
                dtype=self.dtype,
                attention_only=self.attention_only,
                seed=seed,
                check_every=self.check_every,
            )
            for layers in self.measured_layers
        ]
        if len(executors) == 1:
            return executors[0]
        shallow, deep = executors
        return TwoDepths(shallow, deep, self.measured_layers, self.layers)


class TwoDepths:
    """Runs every step at two depths; its time is extrapolated affinely to the model's own.

    A step costs `once + layers * per_layer`: embedding, head and host are paid once. Each depth has
    its own KV tensors on the same blocks. An error of the measurement grows with the distance:
    by (layers - shallow) / (deep - shallow).
    """

    def __init__(
        self, shallow: Executor, deep: Executor, measured: tuple[int, ...], layers: int
    ) -> None:
        self._executors = (shallow, deep)
        first, second = measured
        self._reach = (layers - first) / (second - first)
        self._timings: list[StepTiming] = []

    @property
    def timings(self) -> list[StepTiming]:
        """Extrapolated; none is below `SHORTEST_S`."""
        return self._timings

    @property
    def device_name(self) -> str:
        """Of the processor or GPU."""
        return self._executors[0].device_name

    @property
    def checked_rows(self) -> int:
        """Of both depths."""
        return sum(executor.checked_rows for executor in self._executors)

    def step_seconds(self, plan: StepPlan) -> float:
        """Run the step twice; the extrapolated wall time in seconds."""
        for executor in self._executors:
            executor.step_seconds(plan)
        low, high = (executor.timings.pop() for executor in self._executors)
        times = (a + (b - a) * self._reach for a, b in zip(low[1:], high[1:], strict=True))
        timing = StepTiming(plan.step, *(max(seconds, SHORTEST_S) for seconds in times))
        self._timings.append(timing)
        return timing.wall_s
