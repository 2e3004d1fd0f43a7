"""Whatever is written in any format is read back, and every row is accounted for."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload import ReadRules, TraceWorkload

names = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs", "Cf", "Co", "Cn")), min_size=1
).filter(str.isprintable)
requests = st.builds(
    Request,
    names,
    st.integers(0, 2**62),
    st.integers(1, 10**8),
    st.integers(1, 10**4),
    st.none() | st.integers(10**4, 10**8),
    st.integers(-(2**31), 2**31 - 1),
    st.none(),
    st.none(),
    st.none(),
)
workloads = st.lists(
    requests, min_size=1, max_size=20, unique_by=lambda request: request.request_id
).map(lambda rows: sorted(rows, key=lambda request: request.arrival_ns))

HEADER = ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "priority")


def seconds(ns: int) -> str:
    return f"{ns // 10**9}.{ns % 10**9:09d}"


def as_csv(rows: list[Request]) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(HEADER)
    for row in rows:
        writer.writerow([row[0], seconds(row[1]), *row[2:6]])
    return buffer.getvalue().encode()


def as_json(rows: list[Request]) -> bytes:
    lines = []
    for row in rows:
        values = json.dumps(dict(zip(HEADER, (row[0], "NOW", *row[2:6]), strict=True)))
        lines.append(values.replace('"NOW"', seconds(row[1]), 1) + "\n")
    return "".join(lines).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round-trips")


@given(workloads, st.booleans())
def test_csv_gives_back_every_request_to_the_nanosecond(
    folder: Path, rows: list[Request], packed: bool
) -> None:
    path = folder / "trace.csv"
    path.write_bytes(gzip.compress(as_csv(rows)) if packed else as_csv(rows))
    assert list(TraceWorkload(path)) == rows


@given(workloads.filter(lambda rows: all(row.request_id != "NOW" for row in rows)))
def test_json_lines_give_back_every_request_to_the_nanosecond(
    folder: Path, rows: list[Request]
) -> None:
    path = folder / "trace.jsonl"
    path.write_bytes(as_json(rows))
    assert list(TraceWorkload(path)) == rows


@given(workloads)
@settings(max_examples=25)
def test_parquet_gives_back_every_request_to_a_float_s_precision(
    folder: Path, rows: list[Request]
) -> None:
    path = folder / "trace.parquet"
    columns = [[row[i] for row in rows] for i in range(6)]
    columns[1] = [row.arrival_ns / 1e9 for row in rows]
    parquet.write_table(pa.table(dict(zip(HEADER, columns, strict=True))), path)
    for found, wrote in zip(TraceWorkload(path), rows, strict=True):
        assert found.arrival_ns == pytest.approx(wrote.arrival_ns, rel=1e-15, abs=1)
        assert found._replace(arrival_ns=0) == wrote._replace(arrival_ns=0)


@given(st.permutations(range(8)), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_any_order_is_sorted_stably(folder: Path, places: list[int], times: list[int]) -> None:
    path = folder / "shuffled.csv"
    rows = [(times[place], place) for place in places]
    lines = [f"{time},{place + 1},1\n" for time, place in rows]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))
    workload = TraceWorkload(path)
    expected = [place + 1 for _, place in sorted(rows, key=lambda row: row[0])]
    assert [row.prompt_tokens for row in workload] == expected
    late = sum(rows[i][0] < max(row[0] for row in rows[: i + 1]) for i in range(8))
    assert workload.counts.reordered == late


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode), st.integers(0, 2))
def test_arbitrary_bytes_are_read_or_refused_and_every_row_is_accounted_for(
    folder: Path, content: bytes, prefix: int
) -> None:
    heads = (b"", b"arrival_s,prompt_tokens,output_tokens\n", b'{"timestamp":0,"input_length":1}\n')
    path = folder / "anything"
    path.write_bytes(heads[prefix] + content)
    try:
        workload = TraceWorkload(path, rules=ReadRules(on_bad_row="drop"))
    except InputError:
        return
    counts = workload.counts
    assert len(list(workload)) == counts.kept
    assert counts.read == counts.kept + sum(counts.dropped.values())


@given(st.integers(0, 2**62), st.integers(1, 10**15))
def test_rate_scale_is_floor_division_to_nine_decimals(
    folder: Path, arrival: int, billionths: int
) -> None:
    path = folder / "scaled.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{seconds(arrival)},1,1\n")
    scale = billionths / 1e9
    expected = arrival * 10**9 // round(scale * 10**9)
    if not 1e-6 <= scale <= 1e6 or expected >= 2**63 - 2**40:
        return
    assert next(iter(TraceWorkload(path, rate_scale=scale))).arrival_ns == expected
