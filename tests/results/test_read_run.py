from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.results import read_rows as reader
from kvsim.results.read_run import read_run
from kvsim.results.rows import REQUEST_COLUMNS, STEP_COLUMNS
from tests.report.small_run import made_run, request, small_run, step


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    assert run.summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert run.scenario_text == (tmp_path / "run" / "scenario.yaml").read_text()
    assert run.seeds == (0,)
    assert list(run.folders) == ["paged", "contiguous-max"]
    assert run.keeps_rows("paged")
    (replica,) = run.replicas("paged")
    assert replica.seed == 0
    assert replica.steps.column_names == list(STEP_COLUMNS)
    assert replica.steps.column("time_s").to_pylist() == [0.0, 1.0, 2.0]
    assert replica.steps.column("decode_tokens").to_pylist() == [0, 1, 1]
    assert replica.requests.column_names == list(REQUEST_COLUMNS)
    rows = {row["request_id"]: row for row in replica.requests.to_pylist()}
    assert (rows["r1"]["queue_s"], rows["r1"]["first_token_s"]) == (0.5, 2.0)
    assert (rows["r2"]["outcome"], rows["r2"]["finish_s"]) == ("rejected", None)


def test_every_seed_has_its_own_rows(tmp_path: Path) -> None:
    run = small_run(
        tmp_path,
        "seeds=[3, 5]",
        "workload={arrivals: {kind: poisson, rate_rps: 1}, num_requests: 4, lengths: "
        "{prompt: {kind: constant, tokens: 4}, output: {kind: constant, tokens: 2}}}",
    )
    replicas = run.replicas("contiguous-max")
    assert [replica.seed for replica in replicas] == [3, 5]
    assert replicas[0].requests.column("arrival_s") != replicas[1].requests.column("arrival_s")


def test_a_run_without_rows_has_no_tables(tmp_path: Path) -> None:
    run = small_run(tmp_path, "record.mode=summary")
    assert not run.keeps_rows("paged")
    assert run.replicas("paged")[0][2:] == (None, None)


def test_a_variant_the_run_has_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no variant 'x'.*paged, contiguous-max"):
        small_run(tmp_path).replicas("x")


def _replace(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def _edit_run(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def _link(folder: Path) -> None:
    (folder / "scenario.yaml").unlink()
    (folder / "scenario.yaml").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "run.json").unlink(), "No such file"),
        (lambda folder: (folder / "scenario.yaml").unlink(), "No such file"),
        (_link, "regular file"),
        (_replace("run.json", "{"), "not JSON"),
        (_replace("run.json", "[" * 100_000), "not JSON"),
        (_replace("run.json", "[]"), "a JSON object"),
        (_replace("run.json", " " * (4 << 20) + "{}"), "at most"),
        (lambda folder: (folder / "run.json").write_bytes(b"\xff"), "UTF-8"),
        (_edit_run(variants={"paged": "paged"}), "every variant"),
        (_edit_run(variants={"paged": "../..", "contiguous-max": "a"}), "a plain name"),
        (_edit_run(variants={"paged": "..", "contiguous-max": "a"}), "a plain name"),
        (_edit_run(variants={"paged": "a/b", "contiguous-max": "a"}), "a plain name"),
        (_edit_run(variants={"paged": "a\n", "contiguous-max": "a"}), "a plain name"),
        (_edit_run(variants={"paged": 3, "contiguous-max": "a"}), "a plain name"),
        (_edit_run(seeds=[]), "`seeds`"),
        (_edit_run(seeds=[True]), "`seeds`"),
        (_edit_run(seeds=["../x", "y"]), "`seeds`"),
        (_replace("summary.json", '{"variants": {"a": {"x": 1e999}}}'), "too large a number"),
        (_replace("summary.json", f'{{"variants": {10**400}}}'), "too large a number"),
    ],
)
def test_a_damaged_folder_is_refused_with_its_place(
    tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    small_run(tmp_path)
    damage(tmp_path / "run")
    with pytest.raises(InputError, match=problem) as caught:
        read_run(tmp_path / "run")
    assert str(tmp_path) in str(caught.value.where)
    assert caught.value.fix


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    small_run(tmp_path)
    with pytest.raises(InputError, match="not a run folder"):
        read_run(tmp_path / "run" / "summary.json")


def _steps(**changes: Any) -> pa.Table:
    row = step(time_s=1.0) | changes
    return pa.table({name: [value] for name, value in row.items()})


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (_steps().drop_columns(["waiting"]), "columns waiting are missing"),
        (_steps(running="1"), "must hold numbers, got string"),
        (_steps(running=None), "must have a value in every row|must hold numbers"),
        (_steps(duration_s=-1.0), "column duration_s must hold numbers from 0"),
        (_steps(time_s=1e10), "from 0 to 9e"),
        (_steps(time_s=float("inf")), "finite"),
        (pa.concat_tables([_steps(time_s=2.0), _steps()]), "in the order of time_s"),
    ],
)
def test_steps_that_no_run_writes_are_refused(
    tmp_path: Path, table: pa.Table, problem: str
) -> None:
    pq.write_table(table, tmp_path / "steps.parquet")
    with pytest.raises(InputError, match=problem):
        reader.read_rows(tmp_path / "steps.parquet", STEP_COLUMNS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"outcome": "lost"}, "column outcome must be one of finished"),
        ({"finish_s": None}, "a finished request must have all its times"),
        ({"first_token_s": 4.0}, "in this order"),
        ({"queue_s": 1.5}, "in this order"),
        ({"request_id": 3}, "column request_id must hold text, got int64"),
        ({"held_up_by_fragmentation": 1}, "true or false"),
        ({"request_id": "x" * 100_001}, "a text in column request_id may have 100000 bytes"),
    ],
)
def test_requests_that_no_run_writes_are_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    row = request() | {"reason": "x"} | changes
    kinds = {"finish_s": pa.float64()}
    table = pa.table({name: pa.array([row[name]], kinds.get(name)) for name in row})
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(InputError, match=problem):
        reader.read_rows(tmp_path / "r.parquet", REQUEST_COLUMNS)


def test_a_long_text_repeated_by_a_dictionary_is_refused_before_it_is_spread_out(
    tmp_path: Path,
) -> None:
    """11 kB in the file stand for 2 GB in memory."""
    row = request(reason="x") | {"request_id": "x" * 100_000}
    table = pa.table({name: pa.repeat(value, 20_000) for name, value in row.items()})
    pq.write_table(table, tmp_path / "r.parquet", compression="zstd")
    with pytest.raises(InputError, match="column request_id may have 1073741824 bytes of text"):
        reader.read_rows(tmp_path / "r.parquet", REQUEST_COLUMNS)


def test_more_rows_than_the_limit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path, requests=[request("a"), request("b")])
    monkeypatch.setattr(reader, "MAX_ROWS", 1)
    with pytest.raises(InputError, match="at most 1 rows, got 2"):
        run.replicas("paged")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"version https://git-lfs", b"PAR1" * 1000])
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.parquet").write_bytes(content)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        reader.read_rows(tmp_path / "r.parquet", REQUEST_COLUMNS)


def test_a_link_to_rows_is_not_followed(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    path = tmp_path / "made" / "variants" / "paged" / "steps.parquet"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="regular file"):
        run.replicas("paged")
