"""What an upload may take from the server, and under which names it is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")

from apps.dashboard import jobs, trace_check, trace_source, uploads
from apps.dashboard.places import Places
from apps.dashboard.run_source import Source, check_source, files_beside
from kvsim.errors import InputError
from tests.dashboard.conftest import Open
from tests.dashboard.running import ended, wait_for
from tests.dashboard.test_traces import mooncake, texts
from tests.gpu_backend_validate.server import SCENARIO as PROFILED
from tests.gpu_backend_validate.server import profile
from tests.scenario.small import SCENARIO, TRACE

LENGTHS = b"prompt_tokens,output_tokens\n5,6\n9,8\n"
CLOCK = "clock: {kind: profile, path: my profile.json}"
ON_PROFILE = PROFILED.replace("clock: {kind: fixed, step_s: 0.01}", CLOCK)


def keep(data: Path, content: bytes, name: str, kind: str = "trace") -> uploads.Upload:
    return uploads.keep(data / "uploads", kind, name, content)


@pytest.mark.parametrize("kind", ["auto", "lengths"])
def test_lengths_too_are_read_within_limits_before_the_server_reads_them(
    open_page: Open, data: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(trace_check, "MAX_CHECK_S", 0.01)
    upload_id = keep(data, LENGTHS, "l.csv").upload_id
    app = open_page("traces", **{"from": "upload", "upload": upload_id, "format": kind})
    assert "l.csv: takes more memory or time to read" in texts(app).replace("*", "")


def test_the_check_tells_kind_rows_and_pieces(data: Path) -> None:
    traced = trace_check.check_trace(keep(data, mooncake(), "m.jsonl"))
    assert traced == trace_check.TraceFacts("mooncake", 4, {}, pieces=8)
    upload = keep(data, LENGTHS + b"0,4\n", "l.csv")
    found = trace_check.check_trace(upload, lengths=True)
    assert found == trace_check.TraceFacts("lengths", 2, {"zero_prompt": 1}, pieces=0)
    with pytest.raises(InputError, match="no arrivals"):
        trace_check.check_trace(upload)


def test_more_pieces_than_the_server_holds_are_refused_with_their_number(
    open_page: Open, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = {"from": "upload", "upload": keep(data, mooncake(), "m.jsonl").upload_id}
    monkeypatch.setattr(trace_source, "MAX_PIECES", 8)
    assert not open_page("traces", **link).error
    monkeypatch.setattr(trace_source, "MAX_PIECES", 7)
    changed = {"upload": keep(data, mooncake() + b"\n", "m2.jsonl").upload_id}
    assert "has 8 chunk ids, forks and beam parents" in texts(open_page("traces", **link | changed))


def test_a_trace_shows_the_newest_of_its_names(open_page: Open, data: Path) -> None:
    for name in ("first.csv", "second.csv"):
        upload = keep(data, LENGTHS, name)
        app = open_page("traces", **{"from": "upload", "upload": upload.upload_id})
        (scenario,) = (one.value for one in app.code if one.language == "yaml")
        assert f"path: {name}" in scenario


def test_a_scenario_finds_its_trace_under_each_of_its_names(data: Path) -> None:
    keep(data, TRACE.encode(), "trace.csv")
    upload = keep(data, TRACE.encode(), "later.csv")
    assert (upload.name, upload.names) == ("later.csv", ("later.csv", "trace.csv"))
    for name in ("trace.csv", "later.csv"):
        text = SCENARIO.replace("trace.csv", name)
        scenario = check_source(Source("small", text, shipped=False)).scenario
        assert scenario is not None
        assert files_beside(scenario, None) == {name: upload.path}


def test_names_of_an_upload_are_kept_up_to_a_limit(data: Path) -> None:
    kept = [keep(data, LENGTHS, f"{n}.csv") for n in range(uploads.MAX_NAMES + 1)][-1]
    assert len(kept.names) == uploads.MAX_NAMES
    assert kept.names[0] == f"{uploads.MAX_NAMES}.csv"


def test_a_scenario_on_an_uploaded_profile_runs(data: Path) -> None:
    upload = keep(data, json.dumps(profile().document).encode(), "my profile.json", "profile")
    checked = check_source(Source("small", ON_PROFILE, shipped=False))
    assert checked.problem is None
    assert checked.scenario is not None
    files = files_beside(checked.scenario, None)
    assert files == {"my profile.json": upload.path}
    where = Places(data, max_run_s=100.0)
    job = jobs.start(where, "small", text=ON_PROFILE, files=files)
    assert wait_for(where, job, ended).state == "done"


@pytest.mark.parametrize("place", ["my profile.json", "sub/my profile.json"])
def test_a_profile_that_nobody_uploaded_is_named(data: Path, place: str) -> None:
    text = ON_PROFILE.replace("my profile.json", place)
    problem = check_source(Source("small", text, shipped=False)).problem
    assert problem is not None
    assert f"reads the profile '{place}', which is not among the uploaded" in problem.problem
    assert "/tmp" not in str(problem)


LAW = "{lengths: {path: sub/trace.csv}, arrivals: {kind: all_at_once}, num_requests: 1}"


@pytest.mark.parametrize("workload", ["{path: sub/trace.csv}", "{path: small.yaml}", LAW])
def test_a_trace_in_a_folder_is_refused_by_the_check(data: Path, workload: str) -> None:
    keep(data, TRACE.encode(), "trace.csv")
    text = SCENARIO.replace("{path: trace.csv}", workload)
    problem = check_source(Source("small", text, shipped=False)).problem
    assert problem is not None
    assert "must be the name of an uploaded file, without a folder" in problem.problem


def test_many_groups_of_long_outputs_are_fewer_and_the_page_says_so(open_page: Open) -> None:
    link = {"part": "sharing", "share": "beams", "width": "2", "bsize": "256", "groups": "30"}
    app = open_page("lab", **link, otokens="256", ptokens="16")
    # 20,480 / (256 output tokens * 8 beams) = 10
    assert "10 of the 30 groups are simulated" in texts(app)
    assert "groups are simulated" not in texts(open_page("lab", **link, otokens="80"))
