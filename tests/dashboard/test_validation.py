from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.dashboard import uploads
from apps.dashboard.places import Places, validation_files
from gpu_backend.validate.tables import headline
from tests.dashboard.conftest import Open
from tests.gpu_backend_validate.server import profile
from tests.gpu_backend_validate.test_page import check, small_document

ACTING = re.compile(r"(?<!\\)[<\[$]|\x1b")
"""Markup, links, pictures and formulas that are not escaped."""
HOSTILE = "</script><b>x</b> ![a](http://evil.example/a.png) [b](http://evil.example) \x1b[31m$x$"


@pytest.fixture
def runs(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the dashboard was started with."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("KVSIM_DASHBOARD_RUNS", str(folder))
    return folder


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return path


def frame(app: Any, column: str) -> dict[str, list[str]]:
    """The first table with this column."""
    frames = [one.value.to_dict("list") for one in app.dataframe]
    found: dict[str, list[str]] = next(one for one in frames if column in one)
    return found


def test_without_a_result_the_page_says_how_to_make_one(open_page: Open) -> None:
    app = open_page("validation")
    commands = app.code[-1].value
    assert "kvsim validate validate-cpu" in commands
    assert "--json-out" in commands
    assert "kvsim dashboard --runs" in commands


def test_a_result_is_shown_with_the_numbers_of_its_document(open_page: Open, runs: Path) -> None:
    document = small_document()
    write(runs / "tiny.json", document)
    app = open_page("validation")
    assert app.error[0].value.replace("\\", "") == headline(document)
    bounds = frame(app, "result")
    assert bounds["error"][0] == "9.1 %"
    assert bounds["result"] == ["✗ FAILED"] + ["✓ held"] * 5
    free = frame(app, "95 % interval")
    assert free["figure"][0] == "rate (requests/s)"
    assert (free["measured"][0], free["simulated"][0]) == ("8.00", "7.60")
    assert free["bound"][0] == "8.0 % ✗ FAILED"
    steps = frame(app, "steps of")
    assert steps["error, median"] == ["3.1 %"] * 3
    controls = frame(app, "noticed")
    assert controls["control"] == ["slow clock", "wrong block size", "no prefill"]
    assert controls["noticed"] == ["✓ noticed", "✓ noticed", "✗ NOT NOTICED"]
    assert frame(app, "batches of the calibration")["median"][0] == "4.3 %"
    assert any("ab" * 32 in one.value for one in app.markdown)


def test_a_link_restores_result_variant_and_load(open_page: Open, runs: Path) -> None:
    write(runs / "tiny.json", small_document())
    write(runs / "other.json", {**small_document(), "failures": [], "scenario": "other one"})
    ids = validation_files(Places(runs, (runs,)))
    wanted = next(name for name in ids if name.startswith("other"))
    app = open_page("validation", result=wanted, variant="whole", load="load 0.9")
    assert app.success[0].value.startswith("Validated")
    assert app.selectbox(key="variant").value == "whole"
    assert frame(app, "95 % interval")["bound"][6] == "8.0 % ✓ held"


def test_a_plan_that_was_timed_elsewhere_has_steps_and_no_free_runs(
    open_page: Open, runs: Path
) -> None:
    document = small_document()
    for one in document["variants"].values():
        one["free"] = {}
    write(runs / "tiny.json", {**document, "framework": {}})
    app = open_page("validation")
    assert any("Nothing ran free" in one.value for one in app.info)
    assert frame(app, "steps of")["steps"] == ["1,240"] * 3


def test_what_a_framework_would_waste_is_shown_where_it_was_measured(
    open_page: Open, runs: Path
) -> None:
    found = {"peak_allocated_bytes": 2**20, "peak_reserved_bytes": 2**21}
    side = {**found, "mean_idle_share": 0.25, "refused": 3}
    framework = {"whole": {"simulated": side, "framework": None, "why": "no CUDA device"}}
    write(runs / "tiny.json", {**small_document(), "framework": framework})
    table = frame(open_page("validation"), "refused (requests)")
    assert table["allocated, peak (MiB)"] == ["1.0", "no CUDA device"]
    assert table["idle, mean (% of reserved)"] == ["25.0", ""]


DAMAGED = [
    b'{"format": "kvsim-validation-1"}',
    b'{"format": "kvsim-validation-1", "x": ' + b"[" * 100_000,
    b'{"format": "kvsim-validation-1", "device": {"name": "secret"}}',
]


def test_damaged_results_are_messages_and_the_page_lives_on(open_page: Open, runs: Path) -> None:
    for number, content in enumerate(DAMAGED):
        (runs / f"{number}.json").write_bytes(content)
    app = open_page("validation")
    for name in list(app.selectbox(key="result").options):
        app.selectbox(key="result").set_value(name).run()
        assert not app.exception
        assert "is no" in app.error[0].value
        assert "secret" not in app.error[0].value
        assert str(runs) not in app.error[0].value


def test_names_of_a_document_stay_text(open_page: Open, runs: Path) -> None:
    document = small_document()
    document["scenario"] = document["device"]["name"] = HOSTILE
    document["variants"] = {HOSTILE: document["variants"]["paged"]}
    document["checks"].append(check(HOSTILE, HOSTILE, 2.0, 1.0))
    document["failures"] = [HOSTILE]
    for one in document["controls"]:
        one.update(name=HOSTILE, what=HOSTILE, variants=[HOSTILE])
    write(runs / "tiny.json", document)
    app = open_page("validation")
    for one in (*app.markdown, *app.caption, *app.error, *app.info):
        assert not ACTING.search(one.value)


def test_an_uploaded_result_is_shown_under_its_own_name(open_page: Open, data: Path) -> None:
    content = json.dumps(small_document()).encode()
    upload = uploads.keep(data / "uploads", "validation", "mine.json", content)
    broken = uploads.keep(data / "uploads", "validation", "bad.json", b"{}")
    app = open_page("validation", result=upload.upload_id)
    assert app.error[0].value.startswith("Not validated")
    assert "uploaded as mine\\.json" in [one.value for one in app.caption]
    app.selectbox(key="result").set_value(broken.upload_id).run()
    assert app.error[0].value.startswith("**bad\\.json**: is no validation")


def test_an_uploaded_profile_shows_errors_and_constants(open_page: Open, data: Path) -> None:
    content = json.dumps(profile().document).encode()
    upload = uploads.keep(data / "uploads", "profile", "mine.json", content)
    app = open_page("validation", showing="Profile", profile=upload.upload_id)
    constants = frame(app, "constant")
    at = constants["constant"].index("decode_row_s")
    assert (constants["layout"][at], constants["seconds"][at]) == ("paged-4", "5e-05")
    assert frame(app, "batches")["p90"][0] == "7.0 %"
    assert any(profile().sha256 in one.value for one in app.markdown)


def test_a_profile_that_was_changed_is_refused_under_its_own_name(
    open_page: Open, data: Path
) -> None:
    document = {**profile().document, "noise": {"points": 1, "median": 0, "p90": 0, "bias": 0}}
    upload = uploads.keep(data / "uploads", "profile", "mine.json", json.dumps(document).encode())
    app = open_page("validation", showing="Profile", profile=upload.upload_id)
    assert app.error[0].value.startswith("**mine\\.json**: sha256 is")
    assert str(data) not in app.error[0].value


def test_results_are_found_in_the_folders_and_one_level_below_and_links_are_not(
    runs: Path, tmp_path: Path
) -> None:
    outside = write(tmp_path / "outside" / "secret.json", small_document())
    old = write(runs / "old.json", small_document())
    write(runs / "folder" / "new.json", small_document())
    write(runs / "run.json", {"seeds": [0]})
    write(runs / "list.json", [{"format": "kvsim-validation-1"}])
    (runs / "link.json").symlink_to(outside)
    (runs / "links").symlink_to(outside.parent)
    os.utime(old, (1, 1))
    found = validation_files(Places(tmp_path, (runs,)))
    assert [path.name for path in found.values()] == ["new.json", "old.json"]
    assert [name.partition("~")[0] for name in found] == ["new", "old"]
    assert validation_files(Places(tmp_path, (tmp_path / "none",))) == {}


def test_an_id_that_is_not_in_the_list_opens_nothing(open_page: Open, runs: Path) -> None:
    write(runs / "tiny.json", small_document())
    app = open_page("validation", result="../../etc/passwd")
    assert app.selectbox(key="result").value is None
    assert "passwd" in app.warning[0].value
    assert len(app.error) == 0


def test_the_page_needs_no_package_of_the_extra_gpu(
    open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numba", "torch", "scipy", "triton"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [one for one in sys.modules if one.startswith("gpu_backend")]:
        monkeypatch.delitem(sys.modules, name)
    write(runs / "tiny.json", small_document())
    assert open_page("validation").error[0].value.startswith("Not validated")
