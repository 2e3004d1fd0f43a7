from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.report import bench_result as reader
from kvsim.report.bench_compare import (
    FIGURES,
    bench_csv,
    bench_document,
    compare_bench,
    load_sentence,
)
from kvsim.report.bench_result import BenchResult, bench_result, read_bench
from kvsim.report.export_vllm_json import vllm_json_export, vllm_results
from tests.report.small_run import small_run

SMALL: dict[str, Any] = {
    **{"duration": 10.0, "completed": 4, "total_input_tokens": 400, "total_output_tokens": 80},
    **{"request_throughput": 0.4, "output_throughput": 8.0, "mean_ttft_ms": 50.0},
    **{"p99_ttft_ms": 80.0, "std_ttft_ms": 5.0, "median_tpot_ms": 20.0},
}


def result(**changes: object) -> BenchResult:
    return bench_result({**SMALL, **changes}, "x.json")


def written(folder: Path, text: str) -> Path:
    path = folder / "bench.json"
    path.write_text(text, "utf-8")
    return path


def test_what_a_run_exports_agrees_with_the_run_to_zero_difference(tmp_path: Path) -> None:
    run = small_run(tmp_path, "slo.ttft_s=1")
    ((_, chunks),) = vllm_json_export(run, list(run.folders)).files
    path = written(tmp_path, b"".join(chunks).decode())
    measured = read_bench(path)
    simulated = [
        bench_result(one, "run") for one in vllm_results(run, list(run.folders), detailed=False)
    ]
    assert len(measured) == len(simulated) == 2
    for one, other in zip(measured, simulated, strict=True):
        found = compare_bench(one, other, relative_error=0.1)
        assert len(found.figures) == 23
        assert all(row.difference == 0 and row.error == 0 for row in found.figures)
        assert all(row.inside for row in found.figures if not row.name.startswith("std"))
        assert found.different_loads == ()
        assert [row.same for row in found.load] == [True] * 5 + [None]


def test_errors_are_relative_to_what_was_measured_and_judged_by_the_clocks_own() -> None:
    found = compare_bench(
        result(),
        result(mean_ttft_ms=60.0, median_tpot_ms=21.0, p99_ttft_ms=60.0),
        relative_error=0.2,
    )
    rows = {row.name: row for row in found.figures}
    assert (rows["mean_ttft_ms"].difference, rows["mean_ttft_ms"].error) == (10.0, 0.2)
    assert rows["mean_ttft_ms"].inside is True
    assert rows["p99_ttft_ms"].error == -0.25
    assert rows["p99_ttft_ms"].inside is False
    assert rows["std_ttft_ms"].inside is None
    assert list(rows) == [name for name in FIGURES if name in SMALL]
    units = [rows[name].unit for name in ("mean_ttft_ms", "request_throughput")]
    assert units == ["ms", "requests/s"]


def test_without_an_error_of_the_clock_nothing_is_inside_or_outside() -> None:
    found = compare_bench(result(), result(), relative_error=None)
    assert {row.inside for row in found.figures} == {None}


def test_a_figure_that_was_measured_as_zero_has_no_relative_error() -> None:
    rows = {
        (m, s): compare_bench(
            result(mean_ttft_ms=m), result(mean_ttft_ms=s), relative_error=0.1
        ).figures[2]
        for m, s in ((0.0, 0.0), (0.0, 1.0))
    }
    assert (rows[0.0, 0.0].error, rows[0.0, 0.0].inside) == (0.0, True)
    assert (rows[0.0, 1.0].error, rows[0.0, 1.0].inside) == (None, False)


def test_different_loads_are_said_with_both_numbers() -> None:
    """100 tokens a prompt against 110; 2 % more is the same."""
    found = compare_bench(result(), result(total_input_tokens=440), relative_error=None)
    assert [row.name for row in found.different_loads] == ["mean prompt length"]
    assert "mean prompt length 100 measured, 110 simulated (tokens)" in load_sentence(found)
    same = compare_bench(result(), result(total_input_tokens=408), relative_error=None)
    assert load_sentence(same).startswith("The loads are the same within 2 %")
    assert "not known: request rate" in load_sentence(same)


@pytest.mark.parametrize("rate", ["inf", float("inf")])
def test_all_at_once_is_another_load_than_a_rate(rate: object) -> None:
    burst = result(request_rate=rate)
    assert burst.at_once
    found = compare_bench(burst, result(request_rate=4.0), relative_error=None)
    assert [row.name for row in found.different_loads] == ["request rate"]
    assert "request rate at once measured, 4 simulated" in load_sentence(found)
    unknown = compare_bench(burst, result(), relative_error=None)
    assert unknown.different_loads == ()
    assert compare_bench(burst, burst, relative_error=None).different_loads == ()


def test_latencies_that_the_run_has_not_are_named() -> None:
    found = compare_bench(result(p95_itl_ms=3.0), result(), relative_error=None)
    assert found.left_out == ("p95_itl_ms",)


def test_exports_hold_every_number_as_it_is() -> None:
    found = compare_bench(result(), result(mean_ttft_ms=60.0), relative_error=0.1)
    document = json.loads(json.dumps(bench_document(found), allow_nan=False))
    by_name = {row["name"]: row for row in document["figures"]}
    assert by_name["mean_ttft_ms"]["error"] == 0.2
    assert by_name["mean_ttft_ms"]["inside"] is False
    lines = bench_csv(found).splitlines()
    assert "figure,mean_ttft_ms,ms,50.0,60.0,10.0,0.2,0.1,false" in lines
    assert "load,mean prompt length,tokens,100.0,100.0,,,0.02,true" in lines
    assert "load,request rate,requests/s,,,,,0.02," in lines


def test_one_object_over_lines_or_one_on_each_line_is_read(tmp_path: Path) -> None:
    assert len(read_bench(written(tmp_path, json.dumps(SMALL, indent=2)))) == 1
    lines = "\n\n".join([json.dumps(SMALL)] * 3)
    assert len(read_bench(written(tmp_path, "\ufeff" + lines + "\n"))) == 3


def test_arrays_of_single_requests_are_not_looked_at(tmp_path: Path) -> None:
    text = json.dumps(SMALL)[:-1] + ', "itls": [[NaN, "x", null]], "generated_texts": ["}"]}'
    assert read_bench(written(tmp_path, text))[0].figures == {
        name: float(value) for name, value in SMALL.items()
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mean_ttft_ms": "12"}, "mean_ttft_ms must be a number"),
        ({"mean_ttft_ms": True}, "mean_ttft_ms must be a number"),
        ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms must be from 0"),
        ({"mean_ttft_ms": float("inf")}, "mean_ttft_ms must be from 0"),
        ({"mean_ttft_ms": -1}, "mean_ttft_ms must be from 0"),
        ({"completed": 10**400}, "completed must be from 0"),
        ({"request_rate": "fast"}, "request_rate must be a number"),
        ({"duration": None}, "it has no duration"),
        ({"total_input_tokens": [1]}, "total_input_tokens must be a number"),
    ],
)
def test_a_figure_that_is_no_finite_number_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = written(tmp_path, json.dumps({**SMALL, **changes}))
    with pytest.raises(InputError, match=problem) as raised:
        read_bench(path, label="mine.json")
    assert str(raised.value).startswith("mine.json: ")


@pytest.mark.parametrize(
    "text",
    [
        *("", "  \n", "[]", "1", '"x"', "{", "null", "{}", "[" * 500_000, '{"a":' * 90_000),
        *("9" * 5000, json.dumps(SMALL) + "\n[1]", json.dumps(SMALL) + "\n<script>"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read_bench(written(tmp_path, text))


def test_texts_are_short_and_printable() -> None:
    label = "\x1b[31m</script>![a](http://b)\u202e" + "x" * 500
    text = result(label=label).texts["label"]
    assert len(text) == 100
    assert text.isprintable()


def test_sizes_counts_and_results_have_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps(SMALL) + "\n"
    path = written(tmp_path, line * 4)
    for name, value in (
        ("MAX_BYTES", 800),
        ("MAX_LISTS", 3),
        ("MAX_VALUES", 20),
        ("MAX_RESULTS", 3),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(reader, name, value)
            with pytest.raises(InputError, match="limit"):
                read_bench(path)
    assert len(read_bench(path)) == 4
    with pytest.raises(InputError, match="regular file"):
        read_bench(tmp_path)
