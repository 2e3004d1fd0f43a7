from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")

from apps.dashboard import jobs
from apps.dashboard.places import Places, run_folders
from kvsim.scenario import load_scenario, run_scenario
from tests.dashboard.conftest import Open
from tests.dashboard.running import ENDLESS, ended, places_for, start_small, texts, wait_for
from tests.scenario.small import write_small


def test_a_run_is_deleted_after_a_second_button_and_the_page_lives_on(
    open_page: Open, tmp_path: Path
) -> None:
    with places_for(tmp_path) as where:
        job_id = start_small(where, tmp_path)
        wait_for(where, job_id, ended)
        app = open_page("run", opened=job_id)
        app.button(key="delete_run").click().run()
        assert not app.exception
        assert not app.error
        assert list(run_folders(where)) == []
        assert app.selectbox(key="opened").value is None
        assert not [one for one in app.button if one.key == "delete_run"]


def test_a_run_that_is_under_way_is_cancelled_first(open_page: Open, tmp_path: Path) -> None:
    with places_for(tmp_path) as where:
        job_id = jobs.start(where, "endless", text=ENDLESS)
        wait_for(where, job_id, lambda one: one.done > 0)
        app = open_page("run", opened=job_id)
        assert not [one for one in app.button if one.key == "delete_run"]
        jobs.cancel(where, job_id)
        app.run()
        app.button(key="delete_run").click().run()
        assert not app.exception
        assert jobs.every_status(where) == []


def test_a_run_of_the_users_own_folder_is_not_offered_to_be_deleted(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "given"
    run_scenario(load_scenario(str(write_small(tmp_path))), out=folder)
    monkeypatch.setenv("KVSIM_DASHBOARD_RUNS", str(folder))
    with places_for(tmp_path) as where:
        (run_id,) = run_folders(Places(where.data, (folder,)))
    app = open_page("run", opened=run_id)
    assert app.selectbox(key="opened").value == run_id
    assert not [one for one in app.button if one.key == "delete_run"]


def test_what_a_run_noted_stands_above_its_report(open_page: Open, tmp_path: Path) -> None:
    with places_for(tmp_path) as where:
        text = ENDLESS.replace("20000", "2").replace("tokens: 2000", "tokens: 20")
        job_id = jobs.start(where, "small", text=text + "seeds: [0, 1]\n")
        notes = wait_for(where, job_id, ended).notes
        assert notes == ("seeds make no difference: the workload has nothing random",)
        app = open_page("run", opened=job_id)
        assert notes[0] in texts(app).replace("\\", "")
