"""What an export reads of a run: one source per variant and seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError
from kvsim.results.read_run import Run

NS_PER_S = 1_000_000_000
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Export(NamedTuple):
    """Content to write."""

    files: Iterable[tuple[str, Iterable[bytes]]]
    """Path below the target, "" for the target itself, and the bytes, made as they are read."""
    notes: Sequence[str] = ()
    """What the reader must know: what the records do not hold, what was thinned out."""


class Source(NamedTuple):
    """One variant under one seed."""

    variant: str
    seed: int | None
    """None when the run has one seed only."""
    entry: Mapping[str, Any]
    """Its figures, in the shape of a variant in a summary of a single seed."""
    steps: Any
    """`pyarrow.Table` of `STEP_COLUMNS`; None when the run kept no rows."""
    requests: Any
    """`pyarrow.Table` of `REQUEST_COLUMNS`; None when the run kept no rows."""
    folder: PurePosixPath
    """Its place in a run folder."""

    @property
    def label(self) -> str:
        """Name in titles."""
        return self.variant if self.seed is None else f"{self.variant}, seed {self.seed}"


class RequestTimes(NamedTuple):
    """Times of requests as whole nanoseconds since the start of the workload, -1 where none."""

    arrived: Ints
    scheduled: Ints
    first_token: Ints
    finished: Ints


def sources(run: Run, variants: Sequence[str]) -> Iterator[Source]:
    """The variants in this order, each read when its turn comes."""
    several = len(run.seeds) > 1
    for variant in variants:
        entry = run.summary["variants"][variant]
        for replica in run.replicas(variant):
            yield Source(
                variant,
                replica.seed if several else None,
                _of_seed(run, entry, replica.seed) if several else entry,
                replica.steps,
                replica.requests,
                PurePosixPath(replica.folder.relative_to(run.path).as_posix()),
            )


def _of_seed(run: Run, entry: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    per_seed = entry.get("per_seed")
    for own in per_seed if isinstance(per_seed, list) else ():
        if isinstance(own, dict) and own.get("seed") == seed:
            return own
    raise InputError(
        f"the summary has no figures of seed {seed}",
        where=str(run.path),
        fix="Give a run folder written by `kvsim run --out`, unchanged.",
    )


def unrecorded(run: Run, variants: Sequence[str], what: str) -> list[str]:
    """A note for variants of which no rows were kept, whose export therefore lacks `what`."""
    without = [name for name in variants if not run.keeps_rows(name)]
    if not without:
        return []
    return [f"{', '.join(without)}: no {what}, as the run kept no rows (record.mode: summary)"]


def column(table: Any, name: str) -> npt.NDArray[Any]:
    """A column as numbers; NaN where there is no value."""
    values: npt.NDArray[Any] = table.column(name).to_numpy()
    return values


def nanoseconds(seconds: npt.NDArray[Any]) -> Ints:
    """Whole nanoseconds; -1 for NaN. Times are recorded in nanoseconds, so this is exact."""
    filled = np.where(np.isnan(seconds), -1 / NS_PER_S, seconds)
    whole: Ints = np.rint(filled * NS_PER_S).astype(np.int64)
    return whole


def request_times(requests: Any) -> RequestTimes:
    """The times in a table of requests."""
    arrived = nanoseconds(column(requests, "arrival_s"))
    queued = nanoseconds(column(requests, "queue_s"))
    return RequestTimes(
        arrived,
        np.where(queued >= 0, arrived + queued, -1),
        nanoseconds(column(requests, "first_token_s")),
        nanoseconds(column(requests, "finish_s")),
    )


def every_step(steps: Any) -> bool:
    """Whether there is a row per step, not one per interval."""
    import pyarrow as pa

    return steps is not None and pa.types.is_integer(steps.schema.field("running").type)


def storable(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
