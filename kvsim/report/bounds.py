"""Which bound binds a variant: memory, sequences, token budget, or none but the arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kvsim.report.text import figure

MEMORY, SEQUENCES, BUDGET, STATIC, OTHER, ARRIVALS, UNKNOWN = (
    "memory",
    "max_num_seqs",
    "token budget",
    "static batch",
    "other",
    "arrivals",
    "unknown",
)

MEANINGS: Mapping[str, str] = {
    MEMORY: "in most steps with a queue the head of the queue lacked memory: it fitted neither a"
    " free extent nor the free slots together, or only the latter",
    SEQUENCES: "in most steps with a queue max_num_seqs requests ran already",
    BUDGET: "in most steps with a queue max_num_batched_tokens were computed: the step's token"
    " budget, and with it compute, was used up",
    STATIC: "requests queued in most steps, mostly while memory and limits had room: a static batch"
    " takes no one in until its longest member ends",
    OTHER: "requests queued in most steps, but memory, max_num_seqs and token budget were each the"
    " reason in a minority of them",
    ARRIVALS: "fewer than half of the steps had a queue: most of the time the server keeps up and"
    " nothing but the arrivals limits the batch; the shares say what did in the other steps",
    UNKNOWN: "the run kept no row per step, and the summary alone does not tell",
}
"""Each answer in words."""

CAPACITY_NOT_BANDWIDTH = (
    "Paging addresses capacity, not bandwidth: it lets more requests share the memory, but every "
    "step still reads the weights and the KV of every running request. Beyond what compute allows, "
    "more memory adds requests that wait in the batch instead of in the queue."
)


class QueueCounts(NamedTuple):
    """Steps of a run, counted from rows of single steps."""

    steps: int
    with_queue: int
    full_batch: int
    """With a queue and max_num_seqs requests running."""
    full_budget: int
    """With a queue and max_num_batched_tokens tokens computed."""


class Bound(NamedTuple):
    """What binds one variant; shares are of the steps with a queue and may overlap."""

    binds: str
    """A key of `MEANINGS`."""
    queue_share: float | None
    """Steps with a queue over all steps."""
    shares: Mapping[str, float]
    """`MEMORY`, `SEQUENCES`, `BUDGET` -> share of the steps with a queue; empty without rows."""
    memory_allows: float | None
    """Requests that would fill the memory at the slots that each held on average."""


def queue_counts(
    steps: Any, *, max_num_seqs: int | None, max_num_batched_tokens: int | None
) -> QueueCounts:
    """Count rows of single steps (a table with the columns of `STEP_COLUMNS`).

    A limit that is None is never reached.
    """
    waits = steps.column("waiting").to_numpy() > 0
    running = steps.column("running").to_numpy()[waits]
    tokens = (steps.column("prefill_tokens").to_numpy() + steps.column("decode_tokens").to_numpy())[
        waits
    ]
    return QueueCounts(
        steps=len(waits),
        with_queue=int(waits.sum()),
        full_batch=int((running >= (max_num_seqs or np.inf)).sum()),
        full_budget=int((tokens >= (max_num_batched_tokens or np.inf)).sum()),
    )


def added(counts: list[QueueCounts]) -> QueueCounts | None:
    """The counts of several seeds together; None of none."""
    return QueueCounts(*map(sum, zip(*counts, strict=True))) if counts else None


def bound(entry: Mapping[str, Any], counts: QueueCounts | None, *, replicas: int = 1) -> Bound:
    """What binds a variant, from its entry of the summary and the rows of its `replicas` seeds.

    Memory: the steps whose head of the queue lacked memory (`held_up_steps` and
    `short_of_memory_steps`, means over seeds). With several reasons in most steps, the most
    frequent one binds. Without rows, memory binds when its steps are half of all; the rest is
    unknown.
    """
    lacking = (figure(entry, "held_up_steps") or 0) + (figure(entry, "short_of_memory_steps") or 0)
    steps = figure(entry, "steps") or 0
    allows = _memory_allows(entry)
    if counts is None:
        binds = MEMORY if steps and lacking >= steps / 2 else UNKNOWN
        return Bound(binds, None, {}, allows)
    queued = counts.with_queue
    if not queued:
        return Bound(ARRIVALS, 0.0, {}, allows)
    shares = {
        MEMORY: min(1.0, lacking * replicas / queued),
        SEQUENCES: counts.full_batch / queued,
        BUDGET: counts.full_budget / queued,
    }
    queue_share = queued / counts.steps
    most = max(shares, key=lambda name: shares[name])
    if queue_share < 0.5:
        most = ARRIVALS
    elif shares[most] < 0.5:
        setup = entry.get("setup")
        static = isinstance(setup, Mapping) and setup.get("scheduler") == "static"
        most = STATIC if static else OTHER
    return Bound(most, queue_share, shares, allows)


def _memory_allows(entry: Mapping[str, Any]) -> float | None:
    terms = [
        figure(entry, f"memory.by_time.{name}") for name in ("live", "reservation", "internal")
    ]
    running = figure(entry, "batch.mean_by_time")
    taken = sum(term or 0 for term in terms)
    return running / taken if running and taken else None
