"""The figures of a page, with the choices and notes around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from kvsim.report.block_sizes import MAX_BLOCK_SIZE
from kvsim.report.figures import (
    block_size_figure,
    latency_figure,
    load_figure,
    memory_figure,
    memory_map_figure,
    sharing_figure,
    waterfall_bars,
    waterfall_figure,
    whole_slots,
)
from kvsim.report.headline import extremes
from kvsim.report.html_data import ReportData, VariantData
from kvsim.report.term_shares import shares_by_term
from kvsim.report.text import figure, plain
from kvsim.results.snapshots import MOST, REGULAR

Payload = dict[str, Any]

MAX_PIECES = 700
"""Pieces of one map's overview."""
_ALL_PAIRS = 5
_MIN_MAPS = 2
_HOLDERS = 12
_HOLDER_ID = 60


class Choice(NamedTuple):
    """A select above a figure."""

    prompt: str
    labels: list[str]
    chosen: int


class Drawn(NamedTuple):
    """Figures by name; one with a choice holds `options`, each with its own figure."""

    figures: Payload
    choices: dict[str, Choice]


def draw(data: ReportData, *, map_pieces: int) -> Drawn:
    """All figures that the rows of the run allow; all maps together have about `map_pieces`."""
    figures: Payload = {}
    choices: dict[str, Choice] = {}
    series = {one.label: one.series for one in data.variants if one.series is not None}
    window = _window(data)
    if series:
        figures["memory"] = {"figure": memory_figure(series, window)}
        figures["load"] = {"figure": load_figure(series, _limits(data), window)}
    shared = {name: series[name] for name in series if name in _sharing(data)}
    if shared:
        figures["sharing"] = {"figure": sharing_figure(shared, window)}
    distributions = {one.label: one.distributions for one in data.variants if one.distributions}
    if any(found for by_name in distributions.values() for found in by_name.values()):
        figures["latency"] = {"figure": latency_figure(distributions, _slo(data))}
    if data.curve is not None:
        figure_ = block_size_figure(data.curve, measured_tails(data.variants))
        figures["block_size"] = {"figure": figure_}
    for name, found in (("waterfall", _waterfalls(data)), ("map", _maps(data, map_pieces))):
        if found:
            options, choice = found
            figures[name] = {"options": options}
            choices[name] = choice
    return Drawn(figures, choices)


def _sharing(data: ReportData) -> set[str]:
    """Variants whose requests have branches."""
    return {one.label for one in data.variants if "sharing" in one.entry}


def _window(data: ReportData) -> tuple[float, float | None] | None:
    measure = data.scenario.measure if data.scenario else None
    if measure is None or (measure.from_s == 0 and measure.to_s is None):
        return None
    return measure.from_s, measure.to_s


def _slo(data: ReportData) -> dict[str, float]:
    limits = data.scenario.slo.model_dump() if data.scenario else {}
    return {name: value for name, value in limits.items() if value is not None}


def _limits(data: ReportData) -> dict[str, float]:
    """The compute limits that the load figure draws, equal ones once."""
    by_value: dict[tuple[int, str], list[str]] = {}
    for one in data.variants:
        for batch, what in ((one.limit.batch, ""), (one.limit.with_prefills, " with prefills")):
            if batch is not None:
                by_value.setdefault((batch, what), []).append(one.label)
    everyone = len(data.variants)
    return {
        f"compute would allow {batch:,}{what}"
        + ("" if len(labels) == everyone else f" ({', '.join(labels)})"): batch
        for (batch, what), labels in by_value.items()
    }


def measured_tails(variants: list[VariantData]) -> dict[str, tuple[int, float]]:
    """Block size and empty tail slots per running request of the paged variants."""
    found = {}
    for one in variants:
        setup = one.entry.get("setup")
        paged = isinstance(setup, Mapping) and setup.get("memory") == "paged"
        size = figure(one.entry, "setup.block_size")
        empty = figure(one.entry, "memory.empty_tail_slots_per_sequence")
        if paged and size and empty is not None and size <= MAX_BLOCK_SIZE:
            found[one.label] = (int(size), float(empty))
    return found


def _waterfalls(data: ReportData) -> tuple[list[Payload], Choice] | None:
    slots = {}
    for index, one in enumerate(data.variants):
        found = shares_by_term(one.entry)
        if found is not None:
            slots[index] = whole_slots(found.shares, found.capacity_slots)
    wanted = extremes([one.entry for one in data.variants])
    pairs = _pairs(list(slots), wanted)
    options: list[Payload] = []
    for source, target in pairs:
        names = (data.variants[source].label, data.variants[target].label)
        bars = waterfall_bars(slots[source], slots[target], names)
        capacity = sum(slots[target].values())
        label = f"{names[0]} → {names[1]}"
        options.append({"label": label, "figure": waterfall_figure(bars, capacity)})
    if not options:
        return None
    chosen = pairs.index(wanted) if wanted in pairs else 0
    labels = [option["label"] for option in options]
    return options, Choice("From one variant to another:", labels, chosen)


def _pairs(places: list[int], wanted: tuple[int, int]) -> list[tuple[int, int]]:
    """Every ordered pair of few variants; of many, each with the next and the wanted one."""
    if len(places) <= _ALL_PAIRS:
        return [(a, b) for a in places for b in places if a != b]
    pairs = list(pairwise(places))
    both = wanted[0] in places and wanted[1] in places
    return [*pairs, wanted] if both and wanted not in pairs and wanted[0] != wanted[1] else pairs


def _maps(data: ReportData, map_pieces: int) -> tuple[list[Payload], Choice] | None:
    shown = [one for one in data.variants if one.snapshots and one.snapshots["snapshots"]]
    if not shown or not map_pieces:
        return None
    per_variant = min(8, max(_MIN_MAPS, 30 // len(shown)))
    chosen = [(one, snapshot) for one in shown for snapshot in _moments(one, per_variant)]
    pieces = max(48, min(MAX_PIECES, map_pieces // (2 * len(chosen))))
    options = [_map_option(one, snapshot, pieces) for one, snapshot in chosen]
    labels = [option["label"] for option in options]
    start = _most_telling([snapshot for _, snapshot in chosen], data, [one for one, _ in chosen])
    return options, Choice("Variant and moment:", labels, start)


def _moments(one: VariantData, count: int) -> list[Mapping[str, Any]]:
    """The extremes, then regular moments evenly, in the order of time."""
    assert one.snapshots is not None
    snapshots = one.snapshots["snapshots"]
    extremes = [snapshot for snapshot in snapshots if snapshot["why"] in MOST][:count]
    regular = [snapshot for snapshot in snapshots if snapshot["why"] == REGULAR]
    rest = min(count - len(extremes), len(regular))
    picked = [regular[(2 * index + 1) * len(regular) // (2 * rest)] for index in range(rest)]
    return sorted([*extremes, *picked], key=lambda snapshot: float(snapshot["time_s"]))


def _most_telling(
    snapshots: list[Mapping[str, Any]], data: ReportData, owners: list[VariantData]
) -> int:
    """Most external fragmentation, else most allocated of the variant with the smallest batch."""
    external = [snapshot.get("external_slots", 0) for snapshot in snapshots]
    if max(external):
        return external.index(max(external))
    worst = data.variants[extremes([one.entry for one in data.variants])[0]]
    for index, (snapshot, owner) in enumerate(zip(snapshots, owners, strict=True)):
        if owner is worst and snapshot["why"] == "most allocated":
            return index
    return 0


def _map_option(one: VariantData, snapshot: Mapping[str, Any], pieces: int) -> Payload:
    assert one.snapshots is not None
    drawing = memory_map_figure(
        snapshot,
        kind=one.snapshots["kind"],
        capacity=one.snapshots["capacity_slots"],
        block_size=max(1, one.snapshots["block_size"]),
        max_pieces=pieces,
    )
    return {
        "label": f"{one.label} at {snapshot['time_s']:,.1f} s ({snapshot['why']})",
        "note": map_note(snapshot, drawing.cell),
        "holders": list(_holders(snapshot)),
        "figure": drawing.figure,
    }


def map_note(snapshot: Mapping[str, Any], cell: int, listed: int = _HOLDERS) -> str:
    """What a map shows, and how coarse; `listed` requests are in the table beside it."""
    requests, holes = snapshot["requests"], snapshot["free"]
    free = sum(hole[1] for hole in holes)
    largest = max((hole[1] for hole in holes), default=0)
    text = (
        f"{len(requests):,} requests hold memory, {snapshot.get('waiting', 0):,} wait; "
        f"{free:,} free slots in {len(holes):,} {'piece' if len(holes) == 1 else 'pieces'}, "
        f"the largest of {largest:,} slots."
    )
    if cell > 1:
        text += (
            f" The overview is drawn in cells of {cell:,} slots; the height of each is divided "
            "among the uses of its slots."
        )
    if len(requests) > listed:
        text += f" The table lists the {listed} requests that hold most."
    return text


def _holders(snapshot: Mapping[str, Any]) -> Iterator[list[str]]:
    """Number, id, live and final tokens, held slots and extents of who holds most."""
    requests = list(enumerate(snapshot["requests"], 1))
    held = {number: sum(extent[1] for extent in one["extents"]) for number, one in requests}
    requests.sort(key=lambda pair: (-held[pair[0]], pair[0]))
    for number, one in requests[:_HOLDERS]:
        tokens = (one["live_tokens"], one["final_tokens"], held[number], len(one["extents"]))
        yield [f"{number}", plain(one["id"], _HOLDER_ID), *(f"{value:,}" for value in tokens)]
