from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.results import RequestsRecorder, RunFolder, StepsRecorder, read_summary
from kvsim.results.run_folder import safe_folder_name
from tests.results.fakes import FakeAllocator, plan, sequence

HOSTILE = ["../../etc", "a/b", "", ".", "con", "x" * 300, "né\n\x1b[31m", "\ud800", "A", "a", "a b"]


def summary(names: list[str]) -> dict[str, Any]:
    return {
        "scenario": "s",
        "kvsim_version": "0",
        "workload": {"source": "none", "digest": "0"},
        "variants": {name: {"steps": 1} for name in names},
    }


def write(
    target: Path, names: list[str], *, request_id: str = "r", created_at: str | None = None
) -> None:
    steps = StepsRecorder(FakeAllocator())
    steps.step(plan(num_running=2), 0, 1_500_000_000)
    requests = RequestsRecorder()
    requests.request(sequence(request_id, first=5, end=5), "finished")
    with RunFolder(target) as run:
        for name in names:
            run.write_variant(name, steps=steps.columns(), requests=requests.columns())
        run.commit(
            scenario_text="version: 1\n",
            summary=summary(names),
            versions={"kvsim": "0", "python": "3"},
            seeds=[0],
            trace_digest=None,
            created_at=created_at,
        )


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_run_folder_holds_scenario_summary_and_rows_of_each_variant(tmp_path: Path) -> None:
    write(tmp_path / "run", ["paged", "contiguous"])
    assert sorted(files(tmp_path / "run")) == [
        "files.json",
        "run.json",
        "scenario.yaml",
        "summary.json",
        "variants/contiguous/requests.parquet",
        "variants/contiguous/steps.parquet",
        "variants/paged/requests.parquet",
        "variants/paged/steps.parquet",
    ]
    steps = pq.read_table(tmp_path / "run/variants/paged/steps.parquet").to_pylist()
    assert (steps[0]["running"], steps[0]["duration_s"]) == (2, 1.5)
    requests = pq.read_table(tmp_path / "run/variants/paged/requests.parquet").to_pylist()
    assert (requests[0]["request_id"], requests[0]["reason"]) == ("r", None)
    assert read_summary(tmp_path / "run") == summary(["paged", "contiguous"])


def test_the_same_run_has_the_same_bytes_and_their_digests(tmp_path: Path) -> None:
    write(tmp_path / "one", ["paged"], created_at="2024-01-01")
    write(tmp_path / "two", ["paged"], created_at="2025-01-01")
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert one.pop("created.json") != two.pop("created.json")
    assert one == two
    digests = json.loads(one.pop("files.json"))
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in one.items()}


def test_hostile_names_stay_inside_the_folder_and_apart(tmp_path: Path) -> None:
    write(tmp_path / "run", HOSTILE, request_id="\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    folders = json.loads((tmp_path / "run/run.json").read_text())["variants"]
    assert list(folders) == HOSTILE
    on_disk = {path.name for path in (tmp_path / "run/variants").iterdir()}
    assert set(folders.values()) == on_disk
    assert len({folder.lower() for folder in on_disk}) == len(HOSTILE)
    assert list(read_summary(tmp_path / "run")["variants"]) == HOSTILE


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("contiguous-max", "contiguous-max"),
        ("block_size.16", "block_size.16"),
        ("a/b", "a_b-c14cddc0"),
        ("..", "variant--5ec1f7e7"),
        ("NUL.txt", None),
    ],
)
def test_only_unsafe_names_are_changed(name: str, folder: str | None) -> None:
    found = safe_folder_name(name, set())
    assert found == (folder or f"variant-{name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}")


def test_a_folder_made_to_collide_gets_a_name_of_its_own() -> None:
    assert safe_folder_name("a/b", {"a_b-c14cddc0"}) == "a_b-c14cddc0_"


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with pytest.raises(InputError, match=r"exists already.*--out"):
        RunFolder(target)
    target.rmdir()
    with RunFolder(target) as run:
        target.symlink_to(tmp_path / "nowhere")
        with pytest.raises(InputError, match="exists already"):
            run.commit(scenario_text="", summary={}, versions={}, seeds=[], trace_digest=None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with RunFolder(tmp_path / "run") as run:
            run.write_variant("paged", requests=RequestsRecorder().columns())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot write the run folder"),
        RunFolder(tmp_path / "file" / "run"),
    ):
        pass


GOOD = json.dumps(summary(["a"]))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not a JSON summary"),
        ("[]", "must be a JSON object, got list"),
        ("{}", "lacks scenario, kvsim_version, workload, variants"),
        (GOOD.replace('{"a": {"steps": 1}}', "[]"), "must be an object of objects"),
        (GOOD.replace('{"steps": 1}', "3"), "must be an object of objects"),
        (GOOD.replace('"steps": 1', '"steps": NaN'), "NaN is not a number"),
        (GOOD.replace('"steps": 1', '"steps": 1, "steps": 2'), "appears twice"),
        (GOOD.replace("1", "[" * 40 + "]" * 40), "at most 32 deep"),
        (GOOD.replace("1", "[" * 10**5 + "]" * 10**5), "not a JSON summary"),
        (GOOD.replace("1", "9" * 10**4), "not a JSON summary"),
        (" " * (16 * 1024 * 1024) + GOOD, "16777216 bytes"),
        (json.dumps(summary([str(n) for n in range(10_001)])), "at most 10000 variants, got 10001"),
    ],
)
def test_a_summary_that_is_none_is_refused_by_name(
    tmp_path: Path, content: str, problem: str
) -> None:
    path = tmp_path / "summary.json"
    path.write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_summary(path)
    assert str(caught.value).startswith(str(path))
    assert caught.value.fix


def test_what_is_no_summary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_summary(tmp_path / "absent")
    with pytest.raises(InputError, match="No such file"):
        read_summary(tmp_path)
    with pytest.raises(InputError, match="regular file"):
        read_summary(Path("/dev/null"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_summary(tmp_path / "bytes")


def test_a_link_inside_a_run_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(GOOD)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/summary.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="regular file"):
        read_summary(tmp_path / "run")
