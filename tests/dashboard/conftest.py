from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Open = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The dashboard's own folder."""
    folder = tmp_path / "data"
    monkeypatch.setenv("KVSIM_DASHBOARD_DATA", str(folder))
    monkeypatch.setenv("KVSIM_DASHBOARD_RUNS", "")
    return folder


@pytest.fixture
def open_page(data: Path) -> Open:
    """Opens a page of the dashboard as a link with these parameters would."""
    testing = pytest.importorskip("streamlit.testing.v1", reason="needs kvsim[dashboard]")
    streamlit = pytest.importorskip("streamlit")
    streamlit.cache_data.clear()  # what another test of this process has read
    streamlit.cache_resource.clear()

    def opened(name: str = "capacity", **parameters: str | list[str]) -> Any:
        app = testing.AppTest.from_file(
            str(ROOT / "apps" / "dashboard" / "app.py"), default_timeout=60
        )
        if name != "capacity":
            app.run()
            app.switch_page(os.path.join("views", f"{name}.py"))  # noqa: PTH118
        for key, value in parameters.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, app.exception[0].stack_trace
        return app

    return opened
