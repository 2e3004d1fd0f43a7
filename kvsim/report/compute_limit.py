"""How many requests compute would allow to run at once, whatever the memory holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvsim.catalog import get_gpu, get_model
from kvsim.core.plan import Chunk, StepPlan
from kvsim.core.protocols import Clock
from kvsim.cost import RooflineClock
from kvsim.scenario import Scenario
from kvsim.scenario.engine import KV_CACHE_BYTES

MAX_BATCH = 1 << 20
_MAX_CHUNKS = 100_000

BY_SLO = (
    "the largest batch of decodes whose step, without any prefill in it, the clock expects to take "
    "no longer than the TPOT objective"
)
BY_ROOFLINE = (
    "the batch of decodes at which the datasheet roofline turns from memory bandwidth to "
    "arithmetic; there is no TPOT objective"
)


class Mix(NamedTuple):
    """What the finished requests of a run ask of a step, on average (tokens)."""

    context_tokens: float
    """Read by a decode."""
    prompt_tokens: float
    """Of a request."""
    prefill_tokens_per_decode: float
    """Prompt tokens over decodes: the prefills that keep a batch of decodes going."""


def traffic_mix(prompts: Any, outputs: Any) -> Mix | None:
    """The mix of requests with these numbers of tokens (arrays); None without any decode.

    The decode of token j + 1 reads prompt + j tokens, j = 1 .. output - 1; a request's first token
    comes from its prefill.
    """
    prompts, outputs = np.asarray(prompts, dtype=float), np.asarray(outputs, dtype=float)
    decodes = np.maximum(outputs - 1, 0)
    total = float(decodes.sum())
    if not total:
        return None
    read = float((decodes * prompts + decodes * (decodes + 1) / 2).sum())
    return Mix(read / total, float(prompts.mean()), float(prompts.sum()) / total)


class ComputeLimit(NamedTuple):
    """A batch size and how it was found."""

    batch: int | None
    """None when there is none; `why` says so."""
    low: int | None
    """With the clock's steps slower by its relative error; None without an error."""
    high: int | None
    """With faster ones; None where that has no limit either."""
    with_prefills: int | None
    """The largest batch that meets the TPOT objective on average when each step also computes its
    share of prefills; None without an objective."""
    why: str
    """The rule, in words."""


def compute_limit(
    settings: Scenario, clock: Clock, relative_error: float | None, mix: Mix
) -> ComputeLimit:
    """The limit of one variant for the traffic it served.

    With a TPOT objective: the largest batch whose decode step meets it, prefills left out; and the
    same with them. Without one, where model and GPU are known: the batch at which the roofline's
    arithmetic takes as long as its reads.
    """
    if settings.slo.tpot_s is not None:
        return _by_objective(clock, settings.slo.tpot_s, relative_error, mix)
    if settings.model is None or settings.hardware is None:
        return unknown_limit("the scenario has neither a TPOT objective nor model and GPU")
    model = get_model(settings.model)
    if any(group.kind == "state" for group in model.groups):
        return unknown_limit(
            "linear-attention layers have no time by shape, and there is no TPOT objective"
        )
    roofline = RooflineClock(
        model,
        get_gpu(settings.hardware.gpu),
        tp=settings.hardware.count,
        kv_dtype_bytes=KV_CACHE_BYTES[settings.engine.kv_cache_dtype],
    )

    def reads_longer(batch: int) -> bool:
        memory, compute = roofline.decode_terms_s(batch, batch * mix.context_tokens)
        return memory >= compute

    turn = _largest(reads_longer)
    if turn is not None:
        return ComputeLimit(turn + 1, None, None, None, BY_ROOFLINE)
    why = (
        f"none by arithmetic: at {mix.context_tokens:,.0f} tokens of context, reading a request's "
        "KV takes longer than computing its token at every batch size, so memory bandwidth, not "
        "arithmetic, sets the decode step; there is no TPOT objective"
    )
    return ComputeLimit(None, None, None, None, why)


def unknown_limit(why: str) -> ComputeLimit:
    """No limit can be said."""
    return ComputeLimit(None, None, None, None, f"unknown: {why}")


def _by_objective(
    clock: Clock, tpot_s: float, relative_error: float | None, mix: Mix
) -> ComputeLimit:
    def within(limit_s: float, prefills: bool = False) -> int | None:
        return _largest(lambda batch: step_s(clock, batch, mix, prefills=prefills) <= limit_s)

    batch = within(tpot_s)
    if batch is None:
        why = f"none: the clock stays below {tpot_s:g} s"
        return ComputeLimit(None, None, None, within(tpot_s, prefills=True), why)
    low = high = None
    if relative_error:
        low = within(tpot_s / (1 + relative_error))
        high = within(tpot_s / (1 - relative_error)) if relative_error < 1 else None
    why = f"{BY_SLO} ({tpot_s:g} s)"
    return ComputeLimit(batch, low, high, within(tpot_s, prefills=True), why)


def step_s(clock: Clock, batch: int, mix: Mix, *, prefills: bool) -> float:
    """Seconds the clock expects of a step of `batch` decodes, with or without prefills.

    The prefills are whole prompts of average length and one part of a prompt.
    """
    plan = StepPlan(0, {})
    plan.num_decodes = plan.num_running = batch
    plan.decode_context_tokens = round(batch * mix.context_tokens)
    if prefills:
        prompt = max(1, round(mix.prompt_tokens))
        whole, rest = divmod(round(batch * mix.prefill_tokens_per_decode), prompt)
        if whole > _MAX_CHUNKS:
            return float("inf")
        plan.chunks = [Chunk(prompt, 0)] * whole
        if rest:
            plan.chunks.append(Chunk(rest, (prompt - rest) // 2))
        plan.prefill_tokens = whole * prompt + rest
    return clock.step_seconds(plan)


def _largest(holds: Callable[[int], bool]) -> int | None:
    """The largest batch for which `holds`, true up to it and false from there; None: no end."""
    if holds(MAX_BATCH):
        return None
    low, high = 0, MAX_BATCH
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
