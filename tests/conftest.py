from __future__ import annotations

import os
from pathlib import Path

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
