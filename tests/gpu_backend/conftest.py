"""Triton's interpreter, for these tests only.

Triton looks at TRITON_INTERPRET when it is imported and when `@triton.jit` runs; some of its own
functions look again at a launch. The variable is set for those moments and for these tests, so that
no other test, and no process that another test starts, sees it.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import pytest

VARIABLE = "TRITON_INTERPRET"


def _import_kernels() -> None:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        import_module("gpu_backend.ops")
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


if find_spec("torch") and find_spec("triton"):
    _import_kernels()


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
