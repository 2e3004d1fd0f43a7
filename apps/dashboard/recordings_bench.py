"""A result of `vllm bench serve` beside a run: the second part of the page Recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here, written_ns
from apps.dashboard.downloads import download_kinds
from apps.dashboard.places import run_folder, run_folders
from apps.dashboard.ui import BIND, chart, definitions, guarded, md, show_error, table
from apps.dashboard.upload_control import choose, under_name, upload_control
from kvsim.errors import InputError
from kvsim.report.bench_compare import (
    COMPARED_DEFINITIONS,
    BenchComparison,
    FigureRow,
    LoadRow,
    bench_csv,
    bench_document,
    bench_parquet,
    compare_bench,
    load_sentence,
)
from kvsim.report.bench_result import BenchResult, bench_result, read_bench
from kvsim.report.compare_document import Table
from kvsim.report.export_vllm_json import vllm_results
from kvsim.report.figures.beside import Error, errors_figure
from kvsim.report.figures_page import figures_html
from kvsim.report.text import figure, plain
from kvsim.results.read_run import Run, read_run

_NONE = "-"
_LOAD_HEADER = ("quantity", "unit", "measured", "simulated", "same")
_FIGURE_HEADER = (
    *("figure", "unit", "measured", "simulated"),
    *("difference", "error (%)", "within the bound"),
)
_STATES = {True: "✓ inside", False: "✗ outside", None: "no bound"}
_SAME = {True: "✓ same", False: "✗ differs", None: "not known"}


class _Simulated(NamedTuple):
    """What a run's variant predicted under one seed."""

    result: BenchResult
    relative_error: float | None


def show_bench() -> None:
    """Upload, the run to compare with, and both side by side."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        upload_id = upload_control(
            "bench",
            "Result file of `vllm bench serve --save-result`",
            "bench",
            types=("json", "jsonl"),
            help="One JSON object, or one on each line. At most 50 MiB.",
        )
        measured = None
        if upload_id is not None:
            with guarded():
                measured = _measured(upload_id)
    if upload_id is None:
        st.info(
            "Drop in what `vllm bench serve` saved, and choose a run of the same traffic: the"
            " figures of both stand side by side under the same names. `kvsim export --format"
            " vllm-json` writes a run's figures in this format."
        )
    with right:
        simulated = _simulated_control()
    if measured is not None and simulated is not None:
        bound = simulated.relative_error
        _show(compare_bench(measured, simulated.result, relative_error=bound), bound)
    definitions(COMPARED_DEFINITIONS)


def _measured(upload_id: str) -> BenchResult:
    name = uploads.kept(here().uploads, upload_id).name
    results = _read(upload_id, name)
    number = 1
    if len(results) > 1:
        number = st.number_input(
            f"Result (of {len(results):,})", 1, len(results), key="bench_result", bind=BIND
        )
    chosen = results[number - 1]
    said = ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in chosen.texts.items())
    st.caption(md(said))
    return chosen


@st.cache_data(max_entries=16, show_spinner="Reading the result")
def _read(upload_id: str, name: str) -> tuple[BenchResult, ...]:
    return read_bench(uploads.kept(here().uploads, upload_id).path, label=name)


def _simulated_control() -> _Simulated | None:
    runs = list(run_folders(here()))
    run_id = choose("Run", runs, "bench_run", "run")
    if not runs:
        st.info("There is no run yet: make one on the page Run, or start with `--runs FOLDER`")
    if run_id is None:
        return None
    path = run_folder(here(), run_id)
    try:
        return _chosen(path, written_ns(path))
    except InputError as error:
        show_error(under_name(error, run_id))
        return None


def _chosen(path: Path, written_ns: int) -> _Simulated:
    run = _run(str(path), written_ns)
    labels = {f"{place}: {plain(name, 60)}": name for place, name in enumerate(run.folders, 1)}
    variant = labels[st.selectbox("Variant", list(labels), key="bench_variant", bind=BIND)]
    results = _results(str(path), written_ns, variant)
    place = 1
    if len(run.seeds) > 1:
        place = st.number_input(
            f"Seed (of {len(run.seeds):,}, in their order)",
            1,
            len(run.seeds),
            key="bench_seed",
            bind=BIND,
        )
        st.caption(f"seed {run.seeds[place - 1]}")
    return _Simulated(
        results[place - 1],
        figure(run.summary["variants"][variant], "setup.clock_relative_error"),
    )


@st.cache_resource(max_entries=12, show_spinner="Reading the run")
def _run(path: str, written_ns: int) -> Any:
    return read_run(Path(path))


@st.cache_data(max_entries=32, show_spinner="Reading the run")
def _results(path: str, written_ns: int, variant: str) -> list[BenchResult]:
    run: Run = _run(path, written_ns)
    return [bench_result(one, "run") for one in vllm_results(run, [variant], detailed=False)]


def _show(found: BenchComparison, bound: float | None) -> None:
    st.subheader("The loads")
    (st.warning if found.different_loads else st.success)(md(load_sentence(found), 2000))
    table(_LOAD_HEADER, [_load_cells(row) for row in found.load], "bench_load")
    st.subheader("The figures")
    judged = [row for row in found.figures if row.inside is not None]
    if bound is None:
        st.info("This run's clock is given, not predicted: it states no error to judge by")
    else:
        inside = sum(bool(row.inside) for row in judged)
        st.markdown(
            md(
                f"{inside:,} of {len(judged):,} figures are within ± {100 * bound:.1f} %, the"
                " relative error that the run's clock states for a step's duration."
            )
        )
    table(_FIGURE_HEADER, [_figure_cells(row) for row in found.figures], "bench_figures")
    if found.left_out:
        st.caption(md(f"Only the benchmark has: {', '.join(found.left_out)}"))
    drawn = [Error(r.name, r.error, r.inside) for r in found.figures if r.error is not None]
    charts = {"Relative errors": errors_figure(drawn, bound)} if drawn else {}
    for one in charts.values():
        alt = "Relative error of every simulated figure, over the band of the clock's own error."
        chart(one, "bench_errors", alt)
    _exports(found, charts)


def _load_cells(row: LoadRow) -> tuple[str, ...]:
    sides = ("not stated" if side is None else _number(side) for side in row[2:4])
    return (row.name, row.unit, *sides, _SAME[row.same])


def _figure_cells(row: FigureRow) -> tuple[str, ...]:
    error = _NONE if row.error is None else f"{100 * row.error:+.1f}"
    numbers = (_number(row.measured), _number(row.simulated), f"{row.difference:+,.4g}")
    return (row.name, row.unit, *numbers, error, _STATES[row.inside])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.5g}"


def _exports(found: BenchComparison, charts: Mapping[str, Any]) -> None:
    loads = tuple(_load_cells(row) for row in found.load)
    figures = tuple(_figure_cells(row) for row in found.figures)
    tables = (
        Table("The loads", _LOAD_HEADER, loads),
        Table("The figures", _FIGURE_HEADER, figures),
    )
    title = "Benchmark beside simulation"
    makers = {
        "csv": lambda: bench_csv(found).encode(),
        "json": lambda: json.dumps(bench_document(found), indent=1).encode(),
        "parquet": lambda: bench_parquet(found),
        "html": lambda: figures_html(title, charts, [load_sentence(found)], tables),
    }
    download_kinds("benchmark", makers, "bench")
