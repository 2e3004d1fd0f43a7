from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.report import DEFINITIONS
from kvsim.report.export_csv import cell, csv_export, disarmed, table_csv
from kvsim.report.export_parquet import parquet_export
from kvsim.report.export_summary import summary_rows
from kvsim.results.read_run import Run
from tests.report.small_run import made_run, request, small_run


def written(run: Run, *variants: str) -> dict[str, str]:
    """Content of each file of the CSV export."""
    files = csv_export(run, variants or list(run.folders)).files
    return {name: b"".join(chunks).decode() for name, chunks in files}


def test_a_run_becomes_a_summary_and_two_tables_per_variant(tmp_path: Path) -> None:
    files = written(small_run(tmp_path))
    assert list(files) == [
        "summary.csv",
        "variants/paged/steps.csv",
        "variants/paged/requests.csv",
        "variants/contiguous-max/steps.csv",
        "variants/contiguous-max/requests.csv",
    ]
    assert files["variants/paged/requests.csv"] == (
        "request_id,outcome,reason,arrival_s,queue_s,first_token_s,finish_s,prompt_tokens,"
        "output_tokens,cached_tokens,preemptions,held_up_by_fragmentation\n"
        "r2,rejected,prompt_too_long,0.75,,,,20,0,0,0,false\n"
        "r1,finished,,0.5,0.5,2.0,2.0,4,1,0,0,false\n"
        "r0,finished,,0.0,0.0,1.0,3.0,4,3,0,0,false\n"
    )
    assert files["variants/paged/steps.csv"].splitlines()[2] == (
        "1.0,1.0,1,2,0,4,1,5,12,12,9,1,2,0,20,1,0,2,0,0,0,20,0"
    )


def test_the_summary_has_a_row_per_variant_and_metric_with_unit_and_definition(
    tmp_path: Path,
) -> None:
    run = small_run(tmp_path)
    rows = list(csv.DictReader(io.StringIO(written(run)["summary.csv"])))
    cells = {(row["variant"], row["metric"]): row for row in rows}
    ttft = cells["paged", "ttft_s.mean"]
    assert (float(ttft["value"]), ttft["unit"]) == (1.25, "s")
    assert ttft["definition"] == DEFINITIONS["ttft_s"] + " Mean."
    live = cells["contiguous-max", "memory.by_iteration.live"]
    assert live["unit"] == "share of capacity"
    assert live["definition"].endswith("(share of capacity, averaged over steps).")
    assert cells["paged", "throughput.goodput_rps"]["value"] == ""
    assert (ttft["low"], ttft["high"]) == ("", "")


def test_every_figure_of_a_run_has_a_unit_and_a_definition(tmp_path: Path) -> None:
    for row in summary_rows(small_run(tmp_path).summary, ["paged"]):
        assert row.unit, row.metric
        assert row.definition, row.metric


def test_one_variant_can_be_chosen(tmp_path: Path) -> None:
    files = written(small_run(tmp_path), "contiguous-max")
    assert list(files)[1:] == [
        "variants/contiguous-max/steps.csv",
        "variants/contiguous-max/requests.csv",
    ]
    assert "paged" not in files["summary.csv"].replace("contiguous-max", "")


def test_intervals_over_seeds_are_the_summarys(tmp_path: Path) -> None:
    entry = {"steps": 2.5, "preemptions": 0, "intervals": {"steps": [2.0, 3.0]}}
    run = made_run(tmp_path, entry=entry)
    steps, preemptions = summary_rows(run.summary, ["paged"])
    assert (steps.metric, steps.value, steps.low, steps.high) == ("steps", 2.5, 2.0, 3.0)
    assert (preemptions.low, preemptions.high) == (None, None)
    table = pq.read_table(pa.BufferReader(_parquet(run)))
    assert table.to_pylist() == [
        {
            "variant": "paged",
            "metric": "steps",
            "value": 2.5,
            "unit": "count",
            "low": 2.0,
            "high": 3.0,
        },
        {
            "variant": "paged",
            "metric": "preemptions",
            "value": 0.0,
            "unit": "count",
            "low": None,
            "high": None,
        },
    ]


def _parquet(run: Run) -> bytes:
    ((name, chunks),) = parquet_export(run, list(run.folders)).files
    assert name == ""
    return b"".join(chunks)


def test_the_parquet_summary_has_the_rows_of_the_csv(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    table = pq.read_table(pa.BufferReader(_parquet(run)))
    assert table.column_names == ["variant", "metric", "value", "unit", "low", "high"]
    assert table.column("value").to_pylist() == [
        row.value for row in summary_rows(run.summary, list(run.folders))
    ]
    assert _parquet(run) == _parquet(run)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+SUM(1)", "'+SUM(1)"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("\nx", "'\nx"),
        ("  =1", "'  =1"),
        ("\xa0\u200b\ufeff=1", "'\xa0\u200b\ufeff=1"),
        ("＝1", "'＝1"),
        ("'=1", "''=1"),
        ("-1.5e3", "-1.5e3"),
        ("+4", "+4"),
        ("-", "'-"),
        ("r-1", "r-1"),
        ("", ""),
        ("1=2", "1=2"),
    ],
)
def test_text_that_a_spreadsheet_could_run_gets_an_apostrophe(text: str, safe: str) -> None:
    assert disarmed(text) == safe


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1.5, "-1.5"),
        (-3, "-3"),
        (1e-09, "1e-09"),
        (float("nan"), ""),
        (None, ""),
        (True, "true"),
        ('a"b', '"a""b"'),
        ("a;b", '"a;b"'),
        (" a", '" a"'),
        ('=HYPERLINK("x")', '"\'=HYPERLINK(""x"")"'),
    ],
)
def test_cells_are_quoted_and_numbers_stay_numbers(value: object, text: str) -> None:
    assert cell(value) == text


ids = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("=+-@'\"\t\r\n;, \u202e"),
    max_size=12,
)


@given(st.lists(st.tuples(ids, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))))
def test_any_table_reads_back_equal_once_the_apostrophes_are_dropped(
    rows: list[tuple[str, int, float]],
) -> None:
    table = pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.string()),
            "count": pa.array([row[1] for row in rows], pa.int64()),
            "value": pa.array([row[2] for row in rows], pa.float64()),
        }
    )
    text = b"".join(table_csv(table)).decode()
    header, *back = csv.reader(io.StringIO(text, newline=""))
    assert header == ["id", "count", "value"]
    for (name, count, value), (cell_name, cell_count, cell_value) in zip(rows, back, strict=True):
        visible = cell_name.strip()
        assert visible[:1] not in ("=", "@")
        assert cell_name.removeprefix("'") == name
        assert int(cell_count) == count
        assert float(cell_value) == value


def test_hostile_ids_and_names_do_no_harm(tmp_path: Path) -> None:
    hostile = "=cmd()</script>\u202e" + "x" * 10_000
    run = made_run(
        tmp_path,
        variant="=1\ud800",
        entry={"steps": 1, "requests": {"rejected_by_reason": {"=1": 2}}},
        requests=[request(hostile, reason="\r=1")],
    )
    files = written(run)
    summary = list(csv.reader(io.StringIO(files["summary.csv"], newline="")))
    assert [row[0] for row in summary] == ["variant", "'=1\\ud800", "'=1\\ud800"]
    assert summary[2][1] == "requests.rejected_by_reason.=1"
    (name,) = (name for name in files if name.endswith("requests.csv"))
    _, row = csv.reader(io.StringIO(files[name], newline=""))
    assert row[0] == "'" + hostile
    assert row[2] == "'\r=1"
