from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material: $KVSIM_SHARED, or ../shared beside the repository."""
    beside = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("KVSIM_SHARED", beside))
    if not folder.is_dir():
        pytest.skip(f"needs ../shared: no folder {folder} (set KVSIM_SHARED)")
    return folder


Once = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: what `make()` returns, as plain JSON, made by one worker for all.

    For long runs that several tests look at. A worker that asks while another one makes it waits.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def made(name: str, make: Callable[[], Any]) -> Any:
        path = folder / f"once-{hashlib.sha256(name.encode()).hexdigest()}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(make()), encoding="utf-8")
            return json.loads(path.read_text(encoding="utf-8"))

    return made
