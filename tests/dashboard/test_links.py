"""What a link names: what is gone, and what belongs to a run that is no longer open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")

from apps.dashboard import uploads
from apps.dashboard.ui import md
from tests.dashboard.conftest import Open
from tests.dashboard.running import texts
from tests.gpu_backend_validate.test_page import small_document
from tests.planning.test_beside_log import C001
from tests.report.reports import small_run
from tests.report.test_bench import SMALL

GONE = "0123456789abcdef"


def _keep(data: Path, kind: str, content: str) -> str:
    return uploads.keep(data / "uploads", kind, "mine", content.encode()).upload_id


def _named(app: Any, key: str) -> str:
    """What the address names, which a page that wrote to it gives as it is."""
    value = app.query_params[key]
    return str(value if isinstance(value, str) else value[0])


def _stays_gone(app: Any, key: str, asked: str) -> None:
    """Nothing else is shown in its place, and the address keeps it."""
    warnings = [one.value.replace("\\", "") for one in app.warning]
    assert any(said.startswith("There is no ") and asked in said for said in warnings)
    assert _named(app, key) == asked
    assert app.selectbox(key=key).value is None


KINDS = {
    "log": ("recordings", {}, "log"),
    "bench": ("recordings", {"recording": "Benchmark"}, "bench"),
    "speeds": ("lab", {}, "bench"),
    "upload": ("traces", {"from": "upload"}, "trace"),
    "result": ("validation", {}, "validation"),
    "profile": ("validation", {"showing": "Profile"}, "profile"),
    "scenario": ("run", {}, "scenario"),
}


@pytest.mark.parametrize("key", KINDS)
def test_a_link_to_an_upload_that_is_gone_shows_no_other_one(
    open_page: Open, data: Path, key: str
) -> None:
    page, others, kind = KINDS[key]
    there, asked = _keep(data, kind, "x"), f"{kind}-{GONE}"
    app = open_page(page, **others, **{key: asked})
    _stays_gone(app, key, asked)
    _stays_gone(app.run(), key, asked)
    app.selectbox(key=key).set_value(there).run()
    assert _named(app, key) == there
    assert not any(asked in one.value.replace("\\", "") for one in app.warning)


@pytest.mark.parametrize("key", ["log", "bench", "upload", "result"])
def test_a_link_to_the_only_upload_after_it_went_says_so(open_page: Open, key: str) -> None:
    page, others, kind = KINDS[key]
    app = open_page(page, **others, **{key: f"{kind}-{GONE}"})
    assert GONE in app.warning[0].value
    assert _named(app, key) == f"{kind}-{GONE}"


def test_a_model_a_run_or_a_result_that_is_gone_is_not_replaced(
    open_page: Open, data: Path, tmp_path: Path
) -> None:
    model = f"config-{GONE}"
    app = open_page("recordings", log=_keep(data, "log", C001), log_model=model)
    _stays_gone(app, "log_model", model)
    shutil.copytree(small_run(tmp_path, requests=20), data / "runs" / "mine")
    bench = _keep(data, "bench", json.dumps(SMALL))
    app = open_page("recordings", recording="Benchmark", bench=bench, bench_run="yours")
    _stays_gone(app, "bench_run", "yours")
    assert not app.error
    _keep(data, "validation", json.dumps(small_document()))
    app = open_page("validation", result="yours~01234567")
    _stays_gone(app, "result", "yours~01234567")


def test_another_run_is_opened_at_its_own_moments(
    open_page: Open, data: Path, tmp_path: Path
) -> None:
    made = small_run(tmp_path, requests=20)
    for name in ("first", "second"):
        shutil.copytree(made, data / "runs" / name)
    app = open_page("run", opened="first", view="Physical map", at_map="1", at_waterfall="0")
    assert app.selectbox(key="at_map of first").index == 1
    app.run()
    assert _named(app, "at_map") == "1"
    app.selectbox(key="opened").set_value("second").run()
    assert not {"at_map", "at_waterfall"} & set(app.query_params)
    assert _named(app, "view") == "Physical map"


def test_a_run_folder_that_is_broken_is_said_without_its_folder(
    open_page: Open, data: Path
) -> None:
    broken = data / "runs" / "mine"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    app = open_page("run", opened="mine")
    assert len(app.error) == 1
    assert str(data) not in texts(app).replace("\\", "")
    assert "mine" in app.error[0].value


def test_an_address_in_a_text_is_broken_by_a_joiner() -> None:
    joined = "\N{WORD JOINER}"
    shown = md("HTTPS://a.b WWW.a.b c@d.e").replace("\\", "")
    assert shown == f"HTTPS://{joined}a.b WWW{joined}.a.b c@{joined}d.e"
