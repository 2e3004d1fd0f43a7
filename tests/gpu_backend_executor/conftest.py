"""The Triton kernels of these tests run in its interpreter, as those of tests/gpu_backend do."""

from tests.gpu_backend.conftest import interpreter

__all__ = ["interpreter"]
