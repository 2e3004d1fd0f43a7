"""The clock that measures: every step of a plan is run, and its wall time is its duration."""

from gpu_backend.executor.cpu import CpuExecutor
from gpu_backend.executor.shape import ModelShape
from gpu_backend.executor.timing import StepTiming

__all__ = ["CpuExecutor", "ModelShape", "StepTiming"]
