"""Framework fragmentation: one tensor per request, layer and side in a framework's allocator.

The baseline without a memory manager of its own: a request's keys and values are tensors that grow
by `torch.cat` (allocate the new one, copy, free the old one), or that take the request's largest
length at once. The same events go through PyTorch's caching allocator and through an arena of ours
whose addresses are known; both are reported with the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpu_backend.kv_memories import Arena, KvShape, Levels, Memory
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler

NS_PER_S = 1_000_000_000


class Admit(NamedTuple):
    """A request gets memory for its first `tokens`; it will have `final_tokens` at its end."""

    request_id: str
    tokens: int
    final_tokens: int


class Grow(NamedTuple):
    """A request has `tokens` tokens of KV from now on."""

    request_id: str
    tokens: int


class Free(NamedTuple):
    """A request has ended, or was preempted and will be admitted anew."""

    request_id: str


Event = Admit | Grow | Free


class Policy(NamedTuple):
    """How long a request's tensors are made."""

    whole: bool
    """At once as long as the request will ever be; otherwise as long as it is now."""
    grow_every: int = 1
    """Growing tensors are made a multiple of so many tokens long."""

    def length(self, tokens: int, final_tokens: int) -> int:
        """Tokens that the tensors have room for."""
        if self.whole:
            return max(tokens, final_tokens)
        return -(-tokens // self.grow_every) * self.grow_every


POLICIES = {
    "grow every token": Policy(whole=False),
    "grow every 64 tokens": Policy(whole=False, grow_every=64),
    "whole length at once": Policy(whole=True),
}


class _Held:
    """The tensors of one request and the tokens they have room for."""

    def __init__(self, tensors: list[Any], final_tokens: int, length: int) -> None:
        self.tensors = tensors
        self.final_tokens = final_tokens
        self.length = length


def run_events(
    events: Iterable[Event], shape: KvShape, policy: Policy, memory: Memory
) -> dict[str, Any]:
    """Run events through one memory; bytes, and shares of what is reserved.

    A request that does not fit is given up with everything it holds, and counted in `refused`;
    its later growth is ignored until it is admitted anew. Means are over events.
    """
    held: dict[str, _Held] = {}
    levels: list[Levels] = []
    refused = 0
    for event in events:
        fits = True
        if isinstance(event, Admit):
            fits = _admit(event, shape, policy, memory, held)
        elif isinstance(event, Grow):
            fits = _grow(event, policy, memory, held)
        else:
            _drop(event.request_id, memory, held)
        refused += not fits
        levels.append(memory.levels())
    for request_id in list(held):
        _drop(request_id, memory, held)
    idle = [1 - row.allocated_bytes / row.reserved_bytes for row in levels if row.reserved_bytes]
    return {
        **memory.totals(),
        "mean_allocated_bytes": _mean([row.allocated_bytes for row in levels]),
        "mean_reserved_bytes": _mean([row.reserved_bytes for row in levels]),
        "mean_split_bytes": _mean([row.split_bytes for row in levels]),
        "peak_split_bytes": max((row.split_bytes for row in levels), default=0),
        "mean_idle_share": _mean(idle),
        "refused": refused,
    }


def compare(
    events: Iterable[Event],
    shape: KvShape,
    policy: Policy,
    *,
    capacity_tokens: int,
    placement: str = "best_fit",
    framework: Memory | None = None,
) -> dict[str, Any]:
    """The framework beside our arena of `capacity_tokens`: `{"framework": ..., "simulated": ...}`.

    Without a `framework` its entry is None and `why` says so.
    """
    events = list(events)
    simulated = run_events(events, shape, policy, Arena(shape, capacity_tokens, placement))
    report: dict[str, Any] = {"placement": placement, "simulated": simulated, "framework": None}
    if framework is None:
        return report | {"why": "no CUDA device: a framework's allocator is measured on one"}
    return report | {"framework": run_events(events, shape, policy, framework)}


def events_of(
    requests: Iterable[Request], scheduler: VllmScheduler | OrcaScheduler, *, step_s: float
) -> Iterator[Event]:
    """The events of a run of `scheduler`, every step of which takes `step_s` seconds.

    `requests` in arrival order; those that the scheduler refuses, or that could never be served,
    make no event. Within a step what was preempted is freed first, then everything scheduled gets
    its tokens in scheduling order; what ends is freed at the step's end.
    Raises ValueError for asynchronous scheduling, speculation and steps of no length.
    """
    if scheduler.is_async or scheduler.delivers_unevenly:
        raise ValueError("events_of needs a scheduler without asynchrony and speculation")
    if step_s <= 0:
        raise ValueError(f"step_s (={step_s}) must be > 0")
    arrivals = iter(requests)
    coming = next(arrivals, None)
    now_ns = 0
    while coming is not None or scheduler.has_work():
        if coming is not None and not scheduler.has_work():
            now_ns = max(now_ns, coming.arrival_ns)
        while coming is not None and coming.arrival_ns <= now_ns:
            if not (scheduler.refuse(coming) or scheduler.unservable(coming)):
                scheduler.add(coming)
            coming = next(arrivals, None)
        if scheduler.has_work():
            yield from _step(scheduler)
            now_ns += round(step_s * NS_PER_S)


def _step(scheduler: VllmScheduler | OrcaScheduler) -> Iterator[Event]:
    plan = scheduler.schedule()
    if not plan.scheduled_tokens and not plan.preempted:
        raise ValueError(f"nothing can be scheduled: {scheduler.blocked_reason()}")
    for sequence in plan.preempted:
        yield Free(sequence.request.request_id)
    admitted = set(plan.admitted)
    for sequence, _ in plan.scheduled():
        yield _tokens_event(sequence, scheduler.computed_tokens(sequence), sequence in admitted)
    for sequence in scheduler.complete(plan):
        yield Free(sequence.request.request_id)


def _tokens_event(sequence: Sequence, tokens: int, admitted: bool) -> Event:
    name = sequence.request.request_id
    return Admit(name, tokens, sequence.final_kv_tokens) if admitted else Grow(name, tokens)


def _admit(
    event: Admit, shape: KvShape, policy: Policy, memory: Memory, held: dict[str, _Held]
) -> bool:
    if event.request_id in held:
        raise ValueError(f"request {event.request_id!r} is admitted twice")
    length = policy.length(event.tokens, event.final_tokens)
    entry = _Held([], event.final_tokens, length)
    held[event.request_id] = entry
    for _ in range(shape.tensors):
        tensor = memory.take(length)
        if tensor is None:
            _drop(event.request_id, memory, held)
            return False
        entry.tensors.append(tensor)
    return True


def _grow(event: Grow, policy: Policy, memory: Memory, held: dict[str, _Held]) -> bool:
    """Each tensor in turn, so that old and new are held together for one of them only."""
    entry = held.get(event.request_id)
    if entry is None or event.tokens <= entry.length:
        return True
    entry.length = policy.length(event.tokens, entry.final_tokens)
    for index in range(len(entry.tensors)):
        longer = memory.grow(entry.tensors[index], entry.length)
        if longer is None:
            _drop(event.request_id, memory, held)
            return False
        entry.tensors[index] = longer
    return True


def _drop(request_id: str, memory: Memory, held: dict[str, _Held]) -> None:
    entry = held.pop(request_id, None)
    while entry is not None and entry.tensors:
        memory.free(entry.tensors.pop())


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
