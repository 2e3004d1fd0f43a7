"""What is computed once and kept: runs read back, catalogues, answers of `kvsim fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from apps.dashboard.places import Places, places, run_folder
from kvsim.errors import InputError
from kvsim.report.html_data import ReportData, read_report_data


def here() -> Places:
    """The folders of this dashboard."""
    return places()


def run_data(run_id: str) -> ReportData:
    """A run of the list, read and reduced. Raises `InputError` as `read_report_data` does."""
    path = run_folder(here(), run_id)
    data: ReportData = _run_data(str(path), written_ns(path))
    return data


def written_ns(run_dir: Path) -> int:
    """When a run folder was completed. Raises `InputError` where it was removed since."""
    try:
        return (run_dir / "run.json").stat().st_mtime_ns
    except OSError:
        raise InputError("the run is not here any more", where=run_dir.name) from None


@st.cache_resource(max_entries=12, show_spinner="Reading the run")
def _run_data(path: str, written_ns: int) -> Any:
    return read_report_data(Path(path))
