"""The clock that measures: every step of a plan is run, and its wall time is its duration.

Each device is a `Runtime`; its libraries (numba, or torch and Triton) are imported by
`build_executor` for that device only.
"""

from gpu_backend.executor.build import build_executor
from gpu_backend.executor.executor import Executor
from gpu_backend.executor.runtime import Engine
from gpu_backend.executor.shape import ModelShape
from gpu_backend.executor.timing import StepTiming

__all__ = ["Engine", "Executor", "ModelShape", "StepTiming", "build_executor"]
