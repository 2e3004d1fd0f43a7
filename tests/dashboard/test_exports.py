"""What the pages give away as files."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")

import streamlit

from apps.dashboard import uploads
from kvsim.planning.log_csv import log_csv
from kvsim.report.moments import MomentRow
from tests.dashboard.conftest import Open
from tests.dashboard.test_recordings import bench
from tests.dashboard.test_traces import mooncake
from tests.gpu_backend_validate.test_page import small_document
from tests.planning.test_beside_log import C001, audited
from tests.report.reports import small_run
from tests.report.test_html_page import Page

__all__ = ["bench"]

Files = dict[str, Callable[[], bytes | str]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Files:
    """File name -> what makes its content, as the page's buttons have it."""
    found: Files = {}

    def button(label: str, data: Any, file_name: str = "", *_: Any, **__: Any) -> bool:
        assert file_name not in found, file_name
        found[file_name] = data if callable(data) else lambda: data
        return False

    monkeypatch.setattr(streamlit, "download_button", button)
    return found


def page_of(files: Files, name: str) -> Page:
    """A file that must be one self-contained page."""
    content = files[name]()
    assert isinstance(content, bytes)
    found = Page(content.decode())
    for _, attrs in found.tags:
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
    return found


def headings(files: Files, name: str) -> list[str]:
    content = files[name]()
    assert isinstance(content, bytes)
    return re.findall("<h2><bdi>(.*?)</bdi></h2>", content.decode())


def lines(files: Files, name: str) -> list[dict[str, str]]:
    content = files[name]()
    text = content.decode() if isinstance(content, bytes) else content
    return list(csv.DictReader(io.StringIO(text)))


def table(files: Files, name: str) -> list[dict[str, Any]]:
    content = files[name]()
    assert isinstance(content, bytes)
    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return found


def test_fragmentation_gives_scenarios_events_and_the_map_of_the_moment(
    open_page: Open, data: Path, tmp_path: Path, offered: Files
) -> None:
    made = small_run(tmp_path, requests=60)
    for name in ("one", "two"):
        shutil.copytree(made, data / "runs" / name)
    folder = made / "variants" / "paged"
    snapshots = json.loads((folder / "snapshots.json").read_text())["snapshots"]
    open_page("fragmentation", run=["one", "two"], map="one · paged", moment="2")
    for name in ("one", "two"):
        text = offered[f"{name}.yaml"]()
        assert text == (made / "scenario.yaml").read_bytes()
    events = lines(offered, "events.csv")
    assert tuple(events[0]) == ("moment", *MomentRow._fields)
    assert [one["why"] for one in events] == [one["why"] for one in snapshots]
    (heading,) = headings(offered, "map.html")
    assert heading == f"{snapshots[1]['time_s']:,.3f} s: {snapshots[1]['why']}"
    assert page_of(offered, "map.html").figures()["0"]["figure"]["data"]


def test_the_trace_explorer_gives_its_figures_and_the_curve_as_pages(
    open_page: Open, data: Path, offered: Files
) -> None:
    upload = uploads.keep(data / "uploads", "trace", "m.jsonl", mooncake()).upload_id
    open_page("traces", **{"from": "upload", "upload": upload, "prefix": "true"})
    (figures,) = (name for name in offered if name.endswith("-figures.html"))
    found = page_of(offered, figures)
    assert headings(offered, figures)[:3] == ["Arrivals", "Lengths", "Output against prompt"]
    assert len(found.figures()) == len(headings(offered, figures)) - 1
    assert found.row("requests") == ["4", ""]
    (curve,) = (name for name in offered if name.endswith("-prefix.html"))
    assert len(page_of(offered, curve).figures()) == 1


def test_the_lab_gives_its_figures_rounding_and_kernels(
    open_page: Open, data: Path, offered: Files
) -> None:
    row = {"kind": "decode", "batch": 8, "context": 100, "block_size": 16, "share": 0.875}
    bench = uploads.keep(data / "uploads", "bench", "d.jsonl", json.dumps(row).encode()).upload_id
    upload = uploads.keep(data / "uploads", "trace", "m.jsonl", mooncake()).upload_id
    open_page("lab", **{"from": "upload", "upload": upload, "speeds": bench})
    assert headings(offered, "block-size.html") == [
        "What the last block wastes",
        "What whole blocks cost a prefix cache",
        "What kernels make of the block size",
    ]
    assert len(page_of(offered, "block-size.html").figures()) == 3
    rounding = lines(offered, "block-size-rounding.csv")
    assert {one["prompt_tokens"] for one in rounding} == {str(1000 + 600 + 513 + 1000)}
    measured = [one for one in lines(offered, "kernels.csv") if one["curve"] == "8 x 100 tokens"]
    assert [(one["block_size_tokens"], one["relative_speed"]) for one in measured] == [
        ("16", "0.875")
    ]


def test_the_lab_gives_the_figures_of_sharing(open_page: Open, offered: Files) -> None:
    open_page("lab", part="sharing", width="3")
    assert headings(offered, "sharing.html") == ["By number of samples (n)", "With 3"]


def test_a_validation_is_given_as_page_and_tables(
    open_page: Open, data: Path, offered: Files
) -> None:
    content = json.dumps(small_document()).encode()
    name = uploads.keep(data / "uploads", "validation", "a.json", content).upload_id
    open_page("validation", result=name)
    checks = small_document()["checks"]
    assert [one["value"] for one in table(offered, f"{name}.parquet")] == [
        check["value"] for check in checks
    ]
    assert len(lines(offered, f"{name}.csv")) == len(checks)
    assert page_of(offered, f"{name}.html").figures()
    assert json.loads(offered[f"{name}.json"]())["checks"] == checks


def test_a_log_is_given_as_page_and_tables(open_page: Open, data: Path, offered: Files) -> None:
    upload = uploads.keep(data / "uploads", "log", "a.log", C001.encode()).upload_id
    open_page("recordings", log=upload)
    rows = lines(offered, "startup-log.csv")
    assert len(table(offered, "startup-log.parquet")) == len(rows) > 0
    expected = [one for one in rows if one["part"] == "check"]
    without = list(csv.DictReader(io.StringIO(log_csv(audited(C001), None))))
    assert expected == [one for one in without if one["part"] == "check"]
    found = page_of(offered, "startup-log.html")
    assert headings(offered, "startup-log.html")[-2:] == ["Checks", "Beside the prediction"]
    assert sum(len(row) == 7 for row in found.rows) == len(expected) + 1


def test_a_benchmark_is_given_as_page_and_tables(
    open_page: Open, bench: str, offered: Files
) -> None:
    open_page("recordings", recording="Benchmark", bench=bench)
    rows = lines(offered, "benchmark.csv")
    assert [one["name"] for one in table(offered, "benchmark.parquet")] == [
        one["name"] for one in rows
    ]
    assert headings(offered, "benchmark.html") == ["Relative errors", "The loads", "The figures"]
    assert len(page_of(offered, "benchmark.html").rows) == len(rows) + 2
