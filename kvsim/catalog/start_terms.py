"""Lines of a memory budget as a release of vLLM measures them at start-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvsim.catalog.gpu import GIB, Gpu
from kvsim.catalog.model import Model
from kvsim.catalog.start_rules import (
    Interval,
    StartRules,
    activation_peak,
    cuda_graphs_gib,
    non_torch_gib,
    stored_model,
)
from kvsim.catalog.weights import ExpertSplit, weight_bytes

SOURCE = "start-up logs of vLLM (docs/accuracy.md)"


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the budget. `low` and `high` are an 80 % interval; equal to it if exact."""

    name: str
    bytes: int
    low: int
    high: int
    formula: str
    source: str


def remainder(name: str, whole: Term, spent: Sequence[Term], source: str) -> Term:
    """`whole` less what is spent, in bytes; the terms' intervals add in quadrature."""
    size = whole.bytes - sum(term.bytes for term in spent)
    below = [whole.bytes - whole.low, *(term.high - term.bytes for term in spent)]
    above = [whole.high - whole.bytes, *(term.bytes - term.low for term in spent)]
    return Term(
        name,
        size,
        size - round(math.hypot(*below)),
        size + round(math.hypot(*above)),
        formula=" - ".join([whole.name, *(term.name for term in spent)]),
        source=source,
    )


class Size(NamedTuple):
    """GPUs of a tensor parallel group, tokens and sequences of the profiling step."""

    tp: int
    batched_tokens: int
    seqs: int
    experts: ExpertSplit | None = None


def terms_of_release(
    model: Model, gpu: Gpu, rules: StartRules, size: Size, *, graphs_in_budget: bool
) -> tuple[Term, ...]:
    """Weights, activation peak, non-torch memory and CUDA graphs, in bytes per GPU."""
    return (
        _weights(model, rules, size),
        _activations(model, rules, size),
        _non_torch(gpu, rules, _talking(model, size)),
        _cuda_graphs(model, rules, graphs_in_budget),
    )


def _weights(model: Model, rules: StartRules, shape: Size) -> Term:
    tp, split = shape.tp, shape.experts
    stored = stored_model(model, tp if split is None else 1 if split.whole else split.gpus)
    size = weight_bytes(stored, tp=tp, experts=split)
    formula = f"parameters by shape on one of {tp} GPUs, matrices in {model.weight_dtype}"
    if model.moe is not None and split is not None:
        kind = "whole experts" if split.whole else "a part of every expert"
        formula += f", {kind} of {model.moe.experts} over {split.gpus} GPUs"
    below, above = rules.weights_error
    return Term(
        "weights",
        size,
        round(size * (1 - below)),
        round(size * (1 + above)),
        formula=formula,
        source=model.source,
    )


def _activations(model: Model, rules: StartRules, size: Size) -> Term:
    peak = activation_peak(
        model, rules, tp=size.tp, batched_tokens=size.batched_tokens, seqs=size.seqs
    )
    formula = "max_num_batched_tokens * (3 * intermediate / tp + 3 * hidden) * 2"
    if model.moe is not None:
        formula += ", the tokens routed to experts"
    if rules.samples:
        formula = (
            f"max({formula}, {rules.sampler.middle:g} * max_num_seqs * vocab * 4"
            " + max_num_batched_tokens * hidden * 2)"
        )
    return Term(
        "activation_peak",
        round(peak.middle),
        round(peak.low),
        round(peak.high),
        formula=formula,
        source=SOURCE,
    )


def _talking(model: Model, size: Size) -> int:
    """GPUs of the largest group that exchanges tensors: replicas do where they share experts."""
    if model.moe is None or size.experts is None:
        return size.tp
    return size.experts.gpus


def _non_torch(gpu: Gpu, rules: StartRules, gpus: int) -> Term:
    seen = non_torch_gib(rules, gpu, gpus)
    formula = f"{seen.low:g}..{seen.high:g} GiB seen at tensor parallel size {gpus}"
    return _seen("non_torch", seen, formula)


def _cuda_graphs(model: Model, rules: StartRules, in_budget: bool) -> Term:
    seen = cuda_graphs_gib(rules, model)
    place = "inside" if in_budget else "on top of"
    return _seen("cuda_graphs", seen, f"{seen.low:g}..{seen.high:g} GiB seen, {place} the budget")


def _seen(name: str, gib: Interval, formula: str) -> Term:
    low, middle, high = (round(one * GIB) for one in gib)
    return Term(name, middle, low, high, formula=formula, source=SOURCE)
