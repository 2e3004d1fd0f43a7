"""A start-up log beside what `kvsim fit` predicts: the first part of the page Recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.capacity_inputs import model_of
from apps.dashboard.downloads import download_kinds
from apps.dashboard.ui import chart, definitions, guarded, md, table
from apps.dashboard.upload_control import (
    choose,
    remember,
    under_name,
    upload_control,
    warn_if_gone,
)
from kvsim.catalog import Model, get_gpu, list_gpus, list_models
from kvsim.errors import InputError
from kvsim.planning.audit import Audit, Check, audit
from kvsim.planning.beside_log import Beside, BesideLog, beside_document, beside_log, gpus_of_log
from kvsim.planning.document import DEFINITIONS
from kvsim.planning.from_log import audit_document, model_of_log
from kvsim.planning.log_csv import log_csv, log_parquet
from kvsim.report.compare_document import Table
from kvsim.report.figures.beside import Predicted, predicted_figure
from kvsim.report.figures_page import figures_html
from kvsim.startup_logs import Found, StartupLog, read_startup_log

LOGS_MODEL = "the log's own"
_CHECK_HEADER = ("figure", "unit", "printed", "may be", "agrees", "line", "because")
_PREDICTION_HEADER = (
    *("figure", "unit", "printed", "predicted"),
    *("80 % interval", "difference", "inside", "line"),
)
_LONGEST = 120
"""Characters shown of a text from a log."""


def show_logs() -> None:
    """Upload, settings, checks and prediction."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        upload_id = upload_control(
            "log",
            "A server's output from its start (vLLM, SGLang, TensorRT-LLM, llama.cpp)",
            "log",
            help="At the log level INFO or finer. At most 20 MiB; what follows a start is traffic.",
        )
    if upload_id is None:
        st.info(
            "Drop in what a server printed while it started: its settings and memory figures are"
            " read, checked against each other, and laid beside what `kvsim fit` predicts for them."
            " The command line does the same checks: `kvsim fit --from-log FILE`."
        )
        return
    upload = uploads.kept(here().uploads, upload_id)
    log = _log(upload_id, upload.name)
    with right:
        model, gpu = _model_control(log), _gpu_control(log, upload_id)
    found = audit(log, model)
    beside, error = _prediction(found, gpu)
    _show_start(found)
    _show_checks(found)
    _show_prediction(beside, error, gpu)
    _show_readings(found)
    _exports(found, beside)
    definitions(DEFINITIONS)


def _log(upload_id: str, name: str) -> StartupLog:
    try:
        log: StartupLog = _read_log(upload_id)
    except InputError as error:
        raise under_name(error, name) from None
    return log


@st.cache_resource(max_entries=8, show_spinner="Reading the log")
def _read_log(upload_id: str) -> Any:
    path = uploads.kept(here().uploads, upload_id).path
    return read_startup_log(path, max_bytes=uploads.MAX_BYTES["log"])


def _model_control(log: StartupLog) -> Model | None:
    kept = uploads.kept_of_kind(here().uploads, "config")
    options = [LOGS_MODEL, *list_models(), *(one.upload_id for one in kept)]
    chosen = choose(
        "Model",
        options,
        "log_model",
        "model",
        help="The catalogue, and each config.json that was uploaded on the page Capacity.",
    )
    if chosen is None:
        return None
    if chosen != LOGS_MODEL:
        model, _ = model_of(chosen)
        return model
    remember("log_model", None)
    model_found = model_of_log(log)
    said = "names no model of the catalogue: choose it" if model_found is None else "names"
    st.caption(f"The log {said}" + (f" {md(model_found.name)}" if model_found else ""))
    return model_found


def _gpu_control(log: StartupLog, upload_id: str) -> str | None:
    near, names = gpus_of_log(log), list_gpus()
    if st.session_state.get("gpu_is_of") != upload_id:
        is_first = "gpu_is_of" not in st.session_state
        asked = st.query_params.get("log_gpu") if is_first else None
        if asked:
            warn_if_gone("log_gpu", names, "GPU")
        usual = near[0] if near else None
        st.session_state["gpu_is_of"] = upload_id
        st.session_state["log_gpu"] = asked if asked in names else None if asked else usual
    gpu: str | None = st.selectbox(
        "GPU",
        names,
        index=None,
        key="log_gpu",
        placeholder="Choose one to predict the start",
        persist_state="page",
        help="Logs do not name it.",
    )
    remember("log_gpu", gpu)
    if near:
        st.caption(f"About as much memory as the log prints: {md(', '.join(near))}")
    return gpu


def _prediction(found: Audit, gpu: str | None) -> tuple[BesideLog | None, InputError | None]:
    if gpu is None or found.model is None:
        return None, None
    try:
        return beside_log(found, found.model, get_gpu(gpu)), None
    except InputError as error:
        return None, error


def _show_start(found: Audit) -> None:
    log = found.log
    st.subheader("What the log says")
    st.markdown(md(_said(found)))
    if log.refusal is not None:
        st.warning(md(f"Line {log.refusal.line:,}: the server refused: {log.refusal.kind}"))
    if log.cut:
        st.warning("The log is longer than what is read: its end was left out")


def _said(found: Audit) -> str:
    log = found.log
    version = f" {log.version}" if log.version else ""
    engine = f", engine {log.engine}" if log.engine else ""
    rules = f", rules of {found.release.name}" if found.release else ""
    several = f"; start-up {log.starts} of {log.starts}" if log.starts > 1 else ""
    return f"{log.server}{version}{engine}{rules}{several}; {log.lines:,} lines"


def _show_checks(found: Audit) -> None:
    agree = sum(check.agrees for check in found.checks)
    text = f"{agree:,} of {len(found.checks):,} figures agree with the others"
    if not found.checks:
        st.info("Nothing here can be checked against anything else")
    elif agree == len(found.checks):
        st.success(text)
    else:
        st.error(f"{text}: figures of this log contradict each other, or the model is another")
    if found.checks:
        ordered = sorted(found.checks, key=lambda check: check.agrees)
        table(_CHECK_HEADER, [_check_row(check) for check in ordered], "checks")
    for note in found.notes:
        st.caption(md(note))


def _show_prediction(beside: BesideLog | None, error: InputError | None, gpu: str | None) -> None:
    st.subheader("Beside the prediction")
    if error is not None:
        with guarded():
            raise error
    if beside is None:
        what = "GPU" if gpu is None else "model"
        st.info(f"Choose a {what} to lay the prediction of `kvsim fit` beside the log")
        return
    inside = sum(row.inside for row in beside.figures)
    started = "was refused" if beside.refused else "was not refused in this log"
    st.markdown(
        md(
            f"{inside:,} of {len(beside.figures):,} printed figures are within the 80 % interval."
            f" The prediction: {beside.verdict}; the server {started}."
        )
    )
    table(_PREDICTION_HEADER, [_prediction_row(row) for row in beside.figures], "prediction")
    drawn = _drawn(beside)
    if drawn:
        alt = "Printed sizes beside the predicted ones and their 80 % intervals, in GiB."
        chart(drawn, "predicted", alt)
    asked = ", ".join(f"{name} = {value}" for name, value in beside.settings.items())
    st.caption(md(f"Asked of the prediction: {asked or 'defaults only'}"))
    for note in beside.notes:
        st.caption(md(note))


def _check_row(check: Check) -> tuple[str, ...]:
    return (
        check.what,
        check.unit,
        _number(check.printed),
        _span(check.low, check.high),
        "✓ agrees" if check.agrees else "✗ DOES NOT AGREE",
        f"{check.line:,}",
        check.how,
    )


def _drawn(beside: BesideLog) -> Mapping[str, Any] | None:
    drawn = [row for row in beside.figures if row.unit == "GiB"]
    rows = [Predicted(_named(r.name), r.printed, r.predicted, r.low, r.high) for r in drawn]
    return predicted_figure(rows, "GiB") if rows else None


def _prediction_row(row: Beside) -> tuple[str, ...]:
    return (
        _named(row.name),
        row.unit,
        _number(row.printed),
        _number(row.predicted),
        _span(row.low, row.high),
        _number(row.difference, sign="+"),
        "✓ inside" if row.inside else "✗ outside",
        f"{row.line:,}",
    )


def _show_readings(found: Audit) -> None:
    with st.expander("Every setting and figure, with its line"):
        for title, rows, key in (
            ("Settings", found.log.settings, "settings"),
            ("Figures", found.log.figures, "figures"),
        ):
            st.markdown(f"**{title}**")
            table(("name", "value", "unit", "line", "of several"), _readings(rows), key)


def _readings(rows: Mapping[str, Found]) -> list[tuple[str, ...]]:
    return [
        (name, _text(one.value), one.unit, f"{one.line:,}", one.rule) for name, one in rows.items()
    ]


def _exports(found: Audit, beside: BesideLog | None) -> None:
    document = {
        "log": audit_document(found),
        "prediction": None if beside is None else beside_document(beside),
    }
    makers = {
        "csv": lambda: log_csv(found, beside).encode(),
        "json": lambda: json.dumps(document, indent=1).encode(),
        "parquet": lambda: log_parquet(found, beside),
        "html": lambda: _page(found, beside),
    }
    download_kinds("startup-log", makers, "log")


def _page(found: Audit, beside: BesideLog | None) -> bytes:
    checks = tuple(map(_check_row, found.checks))
    tables = [Table("Checks", _CHECK_HEADER, checks)]
    charts = {}
    if beside is not None:
        rows = tuple(map(_prediction_row, beside.figures))
        tables.append(Table("Beside the prediction", _PREDICTION_HEADER, rows))
        drawn = _drawn(beside)
        charts = {"Printed and predicted sizes": drawn} if drawn else {}
    notes = (_said(found), *found.notes, *(beside.notes if beside else ()))
    return figures_html("Start-up log", charts, notes, tables)


def _named(name: str) -> str:
    return name.replace("_", " ")


def _text(value: object) -> str:
    text = "".join(one if one.isprintable() else "?" for one in str(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _number(value: float, sign: str = "") -> str:
    if abs(value) >= 1000 or value == int(value):
        return f"{value:{sign},.0f}"
    return f"{value:{sign},.2f}" if abs(value) >= 1 else f"{value:{sign},.3f}"


def _span(low: float, high: float) -> str:
    return _number(low) if low == high else f"{_number(low)} to {_number(high)}"
