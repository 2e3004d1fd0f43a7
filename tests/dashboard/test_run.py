from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")

from apps.dashboard import jobs, run_exports
from apps.dashboard.places import Places
from apps.dashboard.run_source import check_source, source_of
from kvsim.report.html import write_report
from kvsim.scenario import load_scenario, run_scenario
from tests.dashboard.conftest import Open
from tests.dashboard.running import ENDLESS, ended, texts, upload, wait_for
from tests.scenario.small import SCENARIO, TRACE, write_small


@pytest.fixture
def where(data: Path) -> Any:
    """The dashboard's folders; what runs at the end is ended."""
    found = Places(data)
    yield found
    for one in jobs.every_status(found):
        jobs.cancel(found, one.job_id)


def command(app: Any) -> list[str]:
    """The words of the command line that is shown."""
    lines = [one.value for one in app.code if one.value.startswith("kvsim run")]
    assert len(lines) == 1
    return shlex.split(lines[0])


def test_the_page_starts_with_the_quickstart_as_the_scenario_says(open_page: Open) -> None:
    app = open_page("run")
    assert command(app) == ["kvsim", "run", "quickstart"]
    assert not app.error
    assert app.button(key="start").disabled is False


def test_a_form_becomes_options_and_the_run_is_that_of_the_command_line(
    open_page: Open, where: Places
) -> None:
    app = open_page(
        "run", scenario="claims/one-short-answer", sseqs="3", srequests="2", sseeds="2", sutil="0.8"
    )
    words = command(app)
    options = [word for word in words[3:] if word != "--set"]
    assert words[:3] == ["kvsim", "run", "claims/one-short-answer"]
    assert options == [
        "workload.num_requests=2",
        "seeds=[0, 1]",
        "engine.max_num_seqs=3",
        "engine.gpu_memory_utilization=0.8",
    ]
    app.button(key="start").click().run()
    job_id = app.session_state["opened"]
    assert wait_for(where, job_id, ended).state == "done"
    found = json.loads((where.made / job_id / "summary.json").read_text())
    expected = run_scenario(load_scenario(words[2], options), workers=1).summary
    assert found == json.loads(json.dumps(expected))

    app.run()
    assert not app.exception
    written = write_report(where.made / job_id)
    assert app.subheader[0].value == r"one\-short\-answer"
    assert written.sentence.split(";")[0].replace(".", r"\.") in texts(app).replace(r"\-", "-")
    binds = app.dataframe[0].value.iloc[-1]
    assert list(binds)[1:-1] == [written.binds[name] for name in written.binds]
    for view in ("Memory", "Physical map", "Block size", "Batch and queue", "Serving", "Whole run"):
        app.session_state["view"] = view
        assert not app.run().exception
    restored = open_page("run", opened=job_id)
    assert restored.selectbox(key="opened").value == job_id
    assert restored.subheader[0].value == app.subheader[0].value


def test_what_is_impossible_together_is_said_and_nothing_starts(open_page: Open) -> None:
    app = open_page("run", smodel="llama-3-70b")
    assert "leaves no memory" in texts(app) or "cannot be used" in texts(app)
    assert app.button(key="start").disabled is True
    assert "--set model=llama-3-70b" in app.code[-1].value


@pytest.mark.parametrize("key", ["opened", "traffic"])
@pytest.mark.parametrize("value", ["/etc/passwd", "../../etc", "scenario-0123456789abcdef", "%00"])
def test_an_address_that_names_nothing_here_is_said_and_ignored(
    open_page: Open, key: str, value: str
) -> None:
    app = open_page("run", **{key: value})
    assert "There is no" in app.warning[0].value
    assert command(app) == ["kvsim", "run", "quickstart"]


def test_an_uploaded_scenario_is_chosen_checked_and_run_with_its_trace(
    open_page: Open, where: Places, tmp_path: Path
) -> None:
    app = open_page("run")
    upload(app, "scenario_file", "mine.yaml", SCENARIO.encode())
    assert app.session_state["scenario"].startswith("scenario-")
    assert command(app) == ["kvsim", "run", "mine.yaml"]
    assert "reads the file 'trace\\.csv'" in texts(app)
    upload(app, "trace_file", "trace.csv", TRACE.encode())
    app.selectbox(key="traffic").set_value(None).run()
    assert not app.error
    app.button(key="start").click().run()
    job_id = app.session_state["opened"]
    assert wait_for(where, job_id, ended).state == "done"
    summary = json.loads((where.made / job_id / "summary.json").read_text())
    expected = run_scenario(load_scenario(str(write_small(tmp_path)))).summary
    assert summary["variants"] == json.loads(json.dumps(expected["variants"]))
    assert "path: trace.csv" in run_exports.scenario_text(job_id)
    page = run_exports.exports(job_id)[0].make().decode()
    assert f"kvsim run {job_id}.yaml</pre>" in page
    assert str(where.data) not in page


def test_an_uploaded_trace_replaces_the_traffic_of_a_shipped_scenario(
    open_page: Open, where: Places
) -> None:
    app = open_page("run", scenario="claims/one-short-answer")
    upload(app, "trace_file", "my trace (1).csv", TRACE.encode())
    assert command(app)[3:] == ["--set", 'workload={path: "my_trace__1_.csv"}']
    app.button(key="start").click().run()
    job_id = app.session_state["opened"]
    assert wait_for(where, job_id, ended).state == "done"
    summary = json.loads((where.made / job_id / "summary.json").read_text())
    assert summary["workload"]["source"] == "my_trace__1_.csv"
    assert summary["workload"]["rows"]["kept"] == 1


def test_an_edited_text_is_checked_at_its_line_and_kept_by_its_content(
    open_page: Open, where: Places
) -> None:
    app = open_page("run", edit="YAML", scenario="claims/one-short-answer")
    (area,) = app.text_area
    before = area.value
    area.set_value(before + "\nunknown: 1\n").run()
    app.button(key="check").click().run()
    line = len(before.splitlines()) + 2
    assert f"one\\-short\\-answer\\.yaml\\:{line}" in app.error[0].value
    assert any(f"> {line} | unknown: 1" in one.value for one in app.code)
    assert app.session_state["scenario"] == "claims/one-short-answer"

    app.text_area[0].set_value(before + "\n# mine\n").run()
    app.button(key="check").click().run()
    assert "The scenario is right" in app.success[0].value
    kept = app.session_state["scenario"]
    assert source_of(kept).text == before + "\n# mine\n"
    assert app.text_area[0].value == before + "\n# mine\n"
    app.button(key="start").click().run()
    done = wait_for(where, app.session_state["opened"], ended)
    assert done.state == "done"
    assert done.job_id.startswith("one-short-answer-")


def test_a_run_is_watched_and_cancelled_on_the_page(open_page: Open, where: Places) -> None:
    job_id = jobs.start(where, "endless", text=ENDLESS)
    wait_for(where, job_id, lambda one: one.done > 0)
    app = open_page("run", opened=job_id)
    app.button(key="cancel").click().run()
    assert not app.exception
    assert "was cancelled" in app.info[0].value
    now = jobs.status(where, job_id)
    assert now is not None
    assert now.state == "cancelled"


def test_a_failed_run_says_why(open_page: Open, where: Places) -> None:
    job_id = jobs.start(where, "![x](y)", text="version: 2\n")
    wait_for(where, job_id, ended)
    app = open_page("run", opened=job_id)
    assert "version must be 1" in app.error[0].value
    assert "![x]" not in texts(app)


def test_a_third_run_is_refused_in_its_place(open_page: Open, where: Places) -> None:
    for _ in range(jobs.MAX_RUNNING):
        jobs.start(where, "endless", text=ENDLESS)
    app = open_page("run")
    app.button(key="start").click().run()
    assert "2 runs are under way" in app.error[0].value
    assert "opened" not in app.session_state or app.session_state["opened"] is None


@pytest.mark.parametrize(
    "name", ["quickstart", "papers/sosp23-fig2", "chat-prefix-cache", "azure-conv"]
)
def test_the_form_of_every_kind_of_traffic_can_be_filled_in(open_page: Open, name: str) -> None:
    """A number of requests and a rate are no settings of the sosp23 recipe: they are left out."""
    app = open_page("run", scenario=name, srequests="5", srate="2")
    assert not app.error
    options = command(app)[4::2]
    expected = {
        "quickstart": ["workload.num_requests=5", "workload.rate_scale=2"],
        "papers/sosp23-fig2": [],
        "chat-prefix-cache": ["workload.chat.conversations=5", "workload.rate_scale=2"],
        "azure-conv": ["workload.limit=5", "workload.rate_scale=2"],
    }
    assert options == expected[name]
    loaded = check_source(source_of(name), options).scenario
    assert loaded is not None
    assert loaded.model_dump() == load_scenario(name, options).model_dump()
