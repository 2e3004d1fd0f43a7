"""A scenario's own runs on a device: its clock is replaced by one that runs the steps."""

from __future__ import annotations

from gpu_backend.device import MeasuringClock
from gpu_backend.grid import device_name
from gpu_backend.scenario_device import Runnable, grid_of, runnable_variants
from kvsim.catalog.explain import Fact
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.scenario.build import Server
from kvsim.scenario.settings import Scenario


class DeviceClocks:
    """Makes the clock of every variant (`kvsim.scenario.replicas.ClockMaker`)."""

    def __init__(self, scenario: Scenario, device: str) -> None:
        """Raises `InputError` naming the first setting that no device runs."""
        self._runnables = runnable_variants(scenario, device)
        self._name = device_name(grid_of(scenario, device))

    def __call__(self, settings: Scenario, server: Server) -> DeviceClock:
        """The clock over this server's memory."""
        allocator, scheduler = server.allocator, server.scheduler
        assert isinstance(allocator, PagedAllocator | ContiguousAllocator)
        assert isinstance(scheduler, VllmScheduler | OrcaScheduler)
        runnable = next(one for one in self._runnables if one.settings == settings)
        clock = runnable.device.clock(allocator, scheduler, runnable.shape)
        return DeviceClock(clock, runnable, self._name)


class DeviceClock:
    """A measuring clock that explains itself (`kvsim.cost.PredictiveClock`)."""

    relative_error: float | None = None

    def __init__(self, clock: MeasuringClock, runnable: Runnable, name: str) -> None:
        spec = runnable.device
        depths = " and ".join(map(str, spec.measured_layers))
        how = "" if spec.measured_layers == (spec.layers,) else f", extrapolated from {depths}"
        what = "attention only" if spec.attention_only else "random weights"
        self.note = (
            f"measured: every step was run on {name}, eager, {spec.layers} layers{how}, {what}"
        )
        self._clock, self._name, self._layers = clock, name, spec.layers

    def step_seconds(self, plan: StepPlan) -> float:
        """Run the step; its wall time in seconds."""
        return self._clock.step_seconds(plan)

    def explain(self) -> list[Fact]:
        """What ran the steps."""
        return [
            Fact("device", self._name, "", "measured wall time of every step"),
            Fact("layers", self._layers, "layers", self.note),
        ]
