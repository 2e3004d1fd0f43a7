"""The parts of the page Validation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.downloads import download_kinds
from apps.dashboard.ui import BIND, chart, md, table
from apps.dashboard.upload_control import under_name
from gpu_backend.validate.figures import (
    free_figure,
    lockstep_figure,
    saturation_figure,
    step_error_figure,
)
from gpu_backend.validate.framework import framework_rows
from gpu_backend.validate.reader import read_validation
from gpu_backend.validate.tables import (
    BOUNDS,
    check_groups,
    checks_csv,
    checks_parquet,
    closed_rates,
    conditions,
    control_row,
    free_groups,
    free_rows,
    headline,
    load_name,
    profile_errors,
    sides,
    step_errors,
)
from kvsim.cost.profile import Profile, read_profile
from kvsim.errors import InputError
from kvsim.report.figures.style import names_once
from kvsim.report.text import plain

Document = Mapping[str, Any]
_SIDES = ("measured", "simulated", "difference", "95 % interval")
_SPREAD = ("median", "p90", "bias")


def document_of(path: Path, name: str) -> Document:
    """The validation in a file. Raises `InputError` under `name`."""
    try:
        document: Document = _read(str(path), path.stat().st_mtime_ns, name)
    except OSError:
        raise InputError("is not there any more", where=name) from None
    return document


@st.cache_resource(max_entries=8, show_spinner="Reading the validation")
def _read(path: str, written_ns: int, name: str) -> Any:
    return read_validation(Path(path), label=name)


def show_verdict(document: Document) -> None:
    """What held, what failed, and the bounds."""
    (st.error if document["failures"] else st.success)(md(headline(document), 2000))
    st.caption(md(f"Scenario {document['scenario']}, kvsim {document['kvsim_version']}"))
    rows = [row for _, _, group in check_groups(document["checks"]) for row in group]
    st.subheader("Bounds")
    table(("variant", "figure", "error", "bound", "result"), rows, "checks")
    stated = ", ".join(
        f"{BOUNDS.get(name, plain(name))} {100 * bound:.1f} %"
        for name, bound in document["bounds"].items()
    )
    st.caption(
        md(f"Stated: {stated}. Of step times, twice the noise is in force where it is more.")
    )


def show_variant(document: Document) -> None:
    """One variant: simulated against measured figure by figure, and step by step."""
    variants = document["variants"]
    names = dict(zip(names_once([plain(name, 60) for name in variants]), variants, strict=True))
    label = st.selectbox("Variant", list(names), key="variant", bind=BIND)
    st.subheader("Simulated against measured")
    _show_free(document, names[label], label)
    st.subheader("Errors by step")
    _show_steps(variants[names[label]]["lockstep"], label)


def _show_free(document: Document, variant: str, label: str) -> None:
    free = document["variants"][variant]["free"]
    if not free:
        st.info("Nothing ran free: the steps of a plan were timed elsewhere, one for one")
        return
    loads = {load_name(load): load for load in free}
    title = st.selectbox("Load", list(loads), key="load", bind=BIND)
    load = loads[title]
    ((conditions_of_load, _),) = free_groups({load: free[load]})
    st.caption(md(conditions_of_load))
    table(("figure", *_SIDES, "bound"), free_rows(document, variant, load), "free_table")
    alt = f"KV usage of both sides, {label}, {title}."
    chart(free_figure(free[load]), "free_chart", alt)


def show_rates(document: Document) -> None:
    """Saturation rates of all variants and their ratios, where there are any."""
    rates = closed_rates(document["variants"])
    if not rates:
        return
    st.subheader("Saturation rates")
    chart(saturation_figure(rates), "rates", "Saturation rates of every variant, both sides.")
    if document["ratios"]:
        ratios = [(plain(name, 120), *sides(row)) for name, row in document["ratios"].items()]
        table(("ratio of saturation rates", *_SIDES), ratios, "ratios")


def _show_steps(steps: Document, label: str) -> None:
    drawn = len(steps["points"])
    st.caption(
        md(
            f"{steps['steps']:,} steps of {label}, {drawn:,} of them drawn, each measured"
            f" {steps['repeats']:,} times; {steps['preemptions']:,} preemptions. The band is the"
            " bound of the median, dotted lines that of the 90th percentile; outliers past the axis"
            " are not drawn."
        )
    )
    chart(step_error_figure(steps), "step_errors", "Relative error of each step's predicted time.")
    with st.expander("Predicted against measured times, and how errors are distributed"):
        alt = "Left: predicted over measured step times; right: share of steps by error."
        chart(lockstep_figure(steps), "lockstep", alt)
    header = ("steps of", "steps", *_of("error"), *_of("noise"), *_of("bound")[:2])
    table(header, [(kind, *cells) for kind, cells in step_errors(steps)], "step_table")


def _of(what: str) -> tuple[str, ...]:
    return tuple(f"{what}, {name}" for name in _SPREAD)


def show_controls(document: Document) -> None:
    """Simulations that are wrong on purpose, and whether the bounds noticed."""
    st.subheader("Negative controls")
    st.caption(
        "Simulations that are wrong on purpose, judged against the same measurements: a validation"
        " that lets them pass would let anything pass."
    )
    found = [control_row(one, document["checks"]) for one in document["controls"]]
    rows = [
        (
            plain(one["name"]),
            "✓ noticed" if one["noticed"] else "✗ NOT NOTICED",
            f"{one['broken']:,}",
            plain(one["what"], 300),
            "".join(one["rows"][:1]),
        )
        for one in found
    ]
    header = ("control", "noticed", "bounds broken", "what was wrong", "for example")
    table(header, rows, "controls")


def show_conditions(document: Document) -> None:
    """Device, profile and how it was measured."""
    st.subheader("Profile and conditions")
    _facts(conditions(document))
    st.caption("Errors of the profile on the batches of its own calibration")
    table(
        ("batches of the calibration", "count", *_SPREAD),
        [(label, *cells) for label, cells in profile_errors(document["profile"])],
        "profile_errors",
    )


def _facts(rows: Iterable[tuple[str, str]]) -> None:
    st.markdown("  \n".join(f"**{md(label)}**: {md(plain(text, 500))}" for label, text in rows))


def show_framework(document: Document) -> None:
    """The traffic in a framework's own allocator, where the validation has it."""
    rows = framework_rows(document["framework"])
    if not rows:
        return
    st.subheader("Without a memory manager")
    header = ("way of allocating, allocator", "allocated, peak (MiB)", "reserved, peak (MiB)")
    table(
        (*header, "idle, mean (% of reserved)", "refused (requests)"),
        [(plain(name), *map(plain, cells)) for name, cells in rows],
        "framework",
    )


def show_exports(document: Document, name: str) -> None:
    """HTML page, checks as CSV and Parquet, everything as JSON."""
    makers = {
        "html": lambda: _page(document),
        "csv": lambda: checks_csv(document).encode(),
        "parquet": lambda: checks_parquet(document),
        "json": lambda: json.dumps(document).encode(),
    }
    download_kinds(name, makers, "validation")


def _page(document: Document) -> bytes:
    from gpu_backend.validate.page import validation_page

    return validation_page(document).encode("utf-8", "backslashreplace")


def profile_of(upload_id: str) -> Profile:
    """An uploaded profile. Raises `InputError` under its own name."""
    upload = uploads.kept(here().uploads, upload_id)
    try:
        return read_profile(upload.path)
    except InputError as error:
        raise under_name(error, upload.name) from None


def show_profile(profile: Profile) -> None:
    """Where it is from, its errors and its constants."""
    document = profile.document
    rows = [
        ("device", profile.device),
        ("mode", str(document["device"]["mode"])),
        ("model", profile.model),
        ("measured", str(document.get("measured_at") or "at an unknown time")),
        ("layers measured", ", ".join(map(str, document["measured_layers"]))),
        ("profile (SHA-256)", profile.sha256),
        *(
            (f"limit: {name}", f"{limit:,}")
            for name, limit in document["limits"].items()
            if isinstance(limit, int)
        ),
    ]
    _facts(rows)
    st.markdown("**Errors on its own batches**")
    table(
        ("batches", "count", *_SPREAD),
        [(label, *cells) for label, cells in profile_errors(document)],
        "errors_of_profile",
    )
    st.markdown("**Constants**")
    table(("layout", "constant", "seconds"), constant_rows(profile), "constants")
    for name, size, rows_of in (
        ("tokens", "tokens computed in a step", profile.constants.tokens),
        ("rows", "sequences that sample a token", profile.constants.rows),
    ):
        with st.expander(f"Table of {size} ({len(rows_of):,} sizes)"):
            table((size, "ms"), [(f"{n:,}", f"{1e3 * s:.5g}") for n, s in rows_of], name)


def constant_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """Layout, name and value of every constant, in the order of the file."""
    return [
        (plain(layout), name, f"{value:.4g}")
        for layout, found in profile.constants.layouts.items()
        for name, value in found._asdict().items()
    ]
