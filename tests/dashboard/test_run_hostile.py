from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")

from apps.dashboard import jobs, run_exports, trace_check, uploads
from apps.dashboard.places import Places
from apps.dashboard.run_source import traffic_of
from kvsim.errors import InputError
from kvsim.scenario import load_scenario
from tests.dashboard.conftest import Open
from tests.dashboard.running import ENDLESS, ended, texts, upload, wait_for
from tests.scenario.small import SCENARIO, TRACE

HOSTILE_SCENARIOS = {
    "a published trace that is a path": (
        SCENARIO.replace("{path: trace.csv}", "{trace: /etc/passwd}"),
        8,
        "is no known trace",
    ),
    "a path outside": (
        SCENARIO.replace("trace.csv", "/etc/passwd"),
        8,
        "leads out of the scenario's folder",
    ),
    "a path outside with a digest": (
        SCENARIO.replace("trace.csv", "/etc/passwd, sha256: " + "0" * 64),
        8,
        "leads out of the scenario's folder",
    ),
    "lengths from outside": (
        SCENARIO.replace(
            "{path: trace.csv}",
            "{lengths: {path: ../about.json}, arrivals: {kind: all_at_once}, num_requests: 1}",
        ),
        8,
        "leads out of the scenario's folder",
    ),
    "a clock from outside": (
        SCENARIO.replace("kind: fixed, step_s: 1.0", "kind: profile, path: /etc/passwd"),
        7,
        "leads out of the scenario's folder",
    ),
    "a model that is a path": (
        SCENARIO.replace("profile: plain", "profile: plain\nmodel: /etc/passwd"),
        13,
        "is not in the catalogue",
    ),
    "an alias bomb": (
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{n}: &{n} [{', '.join([f'*{m}'] * 9)}]\n"
            for m, n in zip("abcdefg", "bcdefgh", strict=True)
        ),
        None,
        "aliases",
    ),
    "deep nesting": ("a: " + "[" * 50_000, 1, "levels of nesting"),
    "no YAML": ("a: [1,\nb: }", 2, "is not valid YAML"),
    "markup": (
        SCENARIO + "description: '![x](http://evil.example/x.png)</script>'\nname: '</script>'\n",
        14,
        "must be 1 to 80 letters",
    ),
    "too many requests": (
        ENDLESS.replace("20000", "100000000"),
        None,
        "asks for 100,000,000 requests",
    ),
}


@pytest.mark.parametrize("name", HOSTILE_SCENARIOS)
def test_a_hostile_scenario_is_refused_at_its_line_and_the_page_lives_on(
    open_page: Open, data: Path, name: str
) -> None:
    text, line, problem = HOSTILE_SCENARIOS[name]
    app = upload(open_page("run"), "scenario_file", "evil.yaml", text.encode())
    said = "".join(one.value for one in app.error).replace("\\", "")
    assert problem in said
    assert "root:" not in said
    assert str(data) not in said
    assert "/tmp" not in said
    assert app.button(key="start").disabled is True
    if line is not None:
        assert f"evil.yaml:{line}" in said
        assert any(f"> {line}" in one.value.replace(">  ", "> ") for one in app.code)
    app.selectbox(key="scenario").set_value("quickstart").run()
    assert not app.error


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"#" * (2 << 20), "the limit is 1,048,576"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_scenario_that_is_no_text_of_a_fair_size_is_refused(
    open_page: Open, content: bytes, problem: str
) -> None:
    app = upload(open_page("run"), "scenario_file", "evil.yaml", content)
    assert problem in texts(app).replace("\\", "")


def test_what_a_scenario_says_of_itself_is_shown_as_it_is(open_page: Open) -> None:
    picture = "![x](http://evil.example/x.png) <script>alert(1)</script> $x$ :red[y]"
    text = f"{SCENARIO}description: '{picture}'\n"
    app = upload(open_page("run"), "scenario_file", "![x](http:).yaml", text.encode())
    shown = texts(app)
    joined = "\N{WORD JOINER}"
    assert rf"\!\[x\]\(http\://{joined}evil\.example/x\.png\) \<script\>" in shown
    assert "![x]" not in shown
    assert ":red[" not in shown


def test_the_names_of_requests_act_nowhere(open_page: Open, data: Path, tmp_path: Path) -> None:
    names = ["</script><script>alert(1)</script>", "![x](http://evil.example/x.png)", "=1+1"]
    rows = "".join(f"0,4,3,{name}\n" for name in names)
    where = Places(data)
    trace = tmp_path / "up"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,request_id\n" + rows)
    job_id = jobs.start(where, "names", text=SCENARIO, files={"trace.csv": trace})
    assert wait_for(where, job_id, ended).state == "done"
    app = open_page("run", opened=job_id, view="Physical map")
    assert "evil.example" not in texts(app)
    assert any(names[1] in one.value.to_string() for one in app.dataframe)
    made = {one.label: one.make() for one in run_exports.exports(job_id)}
    page = made["Report (HTML)"].decode()
    assert names[0] not in page
    assert "<img" not in page
    with zipfile.ZipFile(io.BytesIO(made["Tables (CSV, zip)"])) as archive:
        table = archive.read("variants/paged/requests.csv").decode()
    assert "'=1+1" in table
    assert json.loads(made["Summary (JSON)"])["scenario"] == "names"
    assert made["Summary (Parquet)"][:4] == b"PAR1"
    assert load_scenario(str(_beside(tmp_path, made["Scenario (YAML)"]))).name == "names"


def _beside(folder: Path, text: bytes) -> Path:
    path = folder / "again.yaml"
    path.write_bytes(text)
    return path


ROW = b"0,4,3\n"
HEADER = TRACE.encode().splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(HEADER + b"0" * (3 << 20)), "the line is longer than 1,048,576 bytes"),
        (
            gzip.compress(b"pad," + HEADER + (b"x" * 1000 + b"," + ROW) * 5_000),
            "holds more than 4,000,000 bytes after",
        ),
        (gzip.compress(HEADER + ROW * 40_000), "more than 30,000 rows"),
        (gzip.compress(HEADER + b"\n" * 20_000), "more than 10,000 blank lines in a row"),
        (HEADER + b"0,-4,3\n", "is not an integer >= 0"),
        (b"PK\x03\x04" + b"0" * 100, "is a zip archive"),
        (b"root:x:0:0\n", "does not name distinct columns"),
        (b"PAR1" + b"\0" * 100, "Parquet"),
    ],
    ids=["long line", "bomb", "rows", "blank", "bad row", "zip", "no trace", "no Parquet"],
)
def test_a_hostile_trace_is_refused_with_the_reason(
    open_page: Open, data: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    monkeypatch.setattr(uploads, "MAX_TRACE_ROWS", 30_000)
    monkeypatch.setattr(uploads, "MAX_TRACE_BYTES", 4_000_000)
    app = upload(open_page("run"), "trace_file", "evil.csv", content)
    said = "".join(one.value for one in app.error).replace("\\", "")
    assert problem in said
    assert said.startswith("**evil.csv")
    assert str(data) not in said
    app.selectbox(key="traffic").set_value(None).run()
    assert not app.error


def test_bad_rows_are_dropped_where_the_box_says_so(data: Path) -> None:
    kept = uploads.keep(data / "uploads", "trace", "t.csv", HEADER + b"0,-4,3\n" + ROW)
    traffic = traffic_of(kept.upload_id, drop_bad_rows=True)
    assert traffic.override == 'workload={path: "t.csv", on_bad_row: drop}'
    assert traffic.facts is not None
    assert (traffic.facts.kept, sum(traffic.facts.dropped.values())) == (1, 1)


def test_a_trace_that_would_take_the_machines_memory_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_check, "MAX_CHECK_S", 0.01)
    kept = uploads.keep(data / "uploads", "trace", "t.csv", HEADER + ROW)
    with pytest.raises(InputError, match=r"t\.csv: takes more memory or time"):
        trace_check.check_trace(kept)
