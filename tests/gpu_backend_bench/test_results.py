from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gpu_backend.bench.results import MESSAGE_CHARACTERS, Results, describe, read_rows


def test_rows_are_lines_that_read_back(tmp_path: Path) -> None:
    results = Results(tmp_path / "deep" / "out")
    results.append("decode", {"us": 1.5, "shape": (2, 3)})
    assert read_rows(results.folder, "decode") == [{"us": 1.5, "shape": [2, 3]}]
    results.append("decode", {"us": math.inf, "inner": {"a": [math.nan]}})
    assert read_rows(results.folder, "decode")[1] == {"us": "inf", "inner": {"a": ["nan"]}}
    assert read_rows(results.folder, "paging") == []


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.replace("summary", {"long": "x" * 1000})
    results.replace("summary", {"a": 1})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.replace("summary", {"a": 1})
    with pytest.raises(TypeError):
        results.replace("summary", {"a": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="not an empty folder"):
        Results(tmp_path)
    with pytest.raises(ValueError, match="not an empty folder"):
        Results(tmp_path / "old.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


def test_an_exception_as_data() -> None:
    def deep(level: int) -> None:
        if level == 0:
            raise KeyError("x" * 5000)
        deep(level - 1)

    try:
        deep(20)
    except KeyError as error:
        found = describe(error)
    assert found["error"] == "KeyError"
    assert len(found["why"]) == MESSAGE_CHARACTERS
    assert len(found["traceback"]) == 6
    assert found["traceback"][-1].endswith(" deep")
