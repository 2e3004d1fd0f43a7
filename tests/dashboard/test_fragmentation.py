"""The page Fragmentation on two small runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.cli import build_app
from kvsim.report.moments import map_totals
from tests.dashboard.conftest import Open
from tests.report.reports import small_run

FIRST, SECOND = "first-run", "second-run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of 80 requests and one of 60, each of a paged and two contiguous memories."""
    folders = {name: tmp_path_factory.mktemp(name) for name in (FIRST, SECOND)}
    return {
        name: small_run(folder, requests=80 if name == FIRST else 60)
        for name, folder in folders.items()
    }


@pytest.fixture
def runs(made: dict[str, Path], data: Path) -> Path:
    """The dashboard's folder of runs, with copies of both."""
    for name, path in made.items():
        shutil.copytree(path, data / "runs" / name)
    return data / "runs"


def variant_of(runs: Path, run: str, variant: str) -> dict[str, Any]:
    summary = json.loads((runs / run / "summary.json").read_text())
    entry: dict[str, Any] = summary["variants"][variant]
    return entry


def snapshots_of(runs: Path, run: str, variant: str) -> dict[str, Any]:
    path = runs / run / "variants" / variant / "snapshots.json"
    snapshots: dict[str, Any] = json.loads(path.read_text())
    return snapshots


def table_with(app: Any, column: str) -> Any:
    """The one table of the page that has this column."""
    (found,) = (one.value for one in app.dataframe if column in one.value.columns)
    return found


def downloads(app: Any) -> set[str]:
    return {one.label for one in app.get("download_button")}


def uses(app: Any) -> dict[str, int]:
    table = table_with(app, "use")
    return dict(zip(table["use"], table["slots"], strict=True))


def test_the_terms_are_those_of_the_summary_in_percent_and_slots(
    open_page: Open, runs: Path
) -> None:
    app = open_page("fragmentation", run=FIRST)
    table = table_with(app, "% of the capacity · slots")
    assert list(table.columns[1:]) == ["paged", "contiguous-max", "contiguous-pow2"]
    rows = [name.strip() for name in table["% of the capacity · slots"]]
    for variant in table.columns[1:]:
        memory = variant_of(runs, FIRST, variant)["memory"]
        by_time, capacity = memory["by_time"], memory["capacity_slots"]
        shown = dict(zip(rows, table[variant], strict=True))
        for name, share in (
            ("live", by_time["live"]),
            ("external", by_time["external"]),
            ("usable free", by_time["usable_free"]),
            ("internal: roundup", by_time["detail"]["internal"]["roundup"]),
            ("reservation: ahead", by_time["detail"]["reservation"]["ahead"]),
        ):
            assert shown[name] == f"{100 * share:.2f} % · {share * capacity:,.1f}"
        assert shown["capacity (slots)"] == f"{capacity:,}"


def test_without_a_link_the_newest_run_is_shown_with_all_its_variants(
    open_page: Open, runs: Path
) -> None:
    newest = max(runs.iterdir(), key=lambda run: (run / "run.json").stat().st_mtime).name
    app = open_page("fragmentation")
    assert app.multiselect(key="run").value == [newest]
    assert len(app.multiselect(key="shown").value) == 3
    assert not app.warning


def test_a_link_restores_runs_variants_pair_map_moment_and_request(
    open_page: Open, runs: Path
) -> None:
    paged, pow2 = f"{FIRST} · paged", f"{SECOND} · contiguous-pow2"
    snapshots = snapshots_of(runs, SECOND, "contiguous-pow2")
    place = next(
        place for place, one in enumerate(snapshots["snapshots"]) if len(one["requests"]) > 1
    )
    app = open_page(
        "fragmentation",
        run=[FIRST, SECOND],
        shown=[paged, pow2],
        base=pow2,
        other=paged,
        map=pow2,
        moment=str(place + 1),
        holder="#2",
    )
    assert app.multiselect(key="run").value == [FIRST, SECOND]
    assert app.multiselect(key="shown").value == [paged, pow2]
    assert (app.selectbox(key="base").value, app.selectbox(key="other").value) == (pow2, paged)
    assert app.slider(key="moment").value == place + 1
    wanted = map_totals(snapshots, place)
    shown = uses(app)
    assert shown.pop("capacity") == snapshots["capacity_slots"]
    assert sorted(shown.values()) == sorted(count for count in wanted.values() if count)
    assert not [one for one in app.warning if "holds memory" in one.value]
    assert len(table_with(app, "request")) == len(snapshots["snapshots"][place]["requests"])


def test_differences_are_those_of_the_command_line_and_other_requests_are_said_to_be_others(
    open_page: Open, runs: Path
) -> None:
    from typer.testing import CliRunner

    labels = [f"{name} · paged" for name in (FIRST, SECOND)]
    app = open_page(
        "fragmentation", run=[FIRST, SECOND], shown=labels, base=labels[0], other=labels[1]
    )
    words = ["compare", str(runs / FIRST), str(runs / SECOND), "--force", "--json"]
    pairs = json.loads(CliRunner().invoke(build_app(), words).stdout)["pairs"]
    wanted = next(pair for pair in pairs if pair["base"]["variant"] == "paged")
    table = table_with(app, "difference").set_index("figure")
    for figure in wanted["figures"]:
        if figure["metric"] in ("memory.by_time.live", "preemptions", "ttft_s.p99"):
            shown = table.loc[figure["metric"]]
            assert shown["verdict"] == figure["verdict"]
            assert float(shown["difference"]) == pytest.approx(figure["difference"], rel=1e-5)
    assert any("Not comparable" in one.value for one in app.warning)
    assert {"Differences (CSV)", "Differences (HTML)"} <= downloads(app)


def test_moving_the_slider_and_clicking_an_event_move_the_map(open_page: Open, runs: Path) -> None:
    snapshots = snapshots_of(runs, FIRST, "paged")
    places = [
        place for place, one in enumerate(snapshots["snapshots"]) if one["why"] == "preemption"
    ]
    assert places
    app = open_page("fragmentation", run=FIRST, map=f"{FIRST} · paged", moment="no moment")
    app.session_state["moment"] = places[-1] + 1  # what a click on the event sets
    app.run()
    assert not app.exception
    assert app.slider(key="moment").value == places[-1] + 1
    wanted = map_totals(snapshots, places[-1])
    assert uses(app)["live"] == wanted["live"]
    events = table_with(app, "event")
    assert list(events["event"]) == [one["why"] for one in snapshots["snapshots"]]
    assert events["preempted"][places[-1]] > 0
    count = variant_of(runs, FIRST, "paged")["preemptions"]
    assert any(f"preempted {count:,} requests" in one.value for one in app.caption)


def test_a_click_on_an_event_names_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    streamlit = pytest.importorskip("streamlit")
    from apps.dashboard.fragmentation_map import go_to_event

    for rows, wanted in (([1], 2), ([], 7), ([5], 7)):
        state: dict[str, Any] = {
            "events": SimpleNamespace(selection=SimpleNamespace(rows=rows)),
            "moment": 7,
        }
        monkeypatch.setattr(streamlit, "session_state", state)
        go_to_event("events", 2)
        assert state["moment"] == wanted


def test_a_run_that_is_not_there_is_named_and_the_page_lives_on(
    open_page: Open, runs: Path
) -> None:
    app = open_page("fragmentation", run=[FIRST, "![](http://evil)/../x"])
    (warning,) = (one.value for one in app.warning)
    assert "is not here" in warning
    assert "![](" not in warning
    assert app.multiselect(key="run").value == [FIRST]
    nobody = open_page("fragmentation", run="../../etc")
    assert nobody.multiselect(key="run").value == []
    assert any("Choose a run" in one.value for one in nobody.info)


def test_without_any_run_the_page_says_where_runs_come_from(open_page: Open) -> None:
    app = open_page("fragmentation")
    assert any("Runs are made on the page Run" in one.value for one in app.info)


def test_a_request_that_holds_nothing_at_the_moment_is_said_to(open_page: Open, runs: Path) -> None:
    app = open_page("fragmentation", run=FIRST, holder="[nobody](x)")
    (warning,) = (one.value for one in app.warning)
    assert "holds memory at this moment" in warning
    assert "[nobody](x)" not in warning


@pytest.mark.parametrize("name", ["snapshots.json", "steps.parquet"])
def test_a_corrupt_file_costs_its_section_only_and_shows_no_folder_of_the_server(
    name: str, open_page: Open, runs: Path
) -> None:
    (runs / FIRST / "variants" / "paged" / name).write_bytes(b"{ ruined")
    app = open_page("fragmentation", run=FIRST, map=f"{FIRST} · paged")
    (error,) = (one.value for one in app.error)
    assert name.split(".")[0] in error
    assert str(runs) not in error.replace("\\", "")
    assert len(table_with(app, "% of the capacity · slots").columns) == 4
    assert {"Terms (CSV)", "Differences (CSV)"} <= downloads(app)


def test_the_same_side_twice_is_a_message(open_page: Open, runs: Path) -> None:
    label = f"{FIRST} · paged"
    app = open_page("fragmentation", run=FIRST, base=label, other=label)
    assert any("choose two" in one.value for one in app.info)
    assert "Differences (CSV)" not in downloads(app)
