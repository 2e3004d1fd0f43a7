"""The sections of the page Fragmentation but the map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import streamlit as st

from apps.dashboard.cached import here
from apps.dashboard.downloads import download
from apps.dashboard.fragmentation_data import MAX_DRAWN, MAX_RUNS, Side, memory, sides
from apps.dashboard.places import run_folders
from apps.dashboard.run_exports import without_input
from apps.dashboard.ui import BIND, chart, guarded, md, table
from kvsim.report.binned import Binned, binned_table
from kvsim.report.compare import Comparison
from kvsim.report.compare_document import Document, Table, comparison_document
from kvsim.report.compare_html import comparison_html
from kvsim.report.compare_two import compare_two, differences_csv
from kvsim.report.export_parquet import table_parquet
from kvsim.report.figures import (
    Shares,
    extent_figure,
    memory_figure,
    term_bars_figure,
    waterfall_bars,
    waterfall_figure,
    whole_slots,
)
from kvsim.report.headline import extremes
from kvsim.report.term_shares import TermShare, shares_by_term, term_shares, terms_csv

Labelled = Mapping[str, Side]
"""Label in the charts -> side; with a single run the variant alone."""
_UNKNOWN, _BEFORE = "fragmentation unknown runs", "fragmentation runs before"


def choose_sides() -> Labelled:
    """The runs and variants of the page, at most `MAX_DRAWN`."""
    known = run_folders(here())
    _start_with_the_newest(list(known))
    left, right = st.columns(2)
    run_ids = left.multiselect(
        "Runs",
        list(known),
        key="run",
        bind=BIND,
        max_selections=MAX_RUNS,
        help="The newest first. Runs are made on the page Run, or come from --runs FOLDER.",
    )
    for run_id in st.session_state.get(_UNKNOWN, ()):
        st.warning(f"The link names a run that is not here: {md(run_id, 100)}")
    found: dict[str, Side] = {}
    for run_id in run_ids:
        with guarded():
            found |= {side.label: side for side in sides(run_id)}
    _follow_runs(run_ids, found)
    labels = right.multiselect(
        "Variants",
        list(found),
        default=list(found)[:MAX_DRAWN],
        key="shown",
        bind=BIND,
        max_selections=MAX_DRAWN,
    )
    single = len({found[label].run_id for label in labels}) == 1
    return {
        found[label].head.labels[found[label].variant] if single else label: found[label]
        for label in labels
    }


def _start_with_the_newest(run_ids: list[str]) -> None:
    """A link always names its runs: what is newest changes."""
    asked = st.query_params.get_all("run")
    unknown = [run_id for run_id in asked if run_id not in run_ids]
    if unknown:
        st.session_state[_UNKNOWN] = unknown[:MAX_RUNS]
    if "run" not in st.session_state and not asked and run_ids:
        st.query_params["run"] = run_ids[0]
        st.session_state["run"] = run_ids[:1]


def _follow_runs(run_ids: list[str], found: Mapping[str, Side]) -> None:
    """Where a run was added, its variants join those that are chosen."""
    before = st.session_state.get(_BEFORE)
    st.session_state[_BEFORE] = run_ids
    if before is None or before == run_ids or "shown" not in st.session_state:
        return
    st.session_state.pop(_UNKNOWN, None)
    kept = [label for label in st.session_state["shown"] if label in found]
    added = [label for label, side in found.items() if side.run_id not in before]
    st.session_state["shown"] = [*kept, *added][:MAX_DRAWN]


def read_series(labelled: Labelled) -> dict[str, Binned]:
    """The averages of every side that kept rows; a message for one that cannot be read."""
    found: dict[str, Binned] = {}
    without = []
    for label, side in labelled.items():
        with guarded():
            series = memory(side).series
            if series is None:
                without.append(label)
            else:
                found[label] = series
    if without:
        st.info(f"No rows were kept of {md(', '.join(without))}: there is nothing over time.")
    return found


def _window(labelled: Labelled) -> tuple[float, float | None] | None:
    """The measured time that all have in common."""
    windows = {side.head.window for side in labelled.values()}
    return windows.pop() if len(windows) == 1 else None


def _sampled(series: Mapping[str, Binned]) -> str:
    rows = max(one.rows for one in series.values())
    intervals = max(len(one.columns["running"]) for one in series.values())
    return (
        f"Down-sampled on the server: averages over {intervals} equal intervals of up to {rows:,}"
        " rows; what is shorter than an interval shows as its average. Of several seeds, the first."
    )


def show_time(labelled: Labelled, series: Mapping[str, Binned]) -> None:
    """Stacked memory of all sides on one clock."""
    st.subheader("Memory over time")
    if series:
        alt = "Share of the memory that each term takes up over simulated time, by variant"
        chart(memory_figure(series, _window(labelled)), "memory", alt)
        st.caption(md(f"Shares of the capacity over simulated time. {_sampled(series)}"))


def show_extents(labelled: Labelled, series: Mapping[str, Binned]) -> None:
    """Largest free extent and external fragmentation over time."""
    st.subheader("Free memory in one piece")
    if series:
        alt = "Largest free extent and external fragmentation in slots over simulated time"
        chart(extent_figure(series, _window(labelled)), "extents", alt)
        st.caption(
            md(
                "In slots, one token each. Every free block of a paged memory counts for its"
                f" largest extent; where nothing runs the line has a gap. {_sampled(series)}"
            )
        )


def show_terms(labelled: Labelled) -> None:
    """The five terms and their details, as bars and as a table."""
    st.subheader("Where the memory goes")
    shares = {label: shares_by_term(side.entry) for label, side in labelled.items()}
    terms = {label: term_shares(side.entry) for label, side in labelled.items()}
    known = {label: one for label, one in shares.items() if one is not None and terms[label]}
    missing = [label for label in labelled if label not in known]
    if missing:
        st.info(f"No step was measured of {md(', '.join(missing))}.")
    if known:
        alt = "Stacked bars: share of the memory of each term, averaged over time, by variant"
        chart(term_bars_figure(known), "terms", alt)
        _show_shares({label: terms[label] for label in known}, known)


def _show_shares(terms: Mapping[str, list[TermShare]], shares: Mapping[str, Shares]) -> None:
    names = [
        f"\N{EM SPACE}{one.label}" if one.detail else one.label
        for one in next(iter(terms.values()))
    ]
    columns = {"% of the capacity · slots": [*names, "capacity (slots)"]}
    for label, column in terms.items():
        cells = [f"{100 * one.share:.2f} % · {one.slots:,.1f}" for one in column]
        columns[label] = [*cells, f"{shares[label].capacity_slots:,}"]
    st.dataframe(columns, key="shares", hide_index=True, height="content")


def choose_pair(labelled: Labelled) -> tuple[str, str] | None:
    """Labels of two different sides to set against each other; None where they are not chosen."""
    st.subheader("From one to the other")
    by_name = {side.label: label for label, side in labelled.items()}
    names = list(by_name)
    if len(names) < 2:
        st.info("Choose two or more variants above to see what differs.")
        return None
    low, high = extremes([side.entry for side in labelled.values()])
    if low == high:
        low, high = 0, 1
    left, right = st.columns(2)
    base = left.selectbox("From", names, index=low, key="base", bind=BIND) or names[low]
    candidate = right.selectbox("To", names, index=high, key="other", bind=BIND) or names[high]
    if base == candidate:
        st.info("From and To are the same: choose two.")
        return None
    return by_name[base], by_name[candidate]


def show_pair(labelled: Labelled, pair: tuple[str, str]) -> Comparison:
    """Waterfall and signed differences of two sides."""
    base, candidate = (labelled[label] for label in pair)
    shares = [shares_by_term(side.entry) for side in (base, candidate)]
    if shares[0] is not None and shares[1] is not None:
        slots = [whole_slots(one.shares, one.capacity_slots) for one in shares if one]
        bars = waterfall_bars(slots[0], slots[1], pair)
        alt = "Bars from the live slots of one variant to those of the other, term by term"
        chart(waterfall_figure(bars, shares[1].capacity_slots), "waterfall", alt)
        st.caption(
            "Average slots, rounded to whole ones that add up. A use that gives up slots leaves"
            " them to live KV or to another use. Terms that are equal have no bar."
        )
    comparison = compare_two(base.chosen, candidate.chosen)
    for mismatch in comparison.mismatches:
        st.warning(f"Not comparable: {md(mismatch)}. Differences are shown all the same.")
    _show_document(comparison_document(comparison))
    return comparison


def _show_document(document: Document) -> None:
    for line in document.lines:
        st.caption(md(line))
    for place, block in enumerate(document.blocks):
        if isinstance(block, Table):
            st.markdown(f"**{md(block.title)}**")
            table(block.header, block.rows, f"differences{place}")
        else:
            st.markdown(md(block))


def show_exports(
    labelled: Labelled, series: Mapping[str, Binned], comparison: Comparison | None
) -> None:
    """Files with what the page shows; each is made when it is asked for."""
    st.subheader("Export")
    _scenarios(labelled)
    entries = [(side.run_id, side.variant, side.entry) for side in labelled.values()]
    places = iter(st.columns(4))
    with next(places):
        _download("Terms (CSV)", "terms.csv", "text/csv", lambda: b"".join(terms_csv(entries)))
    if series:
        with next(places):
            _download(
                "Over time (Parquet)",
                "memory-over-time.parquet",
                "application/vnd.apache.parquet",
                lambda: table_parquet(binned_table(series)),
            )
    if comparison is not None:
        with next(places):
            _download(
                "Differences (CSV)",
                "differences.csv",
                "text/csv",
                lambda: b"".join(differences_csv(comparison)),
            )
        with next(places):
            _download(
                "Differences (HTML)",
                "differences.html",
                "text/html",
                lambda: comparison_html(comparison_document(comparison)).encode(),
            )


def _scenarios(labelled: Labelled) -> None:
    """The resolved scenario of each run that is shown."""
    heads = {side.run_id: side.head for side in labelled.values()}
    places = [place for _ in range(-(-len(heads) // 4)) for place in st.columns(4)]
    for place, (run_id, head) in zip(places, heads.items(), strict=False):
        name = run_id.partition("~")[0]
        label = "Scenario (YAML)" if len(heads) == 1 else f"Scenario of {md(run_id, 100)} (YAML)"
        with place:
            download(
                label,
                f"{name}.yaml",
                partial(_scenario, run_id, head.run.scenario_text),
                key=f"scenario {run_id}",
                wide=True,
            )


def _scenario(run_id: str, text: str) -> bytes:
    return without_input(run_id, text).encode()


def _download(label: str, name: str, mime: str, content: Callable[[], bytes]) -> None:
    st.download_button(label, content, name, mime, key=name, on_click="ignore", width="stretch")
