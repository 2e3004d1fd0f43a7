"""Gathers the readings of one server's wordings, start-up by start-up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvsim.startup_logs.config_text import literal
from kvsim.startup_logs.found import Found, Reading, Refusal, Value
from kvsim.startup_logs.names import FIGURES, SETTINGS

NUMBER = r"(-?[0-9]{1,18}(?:,[0-9]{3}){0,6}(?:\.[0-9]{1,9})?)"
"""One printed number; bounded, so that no text makes a pattern slow."""

CONFIG, ARGUMENTS, STATED = 3, 2, 1
"""How much a printed setting counts: as the engine has it, as the user gave it, as an aside."""

MAX_READINGS = 4096
"""Readings kept of one figure: more workers than that no start-up has."""

_BEFORE = 400
_WORKERS = re.compile(
    r"\(([A-Za-z][A-Za-z0-9_.:]{0,60}(?: rank=[0-9]{1,6})? pid=[0-9]{1,10})[^()]{0,60}\)"
    r"|\[(?:[0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9:.,]{8,16}((?: [A-Z]{2,4}[0-9]{1,5}){1,5})\]"
    r"|\[((?:RANK|rank) ?[0-9]{1,6})\]"
    r"|\[[0-9]{1,6},([0-9]{1,6})\]<std"
    r"|\[((?:gpu_id|gpu|rank)=[0-9]{1,6})\]"
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A key in a line: `text[start:end]` is the key."""

    text: str
    start: int
    end: int
    line: int

    @property
    def worker(self) -> str | None:
        """The last process or rank named in front of the key."""
        window = self.text[max(0, self.start - _BEFORE) : self.start]
        names = [next(filter(None, m.groups())) for m in _WORKERS.finditer(window)]
        return names[-1].strip() if names else None

    def before(self, characters: int) -> str:
        """At most so many characters in front of the key."""
        return self.text[max(0, self.start - characters) : self.start]

    def after(self, characters: int) -> str:
        """At most so many characters behind the key."""
        return self.text[self.end : self.end + characters]


def number(printed: str) -> tuple[float | int, int]:
    """A printed number and its decimals."""
    plain = printed.replace(",", "")
    whole, point, decimals = plain.partition(".")
    return (float(plain), len(decimals)) if point else (int(whole), 0)


@dataclass(frozen=True, slots=True)
class Pool:
    """One allocation of KV memory; `kind` is "", "full", "swa", "total" or "buffer"."""

    worker: str | None
    size: Reading
    tokens: Reading | None
    kind: str = ""


@dataclass
class Start:
    """One start-up: readings by name, then by worker and wording.

    `pools` and `buffers` are what a server prints piece by piece and its `finish` adds up;
    `model_path`, `draft` and `pending` are llama.cpp's: the first model, whether lines are now of
    another one, and the kind of the pool announced last. `allocated` are the ranks of TensorRT-LLM
    that allocated a pool and have announced no other since.
    """

    figures: dict[str, dict[tuple[str | None, str], Reading]] = field(default_factory=dict)
    settings: dict[str, dict[tuple[int, str, str | None], Reading]] = field(default_factory=dict)
    refusal: Refusal | None = None
    ready: bool = False
    version: str | None = None
    engine: str | None = None
    banners: set[str] = field(default_factory=set)
    pools: list[Pool] = field(default_factory=list)
    buffers: list[Reading] = field(default_factory=list)
    model_path: str | None = None
    draft: bool = False
    pending: str = ""
    allocated: set[str] = field(default_factory=set)

    @property
    def told(self) -> bool:
        """Whether it printed any figure."""
        return bool(self.figures or self.pools) or self.refusal is not None


class Collector:
    """The start-ups of one server in a log; the last that told anything counts.

    `booked` counts what was booked at all, `own_booked` what no other server could have printed.
    """

    def __init__(self) -> None:
        self.now = Start()
        self.before: Start | None = None
        self.starts = 1
        self.configs_left = 64
        self.booked = 0
        self.own_booked = 0

    @property
    def last(self) -> Start:
        """The start-up to report."""
        return self.now if self.now.told or self.before is None else self.before

    def banner(self, who: str) -> None:
        """Process `who` introduced itself; twice, with figures in between, is a new start."""
        self.booked += 1
        if who in self.now.banners and (self.now.told or self.now.ready):
            self.before, self.now = self.last, Start()
            self.starts += 1
        self.now.banners.add(who)

    def figure(
        self, name: str, printed: str, hit: Hit, *, per_gib: int = 1, worker: str | None = None
    ) -> Reading:
        """Books a printed figure; `per_gib` is 1024 for one printed in MiB."""
        reading = self.reading(name, printed, hit, per_gib=per_gib, worker=worker)
        return self.book(name, reading)

    def reading(
        self, name: str, printed: str, hit: Hit, *, per_gib: int = 1, worker: str | None = None
    ) -> Reading:
        """A printed figure that is not booked yet."""
        value, decimals = number(printed)
        unit = FIGURES[name][0]
        return Reading(
            value=value / per_gib if per_gib > 1 else float(value) if unit == "GiB" else value,
            unit=unit,
            line=hit.line,
            worker=worker or hit.worker,
            decimals=decimals,
            rounding=0.5 * 10**-decimals / per_gib if unit in ("GiB", "") else 0.0,
            source=_wording(hit),
        )

    def book(self, name: str, reading: Reading) -> Reading:
        """Books a reading; the same worker's later one in the same wording replaces it."""
        self.booked += 1
        of_name = self.now.figures.setdefault(name, {})
        key = (reading.worker, reading.source)
        if key in of_name or len(of_name) < MAX_READINGS:
            of_name[key] = reading
        return reading

    def setting(
        self, name: str, printed: str, hit: Hit, *, weight: int, rounded: bool = False
    ) -> None:
        """Books a printed setting; one of another type than the setting's is left out."""
        unit, kind = SETTINGS[name]
        value = literal(printed.replace(",", "") if kind is int else printed, kind)
        if value is None and not (printed == "None" and weight == CONFIG):
            return
        decimals = len(printed.partition(".")[2]) if rounded else None
        self.booked += 1
        of_name = self.now.settings.setdefault(name, {})
        source = _wording(hit)
        key = (weight, source, hit.worker)
        if key in of_name or len(of_name) < MAX_READINGS:
            rounding = 0.0 if decimals is None else 0.5 * 10**-decimals
            of_name.pop(key, None)
            of_name[key] = Reading(value, unit, hit.line, hit.worker, decimals, rounding, source)

    def pool(self, pool: Pool) -> None:
        """Books an allocation."""
        self.booked += 1
        if len(self.now.pools) < MAX_READINGS:
            self.now.pools.append(pool)

    def pairs(
        self, values: Mapping[str, str], names: Mapping[str, str], hit: Hit, *, weight: int
    ) -> None:
        """Books those `values` that `names` maps to a setting."""
        for printed_name, name in names.items():
            if printed_name in values:
                self.setting(name, values[printed_name], hit, weight=weight)

    def refuse(self, kind: str, hit: Hit, numbers: Mapping[str, Reading]) -> None:
        """Books why the server stopped: its first message, and only before it was ready."""
        self.booked += 1
        if self.now.refusal is None and not self.now.ready:
            self.now.refusal = Refusal(kind, hit.line, hit.worker, dict(numbers))

    def is_ready(self) -> None:
        """The server serves; what looked like a refusal was not one."""
        self.now.ready = True
        self.now.refusal = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A wording: a fixed `key`, what follows it, and the names of the groups.

    A name with "=" is a setting that the line states in passing ("~" if it is rounded there); an
    empty one is passed over. Every `tail` is matched where the key ends and is bounded.
    """

    key: str
    tail: str
    names: tuple[str, ...]
    per_gib: int = 1

    def action(self) -> Action:
        """Books the groups of the wording."""
        pattern = re.compile(self.tail)

        def book(collector: Collector, hit: Hit) -> None:
            match = pattern.match(hit.text, hit.end)
            if not match:
                return
            for name, printed in zip(self.names, match.groups(), strict=True):
                if not name or printed is None:
                    continue
                if name[0] in "=~":
                    collector.setting(name[1:], printed, hit, weight=STATED, rounded=name[0] == "~")
                else:
                    collector.figure(name, printed, hit, per_gib=self.per_gib)

        return book


Action = Callable[[Collector, Hit], None]


@dataclass(frozen=True, slots=True)
class Wordings:
    """What one server prints: keys with what to do, and what to add up at the end."""

    actions: tuple[tuple[str, Action], ...]
    finish: Callable[[Start], None]


def wordings(
    rules: Iterable[Rule],
    special: Iterable[tuple[str, Action]],
    finish: Callable[[Start], None] = lambda start: None,
) -> Wordings:
    """The wordings of one server, from plain rules and from functions."""
    return Wordings((*((rule.key, rule.action()) for rule in rules), *special), finish)


def choose_figure(name: str, readings: Iterable[Reading], *, summed: bool) -> Found:
    """The reading of `name` that counts, by the rule of `FIGURES`, or the sum of the devices.

    Of one worker's wordings the last counts, in the most decimals of any that agrees with it.
    """
    every = tuple(sorted(readings, key=lambda one: one.line))
    of_worker: dict[str | None, list[Reading]] = {}
    for one in every:
        of_worker.setdefault(one.worker, []).append(one)
    finest = [_finest(own) for own in of_worker.values()]
    if len(finest) == 1:
        return Found(finest[0], "only", every)
    if summed:
        return Found(_total(finest), "sum", every)
    rule = FIGURES[name][1]
    pick = min if rule == "smallest" else max
    return Found(pick(finest, key=lambda one: _as_float(one.value)), rule, every)


def choose_setting(readings: Mapping[tuple[int, str, str | None], Reading]) -> Found:
    """The setting as the engine printed it, else as it was given, else as stated in passing."""
    weight = max(key[0] for key in readings)
    chosen = [one for key, one in readings.items() if key[0] == weight]
    return Found(chosen[-1], "only" if len(chosen) == 1 else "last", tuple(readings.values()))


def add_up(name: str, parts: Iterable[Reading], source: str) -> Reading:
    """One reading that is the sum of `parts`, placed where the last of them was printed."""
    return replace(_total(list(parts)), unit=FIGURES[name][0], source=source)


def _finest(own: list[Reading]) -> Reading:
    last = own[-1]
    agreeing = [
        one
        for one in own
        if abs(_as_float(one.value) - _as_float(last.value)) <= one.rounding + last.rounding + 1e-9
    ]
    return max(agreeing, key=lambda one: (one.decimals or 0, one.line))


def _total(parts: list[Reading]) -> Reading:
    last = parts[-1]
    workers = {one.worker for one in parts}
    return replace(
        last,
        value=round(math.fsum(_as_float(one.value) for one in parts), 12),
        rounding=math.fsum(one.rounding for one in parts),
        decimals=max((one.decimals or 0) for one in parts),
        worker=last.worker if len(workers) == 1 else None,
    )


def _as_float(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _wording(hit: Hit) -> str:
    return hit.text[hit.start : hit.end].strip(" :=({[,")
