"""A Chrome trace of requests and steps, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsim.errors import InputError
from kvsim.report.export_source import (
    NS_PER_S,
    Export,
    Ints,
    Source,
    column,
    nanoseconds,
    request_times,
    sources,
)
from kvsim.report.text import figure
from kvsim.results.read_run import Run

MAX_REQUESTS = 20_000
MAX_STEPS = 20_000
"""In a whole trace, shared equally by variants and seeds: about 30 MB of JSON."""

_STEPS_THREAD, _REJECTED_THREAD, _FIRST_LANE = 1, 2, 3
_MAX_NAME = 200
_TERMS = ("live", "reservation", "internal", "external", "usable_free")


class _Event(NamedTuple):
    start_ns: int
    minus_duration_ns: int
    """Orders what starts together: the outer slice first."""
    rank: int
    fields: dict[str, Any]


class _Thinned(NamedTuple):
    """How many rows one event stands for."""

    requests: int
    steps: int


def perfetto_export(run: Run, variants: Sequence[str]) -> Export:
    """One process per variant and seed; raises `InputError` when the run kept no rows."""
    for name in variants:
        if not run.keeps_rows(name):
            raise InputError(
                f"the run kept no rows of {name!r}, so there is nothing to trace",
                where=str(run.path),
                fix="Run the scenario again with record.mode: steps.",
            )
    shares = len(variants) * len(run.seeds)
    events: list[_Event] = []
    names: list[dict[str, Any]] = []
    thinned: dict[str, _Thinned] = {}
    for process, source in enumerate(sources(run, variants), 1):
        every = thinned[source.label] = _Thinned(
            _every(source.requests, MAX_REQUESTS // shares),
            _every(source.steps, MAX_STEPS // shares),
        )
        own, lanes = _events(source, process, every)
        events += own
        names += _names(source, process, lanes)
    events.sort(key=lambda event: event[:3])
    notes = _notes(thinned)
    other = {
        "kvsim_version": run.summary["kvsim_version"],
        "scenario": run.summary["scenario"],
        "notes": [_PHASES, *notes],
    }
    return Export([("", _document(names + [event.fields for event in events], other))], notes)


_PHASES = (
    "A request is queued until it is scheduled first, then in prefill until its first token, then "
    "in decode. When it was preempted is not recorded: `preemptions` counts how often, and the "
    "time lost is part of the phase."
)


def _every(table: Any, limit: int) -> int:
    return 1 if table is None else -(-table.num_rows // max(limit, 1)) or 1


def _notes(thinned: Mapping[str, _Thinned]) -> list[str]:
    requests: dict[int, list[str]] = {}
    steps: dict[int, list[str]] = {}
    for label, every in thinned.items():
        requests.setdefault(every.requests, []).append(label)
        steps.setdefault(every.steps, []).append(label)
    return [
        f"{', '.join(labels)}: 1 of {every} requests is shown, in the order of arrival"
        for every, labels in requests.items()
        if every > 1
    ] + [
        f"{', '.join(labels)}: a slice stands for up to {every} steps, and counters are their "
        "averages weighted by duration"
        for every, labels in steps.items()
        if every > 1
    ]


def _document(events: Sequence[dict[str, Any]], other: dict[str, Any]) -> Iterator[bytes]:
    head = json.dumps({"displayTimeUnit": "ms", "otherData": other})
    yield head[:-1].encode() + b', "traceEvents": [\n'
    for start in range(0, len(events), 1000):
        batch = ",\n".join(
            json.dumps(event, separators=(",", ":")) for event in events[start : start + 1000]
        )
        yield (",\n" if start else "").encode() + batch.encode()
    yield b"\n]}\n"


def _names(source: Source, process: int, lanes: int) -> Iterator[dict[str, Any]]:
    yield _name("process_name", process, 0, source.label)
    threads = {_STEPS_THREAD: "steps", _REJECTED_THREAD: "rejected"}
    threads |= {_FIRST_LANE + lane: f"requests {lane + 1}" for lane in range(lanes)}
    for thread, name in threads.items():
        yield _name("thread_name", process, thread, name)
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": process,
            "tid": thread,
            "args": {"sort_index": thread},
        }


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": _short(text)}}


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME else text[: _MAX_NAME - 1] + "…"


def _slice(
    name: str, start_ns: int, end_ns: int, place: tuple[int, int], rank: int, **args: object
) -> _Event:
    duration = end_ns - start_ns
    fields = {
        "ph": "X",
        "name": _short(name),
        "pid": place[0],
        "tid": place[1],
        "ts": start_ns / 1000,
        "dur": duration / 1000,
    }
    return _Event(start_ns, -duration, rank, fields | ({"args": args} if args else {}))


def _events(source: Source, process: int, thinned: _Thinned) -> tuple[list[_Event], int]:
    events = [] if source.steps is None else list(_steps(source.steps, process, thinned.steps))
    order = np.argsort(column(source.requests, "arrival_s"), kind="stable")
    chosen = source.requests.take(order[:: thinned.requests])
    times = request_times(chosen)
    end_ns = round((figure(source.entry, "duration_s") or 0) * NS_PER_S)
    lanes = _Lanes()
    rows = zip(chosen.to_pylist(), *(values.tolist() for values in times), strict=True)
    for row, arrived, scheduled, first, finished in rows:
        if row["outcome"] == "rejected":
            events.append(_rejection(row, arrived, process))
            continue
        last = max(finished, first, scheduled, arrived)
        if finished < 0:  # still there when the run ended
            last = max(last, end_ns)
        place = (process, _FIRST_LANE + lanes.take(arrived, last))
        details = {
            name: value
            for name, value in row.items()
            if name not in ("request_id", "arrival_s", "first_token_s", "finish_s")
            and value is not None
        }
        events.append(_slice(row["request_id"], arrived, last, place, 0, **details))
        # A moment not reached is -1; so is the start of whatever would follow it.
        starts = {"queued": arrived, "prefill": scheduled, "decode": first}
        ends = [moment if moment >= 0 else last for moment in (scheduled, first, last)]
        for (phase, start), end in zip(starts.items(), ends, strict=True):
            if start >= 0 and end > start:
                events.append(_slice(phase, start, end, place, 1))
    return events, lanes.count


def _rejection(row: dict[str, Any], arrived_ns: int, process: int) -> _Event:
    fields = {
        "ph": "i",
        "s": "t",
        "name": _short(row["request_id"]),
        "pid": process,
        "tid": _REJECTED_THREAD,
        "ts": arrived_ns / 1000,
        "args": {"reason": row["reason"], "prompt_tokens": row["prompt_tokens"]},
    }
    return _Event(arrived_ns, 0, 0, fields)


class _Lanes:
    """Tracks for intervals that must not overlap, taken in the order of their starts."""

    def __init__(self) -> None:
        self.count = 0
        self._free: list[int] = []
        self._busy: list[tuple[int, int]] = []

    def take(self, start_ns: int, end_ns: int) -> int:
        """The lowest track that is free at `start_ns`; it is taken until `end_ns`."""
        while self._busy and self._busy[0][0] <= start_ns:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane = self.count
            self.count += 1
        heapq.heappush(self._busy, (end_ns, lane))
        return lane


def _steps(steps: Any, process: int, every: int) -> Iterator[_Event]:
    """A slice for each `every` rows, and counters of the state."""
    if not steps.num_rows:
        return
    starts = nanoseconds(column(steps, "time_s"))
    durations = nanoseconds(column(steps, "duration_s"))
    first = np.arange(0, len(starts), every)
    last = np.append(first[1:], len(starts)) - 1
    sums = {
        name: np.add.reduceat(column(steps, name).astype(np.int64), first).tolist()
        for name in ("steps", "prefill_tokens", "decode_tokens", "preemptions")
    }
    sums["busy_s"] = (np.add.reduceat(durations, first) / NS_PER_S).tolist()
    ends = (starts + durations)[last].tolist()
    for index, (start, end) in enumerate(zip(starts[first].tolist(), ends, strict=True)):
        details = {name: values[index] for name, values in sums.items()}
        name = "step" if details["steps"] == 1 else f"{details['steps']} steps"
        yield _slice(name, start, max(end, start), (process, _STEPS_THREAD), 0, **details)
    yield from _counters(steps, process, starts[first].tolist(), np.maximum(durations, 1), first)


def _counters(
    steps: Any, process: int, starts: list[int], weights: Ints, first: Ints
) -> Iterator[_Event]:
    """Memory and batch; rows without a state (NaN) have none.

    The state of an idle stretch is recorded nowhere: a counter keeps its last value.
    """
    counters = {
        "KV slots": {term: _means(steps, f"{term}_slots", weights, first) for term in _TERMS},
        "batch": {name: _means(steps, name, weights, first) for name in ("running", "waiting")},
    }
    for rank, (name, series) in enumerate(counters.items(), 1):
        for index, start in enumerate(starts):
            values = {key: means[index] for key, means in series.items()}
            if not any(map(math.isnan, values.values())):
                fields = {"ph": "C", "name": name, "pid": process, "ts": start / 1000}
                yield _Event(start, 0, rank, fields | {"args": values})


def _means(steps: Any, name: str, weights: Ints, first: Ints) -> list[float]:
    values = column(steps, name)
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0) * weights, first)
    counted = np.add.reduceat(np.where(known, weights, 0), first)
    means: list[float] = np.where(counted > 0, sums / np.maximum(counted, 1), np.nan).tolist()
    return means
