from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.scenario.small import write_small

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,4,3\n0,6,5\n0,3,6\n"


@pytest.fixture
def runs(kvsim: Command, tmp_path: Path) -> tuple[str, str]:
    """Run folders of the small scenario with steps of 1 s and of 2 s."""
    path = str(write_small(tmp_path, trace=TRACE))
    folders = []
    for name, step_s in (("a", 1), ("b", 2)):
        folders.append(str(tmp_path / name))
        options = ("--set", f"clock.step_s={step_s}", "--out", folders[-1])
        assert kvsim("run", path, *options).status == 0
    return folders[0], folders[1]


def test_run_folders_are_compared_variant_by_variant(kvsim: Command, runs: tuple[str, str]) -> None:
    status, out, err = kvsim("compare", *runs, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [pair["candidate"]["variant"] for pair in found["pairs"]] == ["paged", "contiguous-max"]
    for pair in found["pairs"]:
        assert pair["settings"] == [{"path": "clock.step_s", "base": 1.0, "candidate": 2.0}]
        for side, folder in zip(("base", "candidate"), runs, strict=True):
            entry = json.loads((Path(folder) / "summary.json").read_text())["variants"]
            for figure in pair["figures"]:
                value: object = entry[pair[side]["variant"]]
                for key in figure["metric"].split("."):
                    value = value[key]  # type: ignore[index]
                assert figure[side] == value
    figures = {one["metric"]: one for one in found["pairs"][0]["figures"]}
    assert figures["ttft_s.p50"]["verdict"] == "worse"
    assert figures["memory.by_time.external"]["verdict"] == "same"


def test_a_run_compared_with_itself_shows_no_difference(
    kvsim: Command, runs: tuple[str, str]
) -> None:
    status, out, err = kvsim("compare", runs[0], runs[0])
    assert (status, err) == (0, "")
    assert "B: paged against A: paged: no difference in any figure." in out
    assert "B: paged against A: paged: no setting differs." in out
    assert "settings that differ" not in out


def test_a_single_run_is_compared_variant_by_variant(kvsim: Command, runs: tuple[str, str]) -> None:
    out = kvsim("compare", runs[0]).out
    assert "contiguous-max against paged: settings that differ" in out
    assert "memory.by_time.detail.internal.over_reservation" in out


def test_scenarios_are_run_and_files_are_read(
    kvsim: Command, tmp_path: Path, runs: tuple[str, str]
) -> None:
    summary_file = str(Path(runs[1]) / "summary.json")
    outcome = kvsim("compare", str(tmp_path / "small.yaml"), summary_file, "--json")
    assert outcome.status == 0
    found = json.loads(outcome.out)
    assert found["pairs"][0]["settings_known"] is False
    folders = json.loads(kvsim("compare", *runs, "--json").out)
    assert found["pairs"][0]["figures"] == folders["pairs"][0]["figures"]


def test_a_breached_condition_is_status_1_with_the_figures(
    kvsim: Command, runs: tuple[str, str]
) -> None:
    outcome = kvsim("compare", *runs, "--json", "--fail-if", "paged:ttft_s.max > +99%")
    assert outcome.status == 1
    assert outcome.err == (
        "kvsim: FAILED paged:ttft_s.max > +99%: B: paged against A: paged: 1 -> 2 (+1, +100 %)\n"
    )
    (check,) = json.loads(outcome.out)["checks"]
    assert (check["failed"], check["figure"]["candidate"]) == (True, 2.0)
    both = ("--fail-if", "paged:ttft_s.max > 2", "--fail-if", "steps > +0")
    outcome = kvsim("compare", *runs, *both)
    assert (outcome.status, outcome.err) == (0, "")
    assert "All checks passed." in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fail-if", "ttft_s.p99 ~ 3"), "[VARIANT:]METRIC OP THRESHOLD"),
        (("--fail-if", "throughput.goodput_rps < -5%"), "is undefined for A: paged and B: paged"),
        (("--fail-if", "nothing > 5"), "nothing is no metric"),
        (("--fail-if", "x:steps > 5"), "no variant 'x'"),
        (("--json", "--markdown"), "exclude each other"),
        (("--html", "/nowhere/page.html"), "cannot write the page"),
        (("absent.yaml",), "absent.yaml"),
        (("quickstar",), "Did you mean quickstart?"),
        (("absent.json",), "No such file"),
    ],
)
def test_bad_input_is_status_2(
    kvsim: Command, runs: tuple[str, str], arguments: tuple[str, ...], words: str
) -> None:
    outcome = kvsim("compare", *runs, *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_other_traces_need_force_and_are_flagged(
    kvsim: Command, tmp_path: Path, runs: tuple[str, str]
) -> None:
    (tmp_path / "c").mkdir()
    other = str(write_small(tmp_path / "c"))
    outcome = kvsim("compare", runs[0], other)
    assert (outcome.status, outcome.out) == (2, "")
    assert f"different requests: {runs[0]} (trace.csv, digest " in outcome.err
    assert f" and {other} (trace.csv, digest " in outcome.err
    assert "--force" in outcome.err
    forced = kvsim("compare", runs[0], other, "--force", "--json")
    assert forced.status == 0
    assert [one["what"] for one in json.loads(forced.out)["mismatches"]] == ["requests"]
    shown = kvsim("compare", runs[0], other, "--force").out
    assert shown.startswith("WARNING: Not comparable, shown because of --force")


def test_markdown_and_html_show_the_same_rows(
    kvsim: Command, tmp_path: Path, runs: tuple[str, str]
) -> None:
    page = tmp_path / "page.html"
    outcome = kvsim("compare", *runs, "--markdown", "--html", str(page))
    assert (outcome.status, outcome.err) == (0, f"page: {page}\n")
    row = "| ttft_s.max | 1 | 2 | +1 | +100 % | worse | s |"
    assert row in outcome.out
    cells = "".join(f"<td><bdi>{cell}</bdi></td>" for cell in row.strip("| ").split(" | "))
    assert f'<tr class="worse">{cells}</tr>' in page.read_text()
    for marker in ("http:", "https:", "<script", "src="):
        assert marker not in page.read_text()


def test_a_run_folder_that_was_tampered_with_is_refused(
    kvsim: Command, runs: tuple[str, str]
) -> None:
    path = Path(runs[1]) / "summary.json"
    path.write_text(path.read_text().replace('"digest": "', '"digest": 3, "old": "', 1))
    outcome = kvsim("compare", *runs)
    assert (outcome.status, outcome.out) == (2, "")
    assert "`workload` must be an object with the texts" in outcome.err
