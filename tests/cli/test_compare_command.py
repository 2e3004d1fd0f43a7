from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.scenario.small import SCENARIO, write_small

TRACES = {
    "azure-conv-2023": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,40,4\n2023-11-16 18:15:50.9951690,30,9\n",
    "sharegpt-opt-lengths": "prompt_tokens,output_tokens\n" + "9,5\n" * 40,
}
NAMED_TRACES = [
    "{trace: azure-conv-2023, fallback: {preset: azure-conv-2023, num_requests: 9}}",
    "{sosp23: {trace: sharegpt-opt-lengths, rate_rps: 2, duration_s: 3},"
    " fallback: {preset: sharegpt}}",
]
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


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("workload", NAMED_TRACES)
def test_a_run_and_the_file_it_came_from_differ_in_no_setting(
    kvsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, there: bool
) -> None:
    """Whether the trace was there, or its fallback was used."""
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    if there:
        for name, content in TRACES.items():
            (tmp_path / f"{name}.csv").write_text(content)
        # The published files are too large to hold here, and their digests are checked.
        module = importlib.import_module("kvsim.scenario.build_workload")
        monkeypatch.setattr(module, "find_trace", lambda name: tmp_path / f"{name}.csv")
    text = SCENARIO.replace("{path: trace.csv}", workload).replace(
        "max_model_len: 16", "max_model_len: 8192"
    )
    path, folder = str(write_small(tmp_path, text)), str(tmp_path / "run")
    assert ("was used instead" in kvsim("run", path, "--out", folder).err) is not there
    for runs in ((folder, path), (path, folder)):
        found = json.loads(kvsim("compare", *runs, "--json").out)
        assert [pair["settings"] for pair in found["pairs"]] == [[], []]
        assert {one["verdict"] for pair in found["pairs"] for one in pair["figures"]} == {"same"}


def test_a_variant_that_only_one_run_has_does_not_slip_through_a_condition(
    kvsim: Command, tmp_path: Path, runs: tuple[str, str]
) -> None:
    renamed = tmp_path / "renamed.yaml"
    text = (tmp_path / "small.yaml").read_text().replace("contiguous-max:", "contiguous:")
    renamed.write_text(text)
    outcome = kvsim("compare", runs[0], str(renamed), "--fail-if", "steps > +0")
    assert (outcome.status, outcome.out) == (2, "")
    assert "only one run has them: A: contiguous-max, B: contiguous" in outcome.err
    assert "'paged:steps > +0'" in outcome.err
    scoped = kvsim("compare", runs[0], str(renamed), "--fail-if", "paged:steps > +0")
    assert scoped.status == 0
    assert "Not compared, because only one run has them" in scoped.out
