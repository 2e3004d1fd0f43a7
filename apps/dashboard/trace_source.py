"""Where the requests of a page come from: a preset, a published trace, an upload, a generator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.trace_check import check_trace
from apps.dashboard.ui import BIND, md, table
from apps.dashboard.upload_control import choose, upload_control, warn_if_gone
from kvsim.errors import InputError
from kvsim.report.traffic import LENGTHS_RPS, Traffic, traffic_of, with_arrivals
from kvsim.scenario.build_workload import build_workload
from kvsim.scenario.loader import load_scenario
from kvsim.workload import (
    FORMATS,
    KNOWN_TRACES,
    PairLengths,
    ReadRules,
    RowCounts,
    TraceWorkload,
    Workload,
    find_trace,
    length_preset,
    list_length_presets,
    list_presets,
    preset,
)
from kvsim.workload.sniff import trace_kind
from kvsim.workload.source import content_sha256
from kvsim.workload.store import TRACES_VARIABLE

Origin = Literal["preset", "trace", "upload", "chat"]
CHAT = "chat-prefix-cache"
"""The shipped scenario whose conversations are offered: they share prefixes and need no file."""
MAX_REQUESTS = 200_000
MAX_PIECES = 10_000_000
"""Segments and beam parents of an upload that is held in the server's memory."""
_LENGTH_REQUESTS = 20_000
"""Of a preset that knows lengths only."""
MAX_SEGMENTS = 5_000_000
"""Segments of prompts that a prefix analysis takes here: about half a minute."""


class Source(NamedTuple):
    """What was chosen; equal sources hold the same requests."""

    origin: Origin
    name: str
    """A preset, a published trace, an upload's id, a scenario."""
    requests: int | None = None
    """Of a preset; None: as many as the trace behind it has."""
    seed: int = 0
    kind: str = "auto"
    drop: bool = False
    """Whether bad rows of an upload are counted instead of refused."""
    stamp: int = 0
    """When the file was written."""
    label: str = ""
    """What the owner of an upload calls it now."""


class Loaded(NamedTuple):
    """A source, read."""

    source: Source
    label: str
    """For people; it may be an upload's own name."""
    workload: Workload
    traffic: Traffic
    content_sha256: str | None
    """Of the file it came from, uncompressed."""


def choose_source() -> Source | None:
    """The controls, in the sidebar or wherever they are called; None where nothing is chosen."""
    controls = {"preset": _preset, "trace": _trace, "upload": _upload, "chat": _chat}
    origin = st.selectbox(
        "Requests from",
        list(controls),
        key="from",
        bind=BIND,
        help="A preset (a generator derived from a published trace), a published trace, an upload,"
        " or generated conversations.",
    )
    return controls[origin]()


def load(source: Source) -> Loaded:
    """Read a source; what was read before is kept, a refusal too.

    Raises `InputError` without the folder of the file in its text.
    """
    found = _load(source)
    if isinstance(found, InputError):
        raise InputError(found.problem, where=found.where, fix=found.fix)
    loaded: Loaded = found
    return loaded


def workload_section(loaded: Loaded) -> dict[str, Any]:
    """The section `workload` of a scenario with these requests; an upload lies beside it."""
    source, count = loaded.source, len(loaded.traffic.demand)
    named: dict[str, Any] = {source.origin: source.name}
    if source.origin == "chat":
        return load_scenario(CHAT).workload.model_dump(exclude_unset=True)
    if source.origin == "upload":
        named = {"path": loaded.label, "sha256": loaded.content_sha256}
    if loaded.traffic.demand.arrivals_ns is None:
        return _with_poisson(named, count)
    if source.origin == "preset":
        return {**named, "num_requests": count}
    if isinstance(loaded.workload, TraceWorkload) and source.origin == "upload":
        named["format"] = loaded.workload.kind
        if source.drop:
            named["on_bad_row"] = "drop"
    return named


def _with_poisson(lengths: dict[str, Any], count: int) -> dict[str, Any]:
    """Lengths with arrivals of their own."""
    arrivals = {"kind": "poisson", "rate_rps": LENGTHS_RPS}
    return {"lengths": lengths, "arrivals": arrivals, "num_requests": count}


def _preset() -> Source:
    names = [*list_presets(), *list_length_presets()]
    index = names.index("azure-conv-2023")
    warn_if_gone("like", names, "preset")
    name = st.selectbox("Preset", names, index=index, key="like", bind=BIND)
    left, right = st.columns(2)
    count = left.number_input(
        "Requests",
        2,
        MAX_REQUESTS,
        None,
        key="n",
        bind=BIND,
        placeholder="all",
        help="Left out, as many as the trace has from which the preset was derived"
        f" ({_LENGTH_REQUESTS:,} of a preset of lengths, which arrive at {LENGTHS_RPS:g}/s).",
    )
    seed = right.number_input("Seed", 0, 2**31 - 1, 0, key="tseed", bind=BIND)
    return Source("preset", name, requests=count, seed=int(seed))


def _trace() -> Source | None:
    there, wrong = _present(os.environ.get(TRACES_VARIABLE) or "", _stamps())
    absent = [name for name in KNOWN_TRACES if name not in there]
    chosen = choose("Trace", list(there), "trace", "trace")
    if not there:
        st.info(
            f"None of the published traces is in the folder ${TRACES_VARIABLE}".replace("$", r"\$")
        )
    for problem in wrong:
        st.warning(md(problem))
    if absent:
        with st.expander(f"{len(absent)} traces are not here: how to get them"):
            rows = [
                (
                    name,
                    KNOWN_TRACES[name].rows,
                    KNOWN_TRACES[name].licence,
                    KNOWN_TRACES[name].how_to_get,
                )
                for name in absent
            ]
            table(("trace", "rows", "licence", "how to get it"), rows, "absent_traces")
            st.caption(
                md(f"Put it in a folder and start the dashboard with {TRACES_VARIABLE}=FOLDER.")
            )
    return None if chosen is None else Source("trace", chosen, stamp=there[chosen])


def _chat() -> Source:
    st.caption(md(f"Conversations of the scenario {CHAT}: a generator, which needs no file."))
    seed = st.number_input("Seed", 0, 2**31 - 1, 0, key="tseed", bind=BIND)
    return Source("chat", CHAT, seed=int(seed))


def _upload() -> Source | None:
    upload_id = upload_control(
        "trace",
        "A trace: CSV, JSON lines or Parquet",
        "upload",
        types=uploads.TRACE_SUFFIXES,
        help=f"The text ones also as .gz. At most {uploads.MAX_TRACE_ROWS:,} rows and"
        f" {uploads.MAX_TRACE_BYTES >> 20} MiB once it is decompressed.",
    )
    if upload_id is None:
        return None
    kind = st.selectbox("Format", ["auto", *FORMATS], key="format", bind=BIND)
    drop = st.toggle("Drop bad rows", key="drop", bind=BIND)
    label = uploads.kept(here().uploads, upload_id).name
    return Source("upload", upload_id, kind=kind, drop=drop, label=label)


def _stamps() -> tuple[int, ...]:
    """Changes whenever a file of the folder of traces does."""
    folder = os.environ.get(TRACES_VARIABLE)
    if not folder:
        return ()
    names = [
        name for one in KNOWN_TRACES.values() for name in (one.file_name, f"{one.file_name}.gz")
    ]
    return tuple(_written_ns(Path(folder) / name) for name in names)


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@st.cache_data(max_entries=4, show_spinner="Looking for traces")
def _present(folder: str, stamps: tuple[int, ...]) -> tuple[dict[str, int], list[str]]:
    """Trace -> when it was written, and what is wrong with files of other content."""
    there, wrong = {}, []
    for name in KNOWN_TRACES:
        try:
            path = find_trace(name, {TRACES_VARIABLE: folder})
        except InputError as error:
            wrong.append(f"{name}: {error.problem}")
            continue
        if path is not None:
            there[name] = _written_ns(path)
    return there, wrong


@st.cache_resource(max_entries=4, show_spinner="Reading the requests")
def _load(source: Source) -> Any:
    """`Loaded`, or the `InputError` that says why not."""
    path, label = None, source.label or source.name
    try:
        if source.origin == "upload":
            path = uploads.kept(here().uploads, source.name).path
        elif source.origin == "trace":
            path = find_trace(source.name)
        workload, counts = _workload(source, path)
        traffic = traffic_of(workload, counts=counts)._replace(source=label)
        sha256 = None if path is None else content_sha256(path, _rules(source))
        return Loaded(source, label, workload, traffic, sha256)
    except InputError as error:
        where = error.where or ""
        if path is not None:
            where = where.replace(str(path), label)
        return InputError(error.problem, where=where or None, fix=error.fix)


def _rules(source: Source) -> ReadRules:
    return ReadRules(
        on_bad_row="drop" if source.drop else "error",
        max_rows=uploads.MAX_TRACE_ROWS,
        max_bytes=uploads.MAX_TRACE_BYTES,
        way_to_drop="the box Drop bad rows",
    )


def _checked_kind(source: Source) -> str:
    """The format of an upload that the server may read: a process of limits has read it before."""
    upload = uploads.kept(here().uploads, source.name)
    facts = check_trace(upload, kind=source.kind, drop_bad_rows=source.drop, lengths=True)
    if facts.pieces > MAX_PIECES:
        raise InputError(
            f"has {facts.pieces:,} chunk ids, forks and beam parents, the limit of this page is"
            f" {MAX_PIECES:,}",
            where=upload.name,
            fix="Cut it, or use the command line, which has no such limit",
        )
    return facts.kind


def _workload(source: Source, path: Path | None) -> tuple[Workload, RowCounts | None]:
    """The requests; the rows behind them where only their lengths mean something."""
    if path is not None:
        rules = _rules(source)
        kind = (
            _checked_kind(source) if source.origin == "upload" else trace_kind(path, "auto", rules)
        )
        if FORMATS[kind].has_arrivals:
            return TraceWorkload(path, format=kind, rules=rules), None
        pairs = PairLengths(path, format=kind, rules=rules)
        return with_arrivals(pairs, len(pairs.prompt_tokens)), pairs.counts
    if source.origin == "chat":
        return build_workload(load_scenario(CHAT).workload, seed=source.seed).workload, None
    if source.name in list_length_presets():
        count = source.requests or _LENGTH_REQUESTS
        lengths = length_preset(source.name)
        return with_arrivals(lengths, count, source.seed), RowCounts(count, count)
    if source.origin == "preset":
        return preset(source.name, num_requests=source.requests, seed=source.seed), None
    raise InputError(
        f"the trace {source.name} is not here any more", where="trace", fix="Choose another one"
    )
