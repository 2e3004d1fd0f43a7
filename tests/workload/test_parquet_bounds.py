"""A Parquet file of a few bytes may hold as many equal values as it likes."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from kvsim.errors import InputError
from kvsim.workload import PairLengths, ReadRules, TraceWorkload


def write(folder: Path, **columns: Any) -> Path:
    path = folder / "rows.parquet"
    parquet.write_table(pa.table(columns), path, compression="zstd")
    return path


def test_a_list_where_a_number_belongs_is_refused_before_it_is_read(tmp_path: Path) -> None:
    numbers = pa.array([[0] * 3_000_000])
    path = write(tmp_path, prompt_tokens=numbers, output_tokens=[1])
    assert path.stat().st_size < 2_000
    del numbers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"column prompt_tokens holds lists or structures"):
        PairLengths(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_a_structure_where_a_number_belongs_is_refused(tmp_path: Path) -> None:
    columns = {"arrival_s": [0.0], "prompt_tokens": [{"a": 1}], "output_tokens": [1]}
    with pytest.raises(InputError, match=r"column prompt_tokens holds lists or structures"):
        TraceWorkload(write(tmp_path, **columns), rules=ReadRules(on_bad_row="drop"))


def mooncake(folder: Path, ids: list[list[int]], **more: Any) -> Path:
    rows = len(ids)
    return write(
        folder,
        timestamp=[0] * rows,
        input_length=[512 * len(one) for one in ids],
        output_length=[1] * rows,
        hash_ids=ids,
        **more,
    )


def test_values_are_counted_before_they_are_read(tmp_path: Path) -> None:
    path = mooncake(tmp_path, [[0] * 1000] * 10)
    # 10,000 ids, and 3 values more in each of 10 rows
    assert TraceWorkload(path, rules=ReadRules(max_bytes=8 * 10_030)).counts.kept == 10
    with pytest.raises(InputError, match=r"holds 10,030 values, more than 10,029"):
        TraceWorkload(path, rules=ReadRules(max_bytes=8 * 10_030 - 1))


def test_a_row_of_more_ids_than_a_row_may_have_is_refused_by_its_number(tmp_path: Path) -> None:
    path = mooncake(tmp_path, [[1], [0] * 1_000_000])
    with pytest.raises(InputError, match=r"rows\.parquet: row 2: a row holds 8,125,\d\d\d bytes"):
        TraceWorkload(path, rules=ReadRules(max_chunks=1000))


def test_long_rows_are_read_in_their_order(tmp_path: Path) -> None:
    ids = [[row] * 1000 for row in range(1500)]
    requests = list(TraceWorkload(mooncake(tmp_path, ids)))
    assert [one.segments and one.segments[0] for one in requests] == [(n, 512) for n in range(1500)]


def test_columns_that_a_format_does_not_read_may_hold_anything(tmp_path: Path) -> None:
    path = mooncake(tmp_path, [[1], [2]], turns=[["a"], ["b"]])
    assert TraceWorkload(path).counts.kept == 2
