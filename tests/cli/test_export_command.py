from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.report.export import EXPORTS
from tests.cli.conftest import Command
from tests.report.small_run import made_run, small_run


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("kind", EXPORTS)
def test_every_format_is_written_once_and_the_same_each_time(
    kvsim: Command, tmp_path: Path, kind: str
) -> None:
    small_run(tmp_path)
    run = str(tmp_path / "run")
    out = tmp_path / "out"
    for name in ("a", "b"):
        outcome = kvsim("export", run, "--format", kind, "--out", str(out / name / "x"))
        assert (outcome.status, outcome.err) == (0, "")
        assert outcome.out.startswith(f"{out / name / 'x'}")
    assert contents(out / "a") == contents(out / "b") != {}


def test_json_tells_what_was_written(kvsim: Command, tmp_path: Path) -> None:
    small_run(tmp_path, "record.mode=summary")
    out = tmp_path / "tables"
    arguments = ("export", str(tmp_path / "run"), "--format", "csv", "--out", str(out), "--json")
    outcome = kvsim(*arguments)
    assert (outcome.status, outcome.err) == (0, "")
    size = (out / "summary.csv").stat().st_size
    assert json.loads(outcome.out) == {
        "format": "csv",
        "files": [{"path": str(out / "summary.csv"), "bytes": size}],
        "notes": [
            "paged, contiguous-max: no steps.csv and requests.csv, as the run kept no rows "
            "(record.mode: summary)"
        ],
    }


def test_notes_go_to_stderr(kvsim: Command, tmp_path: Path) -> None:
    small_run(tmp_path, "record.mode=summary")
    out = str(tmp_path / "result.json")
    outcome = kvsim("export", str(tmp_path / "run"), "--format", "vllm-json", "--out", out)
    assert outcome.err.startswith("note: paged, contiguous-max: no standard deviations")


def test_variants_can_be_chosen_and_ordered(kvsim: Command, tmp_path: Path) -> None:
    small_run(tmp_path)
    chosen = ("--variant", "contiguous-max", "--variant", "paged", "--variant", "paged")
    out = tmp_path / "result.json"
    kvsim("export", str(tmp_path / "run"), "--format", "vllm-json", "--out", str(out), *chosen)
    names = [json.loads(line)["kvsim_variant"] for line in out.read_text().splitlines()]
    assert names == ["contiguous-max", "paged"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_is_there_is_kept_unless_forced(kvsim: Command, tmp_path: Path, kind: str) -> None:
    small_run(tmp_path)
    out = tmp_path / "out"
    arguments = ("export", str(tmp_path / "run"), "--format", kind, "--out", str(out))
    assert kvsim(*arguments).status == 0
    first = contents(tmp_path)
    mine = out / "summary.csv" if kind == "csv" else out
    mine.write_text("mine")
    if kind == "csv":
        (out / "notes.txt").write_text("mine too")
    refused = kvsim(*arguments)
    assert (refused.status, refused.out) == (2, "")
    assert "exists already" in refused.err
    assert "--force" in refused.err
    assert mine.read_text() == "mine"
    assert kvsim(*arguments, "--force").status == 0
    assert {k: v for k, v in contents(tmp_path).items() if k != "out/notes.txt"} == first
    assert kind != "csv" or (out / "notes.txt").read_text() == "mine too"


def _link(out: Path) -> None:
    out.symlink_to(out.parent / "elsewhere")


def _linked_folder(out: Path) -> None:
    (out.parent / "elsewhere").mkdir()
    out.mkdir()
    (out / "variants").symlink_to(out.parent / "elsewhere")


@pytest.mark.parametrize(
    ("kind", "prepare", "problem"),
    [
        ("parquet", _link, "is a link, which is not followed"),
        ("csv", _link, "is a link, which is not followed"),
        ("csv", _linked_folder, "is a link, which is not followed"),
        ("parquet", Path.mkdir, "cannot write the export: Is a directory"),
        ("csv", Path.touch, "cannot write the export: File exists"),
    ],
)
def test_force_follows_no_link_and_replaces_no_folder_by_a_file(
    kvsim: Command, tmp_path: Path, kind: str, prepare: Callable[[Path], None], problem: str
) -> None:
    small_run(tmp_path)
    out = tmp_path / "out"
    prepare(out)
    before = sorted(tmp_path.rglob("*"))
    arguments = ("export", str(tmp_path / "run"), "--format", kind, "--out", str(out), "--force")
    outcome = kvsim(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert problem in outcome.err
    assert "Traceback" not in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "problem", "fix"),
    [
        (("--format", "xml"), "--format: there is no format 'xml'", "csv, parquet, openmetrics"),
        (("--variant", "x"), "--variant: the run has no variant 'x'", "paged, contiguous-max"),
        (("--out", "run/summary.json/x"), "cannot write the export", "--out"),
    ],
)
def test_a_bad_option_ends_with_status_2_its_place_and_nothing_written(
    kvsim: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    problem: str,
    fix: str,
) -> None:
    small_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    outcome = kvsim("export", "run", "--format", "csv", "--out", "tables", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    message, way_out = outcome.err.splitlines()
    assert problem in message
    assert fix in way_out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", EXPORTS)
def test_damaged_rows_end_with_status_2_and_nothing_written(
    kvsim: Command, tmp_path: Path, kind: str
) -> None:
    made_run(tmp_path)
    (tmp_path / "made" / "variants" / "paged" / "requests.parquet").write_bytes(b"PAR1")
    before = sorted(tmp_path.rglob("*"))
    out = str(tmp_path / "out")
    outcome = kvsim("export", str(tmp_path / "made"), "--format", kind, "--out", out)
    if kind == "parquet":  # reads the summary alone
        assert outcome.status == 0
        return
    assert (outcome.status, outcome.out) == (2, "")
    assert "requests.parquet: not a readable Parquet file" in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_run_folder_is_refused(kvsim: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for path in (tmp_path, tmp_path / "missing"):
        outcome = kvsim("export", str(path), "--format", "csv", "--out", out)
        assert (outcome.status, outcome.out) == (2, "")
        assert "kvsim run --out" in outcome.err
