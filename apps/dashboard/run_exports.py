"""A run as files to take away."""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import streamlit as st

from apps.dashboard.cached import here, run_data
from apps.dashboard.jobs import INPUT
from kvsim.report.export import export_run
from kvsim.report.html import render
from kvsim.report.html_texts import Again
from kvsim.results.summary_file import SUMMARY_NAME


class Export(NamedTuple):
    """A file that is made when it is asked for."""

    label: str
    file_name: str
    mime: str
    make: Callable[[], bytes]


def exports(run_id: str) -> list[Export]:
    """What a listed run can be taken away as."""
    name = run_id.partition("~")[0]
    return [
        Export("Report (HTML)", f"{name}.html", "text/html", lambda: _html(run_id)),
        Export("Tables (CSV, zip)", f"{name}-csv.zip", "application/zip", lambda: _csv(run_id)),
        Export(
            "Summary (Parquet)",
            f"{name}.parquet",
            "application/vnd.apache.parquet",
            lambda: _parquet(run_id),
        ),
        Export(
            "Scenario (YAML)",
            f"{name}.yaml",
            "application/yaml",
            lambda: scenario_text(run_id).encode(),
        ),
        Export("Summary (JSON)", f"{name}.json", "application/json", lambda: _summary(run_id)),
    ]


def show_exports(run_id: str) -> None:
    """A button each; a file is made when its button is pressed."""
    for place, one in zip(st.columns(5), exports(run_id), strict=True):
        place.download_button(
            one.label,
            one.make,
            file_name=one.file_name,
            mime=one.mime,
            key=f"export_{one.file_name.rpartition('.')[2]}",
            on_click="ignore",
            width="stretch",
        )


def scenario_text(run_id: str) -> str:
    """The resolved scenario; files that were uploaded lie beside it."""
    return without_input(run_id, run_data(run_id).run.scenario_text)


def without_input(run_id: str, text: str) -> str:
    """A run's scenario without the folder in which its files lay while it ran."""
    return text.replace(f"{here().jobs / run_id / INPUT}/", "")


def _html(run_id: str) -> bytes:
    """The report, which names the exported scenario instead of the server's run folder."""
    command = shlex.join(["kvsim", "run", f"{run_id.partition('~')[0]}.yaml"])
    return render(run_data(run_id), Again(command, scenario_text(run_id)))


def _csv(run_id: str) -> bytes:
    packed = io.BytesIO()
    with TemporaryDirectory(prefix="kvsim-") as folder:
        written = export_run(run_data(run_id).run, "csv", Path(folder) / "csv")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in written.files:
                archive.write(path, path.relative_to(Path(folder) / "csv").as_posix())
    return packed.getvalue()


def _parquet(run_id: str) -> bytes:
    with TemporaryDirectory(prefix="kvsim-") as folder:
        path = Path(folder) / "summary.parquet"
        export_run(run_data(run_id).run, "parquet", path)
        return path.read_bytes()


def _summary(run_id: str) -> bytes:
    return (run_data(run_id).run.path / SUMMARY_NAME).read_bytes()
