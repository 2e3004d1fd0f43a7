"""The bounds of a scenario against what was found: a list of checks, each with both numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from gpu_backend.validate.free import CLOSED, Compared
from kvsim.scenario.validation import BoundSettings

Errors = Mapping[str, Mapping[str, float]]
"""Kind of step -> `steps`, `median`, `p90`, `bias`."""


class Check(NamedTuple):
    """One bound on one figure."""

    variant: str
    name: str
    value: float
    """Relative error, as a fraction; for counts 0 (equal) or 1."""
    bound: float
    ok: bool

    @property
    def line(self) -> str:
        """The check in words."""
        if self.name == "counts":
            return f"{self.variant}: the device took other steps than the simulation"
        state = "within" if self.ok else "past"
        return f"{self.variant}: {self.name} is off by {self.value:.1%}, {state} {self.bound:.1%}"


class Found(NamedTuple):
    """What one variant showed."""

    is_paged: bool
    counts_equal: bool
    errors: Errors
    noise: Errors
    free: Mapping[str, Mapping[str, Compared]]
    """Load -> figure -> both sides."""


def step_bounds(noise: Errors, bounds: BoundSettings) -> dict[str, dict[str, float]]:
    """Bounds in force by kind of step: those stated, or twice the noise where that is more."""
    stated = {
        "all": {"median": bounds.step_median, "p90": bounds.step_p90},
        "prefill": {"median": bounds.prefill_median},
    }
    return {
        kind: {share: max(bound, 2 * noise[kind][share]) for share, bound in shares.items()}
        for kind, shares in stated.items()
        if kind in noise
    }


def judge(found: Mapping[str, Found], bounds: BoundSettings) -> list[Check]:
    """All checks, in the order of the variants."""
    checks: list[Check] = []
    for variant, one in found.items():
        checks.append(Check(variant, "counts", float(not one.counts_equal), 0, one.counts_equal))
        checks += _step_checks(variant, one, bounds)
        for load, figures in one.free.items():
            tpot = _difference(figures["tpot_p50_s"])
            checks.append(_check(variant, f"TPOT p50 at load {load}", tpot, bounds.tpot_p50))
            usage = _difference(figures["kv_usage"])
            checks.append(_check(variant, f"KV usage at load {load}", usage, bounds.kv_usage))
            if load == CLOSED:
                rate = _difference(figures["requests_per_s"])
                checks.append(_check(variant, "saturation rate", rate, bounds.saturation))
    checks += [
        _check(name, "ratio of saturation rates", _difference(ratio), bounds.layout_ratio)
        for name, ratio in layout_ratios(found).items()
    ]
    return checks


def layout_ratios(found: Mapping[str, Found]) -> dict[str, Compared]:
    """Saturation rates of paged over contiguous variants, both sides. Names as `a / b`."""
    rates = {
        name: one.free[CLOSED]["requests_per_s"]
        for name, one in found.items()
        if CLOSED in one.free
    }
    paged = [name for name in rates if found[name].is_paged]
    contiguous = [name for name in rates if not found[name].is_paged]
    ratios = {}
    for upper, lower in product(paged, contiguous):
        if rates[lower].measured and rates[lower].simulated and rates[upper].measured:
            measured = rates[upper].measured / rates[lower].measured
            simulated = rates[upper].simulated / rates[lower].simulated
            ratios[f"{upper} / {lower}"] = Compared(
                measured, simulated, simulated / measured - 1, None
            )
    return ratios


def _step_checks(variant: str, one: Found, bounds: BoundSettings) -> list[Check]:
    limits = step_bounds(one.noise, bounds)
    return [
        _check(variant, f"step time ({kind}), {share}", one.errors[kind][share], bound)
        for kind, shares in limits.items()
        for share, bound in shares.items()
    ]


def _check(variant: str, name: str, value: float, bound: float) -> Check:
    return Check(variant, name, abs(value), bound, abs(value) <= bound)


def _difference(compared: Compared) -> float:
    """A figure that one side alone has is off by all of it."""
    if compared.difference is None:
        return 1.0 if compared.simulated else 0.0
    return compared.difference
