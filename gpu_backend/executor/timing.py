"""What one executed step took."""

from __future__ import annotations

from typing import NamedTuple


class StepTiming(NamedTuple):
    """Measured times of one step, in seconds. Throughput is made of `wall_s` only."""

    step: int
    """The plan's step number."""
    wall_s: float
    """From the plan to the last result on the device; what `step_seconds` returned."""
    device_s: float
    """Time of the copies and of everything the model computes.

    On CUDA by its own clock, from the transfer of the inputs to the last kernel; where the host is
    slower at launching than the device at computing, the waiting between kernels is in it.
    """
    host_s: float
    """Wall time of building the inputs from the plan."""
    cpu_s: float
    """CPU time of all threads of this process during the step.

    OpenBLAS's threads spin for a while after each product, which is counted here: with several
    threads this is an upper bound of the work.
    """
