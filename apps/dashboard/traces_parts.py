"""The parts of the page Trace explorer."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from apps.dashboard.downloads import download
from apps.dashboard.trace_source import MAX_SEGMENTS, Loaded, Source, load, workload_section
from apps.dashboard.ui import BIND, chart, definitions, guarded, md, table
from kvsim.catalog import get_model, list_gpus, list_models
from kvsim.catalog.kv import kv_bytes_per_token
from kvsim.errors import InputError
from kvsim.report.compare_document import Table
from kvsim.report.figures.prefix import prefix_figure
from kvsim.report.figures_page import figures_html
from kvsim.report.traffic import (
    TRAFFIC_DEFINITIONS,
    Traffic,
    interval_of,
    prefix_csv,
    requests_parquet,
    traffic_csv,
    traffic_figures,
    traffic_rows,
)
from kvsim.scenario.starter import starter_scenario
from kvsim.workload.prefix import PREFIX_DEFINITIONS, prefix_curve

NO_MODEL = "none"
_HEADLINES = (
    ("requests", "requests"),
    ("rate", "rate"),
    ("prompt tokens, p50", "prompt p50"),
    ("prompt tokens, p99", "prompt p99"),
    ("output tokens, p50", "output p50"),
    ("output tokens, p99", "output p99"),
    ("prompt tokens per second", "prompt tokens"),
    ("output tokens per second", "output tokens"),
)
_FIGURE_HEADER = ("figure", "value", "unit")
_MIME = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet", "yaml": "text/yaml"}


def show_traffic(loaded: Loaded) -> None:
    """Figures and charts of what the requests ask for."""
    traffic = loaded.traffic
    figures = _figures(loaded.source)
    _show_numbers(traffic)
    _show_arrivals(traffic, figures)
    left, right = st.columns(2)
    with left:
        st.subheader("Lengths")
        chart(
            figures["lengths"],
            "lengths",
            "Cumulative distributions of prompt and output tokens, percentiles 50, 90, 99 marked",
        )
        st.caption("Exact shares, drawn at no more than 200 points; the marks are p50, p90, p99.")
    with right:
        st.subheader("Output against prompt")
        chart(figures["density"], "density", "Heat map: requests by prompt and output tokens")
        st.caption(
            "Counted in at most 48 × 48 cells, even in logarithm; the colour is logarithmic."
        )
    _show_pace(traffic, figures)


@st.cache_data(max_entries=8, show_spinner=False)
def _figures(source: Source) -> dict[str, Any]:
    return traffic_figures(load(source).traffic)


def _show_numbers(traffic: Traffic) -> None:
    rows = traffic_rows(traffic)
    known = {row.name: row for row in rows}
    chosen = [(label, known[name]) for name, label in _HEADLINES if name in known]
    places = [place for _ in range(-(-len(chosen) // 4)) for place in st.columns(4)]
    for place, (label, row) in zip(places, chosen, strict=False):
        value = "not defined" if row.value is None else f"{row.value:,.4g}"
        if row.value is not None and row.value >= 1000:
            value = f"{row.value:,.0f}"
        place.metric(f"{label} ({row.unit})" if row.unit and row.unit != label else label, value)
    dropped = traffic.about["rows"]["dropped"]
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        st.caption(md(f"Rows that were dropped: {reasons}."))
    with st.expander("All figures"):
        table(_FIGURE_HEADER, _figure_rows(traffic), "figures")
    definitions(TRAFFIC_DEFINITIONS)


def _figure_rows(traffic: Traffic) -> list[tuple[str, ...]]:
    return [
        (row.name, "not defined" if row.value is None else f"{row.value:,.6g}", row.unit)
        for row in traffic_rows(traffic)
    ]


def _show_arrivals(traffic: Traffic, figures: dict[str, Any]) -> None:
    st.subheader("Arrivals")
    if "arrivals" not in figures:
        st.info("This source holds lengths only, or all its requests arrive at once.")
        return
    chart(
        figures["arrivals"],
        "arrivals",
        "Bars: requests per interval over time; lines: prompt and output tokens per second",
    )
    assert traffic.binned is not None
    st.caption(
        md(
            f"Summed on the server in {len(traffic.binned.requests)} intervals of"
            f" {interval_of(traffic)}: the narrowest even width with at most 300."
        )
    )


def _show_pace(traffic: Traffic, figures: dict[str, Any]) -> None:
    left, right = st.columns(2)
    with left:
        st.subheader("Gaps")
        if "gaps" in figures:
            chart(
                figures["gaps"],
                "gaps",
                "Cumulative distribution of the gaps between arrivals, beside the exponential one",
            )
            st.caption(
                "Short gaps more often than the dashed line has them: requests come in bursts."
                " Gaps of 0 s: they came together, or the source's clock has coarse ticks."
            )
        else:
            st.info("There are no gaps: this source has no arrivals at different times.")
    with right:
        st.subheader("Sessions")
        sessions = traffic.demand.sessions
        if sessions is None:
            st.info(
                "This source does not say which request continues which: no sessions, no think"
                " times. The ids of a prompt's chunks say only what prompts share."
            )
            return
        chart(figures["sessions"], "sessions", "Requests per session, and think times")
        st.caption(md(f"Known because {sessions.basis}."))


@st.fragment
def show_prefix(loaded: Loaded) -> None:
    """The hit-rate curve, once it is asked for."""
    st.subheader("What a prefix cache would find")
    if not loaded.workload.shares_prefixes:
        st.info(
            "This source does not say which prompts share a prefix, so there is no hit rate."
            " Traces with ids of their prompts' chunks (hash_ids), or with parents, do; so does"
            " the generated chat."
        )
        return
    left, middle, right, last = st.columns(4, vertical_alignment="bottom")
    block_size = left.number_input("Block size (tokens)", 1, 4096, 16, key="pblock", bind=BIND)
    models = [NO_MODEL, *list_models()]
    model = middle.selectbox(
        "GiB for model",
        models,
        key="kvmodel",
        bind=BIND,
        help="Shows capacities also in GiB of KV.",
    )
    best = right.toggle(
        "Best possible (Belady)",
        key="best",
        bind=BIND,
        help="The most any eviction rule could find, at 12 capacities: one pass for each.",
    )
    wanted = last.toggle("Analyse", key="prefix", bind=BIND)
    if not wanted:
        st.caption("The analysis takes about a second per 10,000 long prompts; turn Analyse on.")
        return
    with guarded():
        document = _prefix(loaded.source, int(block_size), best, model)
        _show_curve(loaded, document, model)


def _prefix(source: Source, block_size: int, best: bool, model: str) -> dict[str, Any]:
    found = _prefix_or_refusal(source, block_size, best, model)
    if isinstance(found, InputError):
        raise InputError(found.problem, where=found.where, fix=found.fix)
    document: dict[str, Any] = found
    return document


@st.cache_data(max_entries=32, show_spinner="Analysing prefixes")
def _prefix_or_refusal(source: Source, block_size: int, best: bool, model: str) -> Any:
    loaded = load(source)
    try:
        if loaded.traffic.demand.segments > MAX_SEGMENTS:
            raise InputError(
                f"the prompts have {loaded.traffic.demand.segments:,} pieces, the dashboard takes"
                f" {MAX_SEGMENTS:,}",
                where="prefix analysis",
                fix="Use `kvsim prefix` on the command line, which has no such limit",
            )
        per_token = None if model == NO_MODEL else kv_bytes_per_token(get_model(model))
        document = prefix_curve(loaded.workload, block_size, best=best, bytes_per_token=per_token)
        return document | {"trace": loaded.label}
    except InputError as error:
        where = "block_size" if error.where == "block_size" else loaded.label
        return InputError(error.problem, where=where, fix=error.fix)


def _show_curve(loaded: Loaded, document: dict[str, Any], model: str) -> None:
    total, bound = document["prompt_tokens"], document["bound"]
    chart(
        prefix_figure(document),
        "prefix_curve",
        "Share of the prompt tokens that a prefix cache finds, over its capacity",
    )
    parts = ("hit", "never_seen", "rounding", "last_token")
    names = ("found", "never seen before", "lost to block rounding", "lost to the last-token rule")
    shares = ", ".join(
        f"{bound[f'{part}_tokens'] / total:.2%} {name}"
        for part, name in zip(parts, names, strict=True)
    )
    st.caption(
        md(
            f"One request at a time, in arrival order; blocks of {document['block_size']} tokens."
            f" Without eviction: {shares}. Nothing is evicted from"
            f" {document['no_eviction_blocks'] * document['block_size']:,} tokens on."
        )
    )
    with st.expander("The curve as a table"):
        header, rows = _curve_rows(document, model)
        table(header, rows, "prefix_rows")
    definitions(PREFIX_DEFINITIONS, "What the figures of the prefix cache mean")
    stem = _stem(loaded)
    left, middle, right, _ = st.columns(4)
    left.download_button(
        "Curve as CSV",
        lambda: prefix_csv(document),
        f"{stem}-prefix.csv",
        _MIME["csv"],
        key="prefix_csv",
        on_click="ignore",
        width="stretch",
    )
    middle.download_button(
        "Curve as JSON",
        lambda: json.dumps(document, indent=1),
        f"{stem}-prefix.json",
        "application/json",
        key="prefix_json",
        on_click="ignore",
        width="stretch",
    )
    with right:
        download(
            "Curve as HTML",
            f"{stem}-prefix.html",
            lambda: _prefix_page(loaded, document, model),
            key="prefix_html",
            wide=True,
        )
    if loaded.source.origin == "trace":
        extra = "" if model == NO_MODEL else f" --model {model}"
        st.code(
            f"kvsim prefix {loaded.source.name} --block-size {document['block_size']}{extra}",
            language="bash",
        )


def _prefix_page(loaded: Loaded, document: dict[str, Any], model: str) -> bytes:
    header, rows = _curve_rows(document, model)
    table = Table("The curve", tuple(header), tuple(map(tuple, rows)))
    notes = (loaded.label, f"Blocks of {document['block_size']} tokens.")
    drawn = {"Prompt tokens that a cache finds, over its capacity": prefix_figure(document)}
    return figures_html("What a prefix cache would find", drawn, notes, [table])


def _curve_rows(document: dict[str, Any], model: str) -> tuple[list[str], list[list[str]]]:
    header = ["capacity (tokens)", "blocks", "LRU hit", "evicted", "best hit"]
    if model != NO_MODEL:
        header.append(f"GiB of KV ({model})")
    rows = []
    for row in document["capacities"]:
        best = row["best_hit_rate"]
        cells = [
            f"{row['tokens']:,}",
            f"{row['blocks']:,}",
            f"{row['lru']['hit_rate']:.2%}",
            f"{row['lru']['evicted_tokens'] / document['prompt_tokens']:.2%}",
            "not computed" if best is None else f"{best:.2%}",
        ]
        rows.append([*cells, f"{row['gib']:,.2f}"] if model != NO_MODEL else cells)
    return header, rows


def show_exports(loaded: Loaded) -> None:
    """Figures as CSV, requests as Parquet, a scenario that runs them."""
    st.subheader("Export")
    stem, traffic = _stem(loaded), loaded.traffic
    left, middle = st.columns(2)
    models, gpus = list_models(), list_gpus()
    model = left.selectbox(
        "Model of the scenario",
        models,
        index=models.index("llama-3-8b"),
        key="run_model",
        bind=BIND,
    )
    gpu = middle.selectbox(
        "GPU of the scenario", gpus, index=gpus.index("h100"), key="run_gpu", bind=BIND
    )
    first, second, third, fourth = st.columns(4)
    first.download_button(
        "Figures as CSV",
        lambda: traffic_csv(traffic),
        f"{stem}-figures.csv",
        _MIME["csv"],
        key="csv",
        on_click="ignore",
        width="stretch",
    )
    second.download_button(
        "Requests as Parquet",
        lambda: requests_parquet(traffic.demand),
        f"{stem}-requests.parquet",
        _MIME["parquet"],
        key="parquet",
        on_click="ignore",
        width="stretch",
    )
    with fourth:
        download(
            "Figures as HTML", f"{stem}-figures.html", lambda: _page(loaded), key="html", wide=True
        )
    with guarded():
        about = f"Requests of {loaded.source.name} on one {gpu}"
        text = starter_scenario(workload_section(loaded), model=model, gpu=gpu, about=about)
        third.download_button(
            "Scenario as YAML",
            text,
            f"{stem}.yaml",
            _MIME["yaml"],
            key="yaml",
            on_click="ignore",
            width="stretch",
        )
        beside = " and the trace beside it" if loaded.source.origin == "upload" else ""
        with st.expander("The scenario"):
            st.code(text, language="yaml")
            st.caption(md(f"Run it on the page Run, or with `kvsim run {stem}.yaml`{beside}."))


def _page(loaded: Loaded) -> bytes:
    titles = {
        "arrivals": "Arrivals",
        "lengths": "Lengths",
        "density": "Output against prompt",
        "gaps": "Gaps",
        "sessions": "Sessions",
    }
    drawn = {titles[name]: one for name, one in _figures(loaded.source).items()}
    table = Table("All figures", _FIGURE_HEADER, tuple(_figure_rows(loaded.traffic)))
    return figures_html("Requests of a trace", drawn, [loaded.label], [table])


def _stem(loaded: Loaded) -> str:
    """A file name without surprises."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in loaded.source.name)[:60]
