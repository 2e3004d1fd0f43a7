"""Which bound binds a variant: memory, sequences, token budget, or none but the arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvsim.report.text import figure

MEMORY, SEQUENCES, BUDGET, STATIC, OTHER, ARRIVALS = (
    "memory",
    "max_num_seqs",
    "token budget",
    "static batch",
    "other",
    "arrivals",
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
}
"""Each answer in words."""

CAPACITY_NOT_BANDWIDTH = (
    "Paging addresses capacity, not bandwidth: it lets more requests share the memory, but every "
    "step still reads the weights and the KV of every running request. Beyond what compute allows, "
    "more memory adds requests that wait in the batch instead of in the queue."
)


class Bound(NamedTuple):
    """What binds one variant; shares are of the steps with a queue and may overlap."""

    binds: str
    """A key of `MEANINGS`."""
    queue_share: float | None
    """Steps with a queue over all steps."""
    shares: Mapping[str, float]
    """`MEMORY`, `SEQUENCES`, `BUDGET` -> share of the steps with a queue; empty without a queue."""
    memory_allows: float | None
    """Requests that would fill the memory at the slots that each held on average."""


def bound(entry: Mapping[str, Any]) -> Bound:
    """What binds a variant, from its entry of the summary.

    Memory: the steps whose head of the queue lacked memory (`held_up_steps` and
    `short_of_memory_steps`). With several reasons in most steps, the most frequent one binds.
    """
    steps, queued = figure(entry, "steps") or 0, figure(entry, "queued_steps") or 0
    allows = _memory_allows(entry)
    if not queued:
        return Bound(ARRIVALS, 0.0, {}, allows)
    lacking = (figure(entry, "held_up_steps") or 0) + (figure(entry, "short_of_memory_steps") or 0)
    shares = {
        MEMORY: min(1.0, lacking / queued),
        SEQUENCES: (figure(entry, "queued_steps_at_max_num_seqs") or 0) / queued,
        BUDGET: (figure(entry, "queued_steps_at_token_budget") or 0) / queued,
    }
    queue_share = queued / steps
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
