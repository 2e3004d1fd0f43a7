"""The form of the page Run: settings to change, each of them an option of `kvsim run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.run_source import Checked, Source, Traffic, traffic_ids, traffic_of
from apps.dashboard.ui import BIND, md
from apps.dashboard.upload_control import keep_upload, show_refused, warn_if_gone
from kvsim.catalog import list_gpus, list_models
from kvsim.scenario import Scenario
from kvsim.scenario.traffic import ChatSettings, LawWorkload, PresetWorkload, Sosp23Workload

_MOST = 100_000_000


def form(base: Checked) -> tuple[list[str], Traffic | None]:
    """Draw the form; the options it asks for, in their order, and what replaces the traffic.

    What is left empty is as the scenario says. Raises `InputError` for an upload that is no trace.
    """
    scenario = base.scenario
    first, second, third = st.columns(4), st.columns(4), st.columns(5)
    traffic = _traffic_control(first[0])
    options = [] if traffic is None else [traffic.override]
    options += _amount(first, scenario, traffic)
    hardware = scenario.hardware if scenario else None
    says = f"as the scenario says: {scenario.model or 'none'}" if scenario else "as it says"
    options += _chosen(second[0], "Model", "smodel", "model", list_models(), says)
    says = f"as the scenario says: {hardware.gpu if hardware else 'none'}"
    options += _chosen(second[1], "GPU", "sgpu", "hardware.gpu", list_gpus(), says)
    options += _number(
        second[2],
        "GPUs (tensor parallel)",
        "sgpus",
        "hardware.count",
        (1, 1024),
        hardware.count if hardware else None,
    )
    options += _number(
        second[3],
        "Block size (tokens)",
        "sblock",
        "memory.block_size",
        (1, 65_536),
        getattr(scenario.memory, "block_size", None) if scenario else None,
    )
    return options + _engine(third, scenario), traffic


def command_line(source: Source, options: Sequence[str]) -> str:
    """The same run on the command line, to paste into a shell."""
    sets = [part for option in options for part in ("--set", option)]
    return shlex.join(["kvsim", "run", source.as_argument, *sets])


def _traffic_control(place: Any) -> Traffic | None:
    with place:
        known = traffic_ids()
        warn_if_gone("traffic", known, "traffic")
        names = {one.upload_id: one.name for one in uploads.kept_of_kind(here().uploads, "trace")}
        chosen = st.selectbox(
            "Traffic",
            known,
            index=None,
            key="traffic",
            bind=BIND,
            placeholder="as the scenario says",
            help="A preset (a generator like a published trace), a published trace of the folder of"
            " traces, or an uploaded trace.",
        )
        if chosen is None:
            return None
        if chosen not in names:
            return traffic_of(chosen, drop_bad_rows=False)
        st.caption(f"uploaded as {md(names[chosen])}")
        drop = st.checkbox(
            "Drop bad rows", key="drop_bad", bind=BIND, help="Count them instead of stopping."
        )
        return traffic_of(chosen, drop_bad_rows=drop)


def trace_upload() -> None:
    """Upload a trace and choose it as the traffic; before the form."""
    st.file_uploader(
        f"A trace: CSV, JSON lines or Parquet, at most {uploads.MAX_TRACE_ROWS:,} rows",
        type=list(uploads.TRACE_SUFFIXES),
        key="trace_file",
        max_upload_size=uploads.MAX_BYTES["trace"] >> 20,
        on_change=keep_upload,
        args=("trace", "trace_file", "traffic"),
    )
    show_refused("trace_file")


def _amount(places: Sequence[Any], scenario: Scenario | None, traffic: Traffic | None) -> list[str]:
    """How many requests, how dense, under how many seeds."""
    workload = scenario.workload if scenario and traffic is None else None
    fixed = isinstance(workload, Sosp23Workload)
    label, key = "Requests", "workload.limit"
    if isinstance(workload, ChatSettings):
        label, key = "Conversations", "workload.chat.conversations"
    elif isinstance(workload, LawWorkload | PresetWorkload) or (
        traffic is not None and traffic.override.startswith("workload={preset")
    ):
        key = "workload.num_requests"
    known = getattr(workload, "num_requests", None) or getattr(workload, "limit", None)
    if isinstance(workload, ChatSettings):
        known = workload.chat.conversations
    helped = "The traffic of this recipe has a rate and a duration of its own: edit it as YAML."
    count = _number(
        places[1],
        label,
        "srequests",
        key,
        (1, _MOST),
        known,
        disabled=fixed,
        help=helped if fixed else "At most so many; of a generator exactly so many.",
    )
    rate = _number(
        places[2],
        "Arrival rate (times)",
        "srate",
        "workload.rate_scale",
        (0.001, 1000.0),
        getattr(workload, "rate_scale", 1.0),
        disabled=fixed,
        help=helped if fixed else "2 makes requests arrive twice as densely.",
    )
    with places[3]:
        seeds = st.number_input(
            "Seeds",
            1,
            100,
            None,
            key="sseeds",
            bind=BIND,
            placeholder=_placeholder(len(scenario.seeds) if scenario else None),
            help="Runs with the seeds 0, 1, ...; several give each figure an interval.",
        )
    listed = ", ".join(map(str, range(seeds or 0)))
    return [*count, *rate, *([f"seeds=[{listed}]"] if seeds else [])]


def _engine(places: Sequence[Any], scenario: Scenario | None) -> list[str]:
    engine = scenario.engine if scenario else None
    rows = (
        ("max_num_seqs", "sseqs", (1, 1_000_000)),
        ("max_num_batched_tokens", "stokens", (1, _MOST)),
        ("max_model_len", "slen", (2, _MOST)),
        ("gpu_memory_utilization", "sutil", (0.01, 1.0)),
    )
    options = []
    for place, (name, key, limits) in zip(places, rows, strict=False):
        options += _number(
            place, name, key, f"engine.{name}", limits, getattr(engine, name) if engine else None
        )
    says = (
        "as it says"
        if engine is None
        else f"as the scenario says: {str(engine.enable_prefix_caching).lower()}"
    )
    return options + _chosen(
        places[4],
        "Prefix caching",
        "sprefix",
        "engine.enable_prefix_caching",
        ["true", "false"],
        says,
    )


def _number(
    place: Any,
    label: str,
    key: str,
    option: str,
    limits: tuple[float, float],
    known: float | None,
    *,
    disabled: bool = False,
    help: str | None = None,
) -> list[str]:
    with place:
        value = st.number_input(
            label,
            *limits,
            None,
            key=key,
            bind=BIND,
            placeholder=_placeholder(known),
            disabled=disabled,
            help=help or option,
        )
    return (
        []
        if value is None or disabled
        else [f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"]
    )


def _chosen(
    place: Any, label: str, key: str, option: str, choices: Sequence[str], says: str
) -> list[str]:
    with place:
        value = st.selectbox(
            label, choices, index=None, key=key, bind=BIND, placeholder=says, help=option
        )
    return [] if value is None else [f"{option}={value}"]


def _placeholder(known: float | None) -> str:
    return (
        "as the scenario says"
        if known is None
        else f"{known:,}"
        if isinstance(known, int)
        else f"{known:g}"
    )
