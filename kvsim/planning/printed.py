"""Terms as a server prints them: some that have lines of their own here are within others there."""

from __future__ import annotations

import math
from dataclasses import replace

from kvsim.catalog import Budget, Term

WITHIN = {
    "encoder_weights": "weights",
    "lora_adapters": "weights",
    "draft_model": "weights",
    "encoder_cache": "activation_peak",
}
"""Where vLLM prints what has a line of its own here."""


def printed_terms(budget: Budget) -> dict[str, Term]:
    """By name, each with what the server prints within it; intervals add in quadrature."""
    found = {term.name: term for term in budget.terms()}
    for name, outer in WITHIN.items():
        inner = found.pop(name, None)
        if inner is None:
            continue
        whole = found[outer]
        size = whole.bytes + inner.bytes
        below = math.hypot(whole.bytes - whole.low, inner.bytes - inner.low)
        above = math.hypot(whole.high - whole.bytes, inner.high - inner.bytes)
        found[outer] = replace(whole, bytes=size, low=size - round(below), high=size + round(above))
    return found
