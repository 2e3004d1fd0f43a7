from __future__ import annotations

import pytest

from tests.gpu_backend_bench import VARIABLE


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of Triton's functions look at the variable at a launch."""
    monkeypatch.setenv(VARIABLE, "1")
