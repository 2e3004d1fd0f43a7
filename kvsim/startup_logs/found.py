"""What a start-up log says: figures and settings, each with the place it was printed at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One value as one process printed it.

    `line` counts from 1. `worker` is the process, rank or device named on the line, None if none
    is. `decimals` is how many the server printed, None for a value it did not round; then the true
    value lies within `rounding` (in `unit`) of `value`. `source` is the wording it was read from.
    """

    value: Value
    unit: str
    line: int
    worker: str | None
    decimals: int | None
    rounding: float
    source: str


@dataclass(frozen=True, slots=True)
class Found:
    """A figure or setting: the reading that counts, and every reading there was.

    `rule` says how `chosen` was picked from `readings`: "smallest" or "largest" of the workers,
    "sum" of the devices, "last" for a setting (as the engine printed it, else as it was given), or
    "only" where there was nothing to choose. A worker that printed a figure twice in one wording
    counts with its last.
    """

    chosen: Reading
    rule: str
    readings: tuple[Reading, ...]

    @property
    def value(self) -> Value:
        """The value that counts, in `unit`."""
        return self.chosen.value

    @property
    def unit(self) -> str:
        """GiB, tokens, blocks, or empty for a number or text without a unit."""
        return self.chosen.unit

    @property
    def line(self) -> int:
        """The line of the log, from 1, that the value was read from."""
        return self.chosen.line

    @property
    def worker(self) -> str | None:
        """The process, rank or device that printed it; None if the line names none."""
        return self.chosen.worker

    @property
    def decimals(self) -> int | None:
        """Decimals the server printed; None if it did not round the value."""
        return self.chosen.decimals

    @property
    def rounding(self) -> float:
        """How far the true value may lie from `value`, in `unit`, for what was printed."""
        return self.chosen.rounding


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the server did not start, with the numbers of its own message.

    `kind` is max_len_gt_kv_tokens, need_gt_available, no_available_memory, free_memory_lt_budget,
    oom_before_kv_alloc or oom_after_kv_alloc.
    """

    kind: str
    line: int
    worker: str | None
    numbers: Mapping[str, Reading]


@dataclass(frozen=True, slots=True)
class StartupLog:
    """What the last start-up in a log said.

    `settings` and `figures` are keyed by the names in `kvsim.startup_logs.names`. `starts` is how
    many start-ups the log holds; of several, the last one that printed a figure is told here.
    `lines` were read; `cut` says that the log was longer than the reader's limit.
    """

    server: str
    version: str | None
    engine: str | None
    settings: Mapping[str, Found]
    figures: Mapping[str, Found]
    refusal: Refusal | None
    ready: bool
    starts: int
    lines: int
    cut: bool

    def of_worker(self, worker: str | None) -> dict[str, Reading]:
        """The figures that one process printed, which belong to one memory budget."""
        found: dict[str, Reading] = {}
        for name, figure in self.figures.items():
            own = [one for one in figure.readings if one.worker == worker]
            if own:
                found[name] = own[-1]
        return found
