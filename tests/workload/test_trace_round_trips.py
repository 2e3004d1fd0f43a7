"""Whatever is written in any format is read back, and every row is accounted for."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kvsim.core.request import Branching, Fork, Request
from kvsim.errors import InputError
from kvsim.workload import ReadRules, TraceWorkload

names = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs", "Cf", "Co", "Cn")), min_size=1
).filter(str.isprintable)


@st.composite
def beams(draw: st.DrawFn) -> Branching:
    width = draw(st.integers(2, 64))
    if draw(st.booleans()):
        return Branching("beam", width)
    choices = st.tuples(*[st.integers(0, width - 1)] * width)
    return Branching("beam", width, "trace", tuple(draw(st.lists(choices, min_size=1, max_size=3))))


branchings = st.none() | st.integers(2, 64).map(lambda n: Branching("parallel", n)) | beams()
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
    branchings,
    st.none(),
)
plain_requests = requests.filter(lambda row: row.branches is None or not row.branches.parents)


def listed(row: st.SearchStrategy[Request]) -> st.SearchStrategy[list[Request]]:
    """Rows of different names in arrival order."""
    rows = st.lists(row, min_size=1, max_size=20, unique_by=lambda request: request.request_id)
    return rows.map(lambda rows: sorted(rows, key=lambda request: request.arrival_ns))


def shortened(row: Request) -> Request:
    """The parents of beams reach to the last token."""
    if row.branches is None or not row.branches.parents:
        return row
    return row._replace(output_tokens=min(row.output_tokens, len(row.branches.parents) + 2))


@st.composite
def forked(draw: st.DrawFn, row: st.SearchStrategy[Request]) -> list[Request]:
    """Some prompts go back to the row above."""
    rows = draw(listed(row))
    for i in range(1, len(rows)):
        above = rows[i - 1]
        most = above.prompt_tokens + (0 if above.branches else above.output_tokens)
        if draw(st.booleans()):
            at = draw(st.integers(1, min(most, rows[i].prompt_tokens)))
            rows[i] = rows[i]._replace(fork=Fork(above.request_id, at))
    return rows


traced = requests.map(shortened)
HEADER = (
    "request_id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "priority",
    "n",
    "beam_width",
    "beam_parents",
    "parent_id",
    "fork_at_token",
)


def values(row: Request, arrival: object) -> list[Any]:
    kind, width, _, parents = row.branches or Branching("", 0)
    samples, beams = (width if kind == name else None for name in ("parallel", "beam"))
    return [
        row[0],
        arrival,
        *row[2:6],
        samples,
        beams,
        parents or None,
        *(row.fork or (None, None)),
    ]


def seconds(ns: int) -> str:
    return f"{ns // 10**9}.{ns % 10**9:09d}"


def as_csv(rows: list[Request]) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(HEADER)
    for row in rows:
        writer.writerow(values(row, seconds(row[1])))
    return buffer.getvalue().encode()


def as_json(rows: list[Request]) -> bytes:
    lines = []
    for row in rows:
        text = json.dumps(dict(zip(HEADER, values(row, "NOW"), strict=True)))
        lines.append(text.replace('"NOW"', seconds(row[1]), 1) + "\n")
    return "".join(lines).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round-trips")


def without_streams(rows: Iterable[Request]) -> list[Request]:
    """What a fork says of sharing is not written as streams."""
    return [row._replace(segments=None, output_stream=None) for row in rows]


@given(forked(plain_requests), st.booleans())
def test_csv_gives_back_every_request_to_the_nanosecond(
    folder: Path, rows: list[Request], packed: bool
) -> None:
    path = folder / "trace.csv"
    path.write_bytes(gzip.compress(as_csv(rows)) if packed else as_csv(rows))
    assert without_streams(TraceWorkload(path)) == rows


@given(forked(traced).filter(lambda rows: all(row.request_id != "NOW" for row in rows)))
def test_json_lines_give_back_every_request_to_the_nanosecond(
    folder: Path, rows: list[Request]
) -> None:
    path = folder / "trace.jsonl"
    path.write_bytes(as_json(rows))
    assert without_streams(TraceWorkload(path)) == rows


@given(forked(traced))
@settings(max_examples=25)
def test_parquet_gives_back_every_request_to_a_float_s_precision(
    folder: Path, rows: list[Request]
) -> None:
    path = folder / "trace.parquet"
    columns = zip(*[values(row, row.arrival_ns / 1e9) for row in rows], strict=True)
    parquet.write_table(pa.table(dict(zip(HEADER, map(list, columns), strict=True))), path)
    for found, wrote in zip(without_streams(TraceWorkload(path)), rows, strict=True):
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
