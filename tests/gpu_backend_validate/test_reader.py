from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpu_backend.validate.figures import step_error_figure
from gpu_backend.validate.page import validation_page
from gpu_backend.validate.reader import MAX_BYTES, read_validation
from gpu_backend.validate.tables import checks_csv, checks_parquet, free_rows
from kvsim.errors import InputError
from tests.gpu_backend_validate.test_page import small_document

Change = Callable[[dict[str, Any]], object]


def written(folder: Path, document: object) -> Path:
    path = folder / "result.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


def test_a_document_that_was_read_back_makes_the_same_page(tmp_path: Path) -> None:
    document = small_document()
    found = read_validation(written(tmp_path, document))
    assert validation_page(found) == validation_page(document)


CHANGES: dict[str, Change] = {
    "format": lambda d: d.update(format="kvsim-validation-2"),
    "no variants": lambda d: d.update(variants={}),
    "text for a number": lambda d: d["checks"][0].update(value="0.1"),
    "huge number": lambda d: d["checks"][0].update(value=1e300),
    "no noise": lambda d: d["variants"]["paged"]["lockstep"].update(noise={}),
    "no bound": lambda d: d["variants"]["paged"]["lockstep"].update(bounds={}),
    "no rate": lambda d: d["variants"]["paged"]["free"]["closed"].update(figures={}),
    "no seed": lambda d: d["variants"]["paged"]["free"]["closed"].update(seeds=[]),
    "long text": lambda d: d.update(scenario="x" * 10_001),
    "list for a mapping": lambda d: d.update(variants=[]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_document_without_a_part_that_is_shown_is_refused_by_its_place(
    tmp_path: Path, name: str
) -> None:
    document = copy.deepcopy(small_document())
    CHANGES[name](document)
    with pytest.raises(InputError, match="is no validation that this version shows"):
        read_validation(written(tmp_path, document))


@pytest.mark.parametrize(
    "text", ["", "nothing", "[" * 100_000, '{"format": NaN}', '{"a":' * 5000 + "1", "\x00", "[]"]
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError):
        read_validation(path)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    document = small_document()
    document["slowness"] = [float("nan")]
    with pytest.raises(InputError):
        read_validation(written(tmp_path, document))


def test_messages_name_the_file_as_told_and_hold_nothing_of_it(tmp_path: Path) -> None:
    document = small_document()
    document["variants"] = {"secret-name": {"secret-key": "secret-value"}}
    with pytest.raises(InputError) as raised:
        read_validation(written(tmp_path, document), label="mine.json")
    assert str(raised.value).startswith("mine.json: ")
    assert "secret" not in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def test_files_above_the_limit_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    for one in (path, tmp_path, tmp_path / "none.json"):
        with pytest.raises(InputError):
            read_validation(one)


def test_steps_stand_at_their_numbers_with_the_size_and_sign_of_their_errors() -> None:
    lockstep = small_document()["variants"]["paged"]["lockstep"]
    lockstep |= {"steps": 1001, "points": [[1.0, 1.1, 0], [2.0, 1.0, 1], [4.0, 4.0, 0]]}
    figure = step_error_figure(lockstep)
    decode, prefill = figure["data"]
    assert (decode["x"], decode["y"]) == ([0.0, 1000.0], [10.0, 0.0])
    assert (prefill["x"], prefill["y"]) == ([500.0], [-50.0])
    band, *lines = figure["layout"]["shapes"]
    assert (band["y0"], band["y1"]) == (-5.0, 5.0)
    assert [line["y0"] for line in lines] == [-15.0, 15.0]


def test_steps_without_a_measured_time_and_single_steps_are_drawn_or_left_out() -> None:
    lockstep = small_document()["variants"]["paged"]["lockstep"]
    for points, drawn in (([[0.0, 1.0, 0]], 0), ([[1.0, 1.5, 1]], 1), ([], 0)):
        figure = step_error_figure({**lockstep, "steps": len(points), "points": points})
        assert sum(len(trace["x"]) for trace in figure["data"]) == drawn


def test_figures_of_a_load_stand_beside_the_bound_that_judges_them() -> None:
    document = small_document()
    closed = {row[0]: row[1:] for row in free_rows(document, "paged", "closed")}
    assert closed["rate (requests/s)"] == [
        *("8.00", "7.60", "-5.0 %", "-2.0 to +3.0 %"),
        "8.0 % ✗ FAILED",
    ]
    assert closed["TTFT p50 (ms)"][-1] == ""
    load = {row[0]: row[1:] for row in free_rows(document, "whole", "0.9")}
    assert load["TPOT p50 (ms)"][-1] == "8.0 % ✓ held"
    assert load["rate (requests/s)"][-1] == ""


def test_the_checks_are_a_table_of_numbers() -> None:
    lines = checks_csv(small_document()).splitlines()
    assert lines[0] == "variant,name,value,bound,ok"
    assert lines[4] == "paged,saturation rate,0.091,0.08,false"
    assert len(lines) == 7


def test_a_spreadsheet_takes_no_name_of_a_variant_for_a_formula() -> None:
    document = small_document()
    document["checks"][0]["variant"] = " =1+1"
    assert checks_csv(document).splitlines()[1].startswith("' =1+1,")


def test_the_checks_are_a_parquet_table_too() -> None:
    table = pq.read_table(io.BytesIO(checks_parquet(small_document()))).to_pylist()
    assert len(table) == 6
    assert table[3] == {
        "variant": "paged",
        "name": "saturation rate",
        "value": 0.091,
        "bound": 0.08,
        "ok": False,
    }
