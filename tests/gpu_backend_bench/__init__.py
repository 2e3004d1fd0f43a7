"""Tests of the prepared run; they need the extra `gpu`, without which each is skipped.

Triton looks at TRITON_INTERPRET when it is imported and when `@triton.jit` runs, so the kernels are
imported here, with the variable set for that moment only: see tests/gpu_backend/conftest.py.
"""

from __future__ import annotations

import os
from importlib import import_module

import pytest

VARIABLE = "TRITON_INTERPRET"


def _import_kernels() -> None:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        for name in ("torch", "triton"):
            pytest.importorskip(name, reason=f"needs {name}: pip install 'kvsim[gpu]'")
        import_module("gpu_backend.ops")
        import_module("gpu_backend.kernels.read")
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


_import_kernels()
