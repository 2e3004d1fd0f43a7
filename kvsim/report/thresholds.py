"""Conditions under which a comparison fails, such as `ttft_s.p99 > +10%`."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from kvsim.errors import InputError
from kvsim.report.compare import Comparison, Figure, Pair
from kvsim.report.text import plain

GRAMMAR = (
    "Write [VARIANT:]METRIC OP THRESHOLD. METRIC is a path in summary.json, OP one of > >= < <=."
    " THRESHOLD with % is the change relative to the base (ttft_s.p99 > +10%), with a sign the"
    " change in the metric's unit (batch.mean < -2), without either the value itself"
    " (paged:preemptions > 100)"
)
Kind = Literal["relative", "change", "value"]

_MAX_LENGTH = 300
_METRIC = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+){0,8}", re.ASCII)
_NUMBER = re.compile(r"([+-]?)(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*(%?)", re.ASCII)
_OPERATORS: Mapping[str, Callable[[Fraction, Fraction], bool]] = MappingProxyType(
    {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
)


@dataclass(frozen=True)
class Rule:
    """A parsed condition; the comparison fails where it holds."""

    text: str
    variant: str | None
    """Name of the candidate's variant; None for all."""
    metric: str
    op: str
    threshold: Fraction
    """A share (0.1 for 10 %) when `kind` is relative, else in the metric's unit."""
    kind: Kind


@dataclass(frozen=True)
class Check:
    """What became of a rule for one pair."""

    rule: Rule
    pair: Pair
    figure: Figure
    breached: bool


def parse_rule(text: str) -> Rule:
    """Read a condition. Raises `InputError` with the grammar."""
    body = text[:_MAX_LENGTH].strip()
    found = re.search(r"[<>]=?", body)
    number = _NUMBER.fullmatch(body[found.end() :].strip()) if found else None
    if len(text) > _MAX_LENGTH or found is None or number is None:
        raise _unreadable(text)
    variant, colon, metric = body[: found.start()].rpartition(":")
    metric = metric.strip()
    if not _METRIC.fullmatch(metric) or (colon and not variant.strip()):
        raise _unreadable(text)
    sign, digits, percent = number.groups()
    threshold = Fraction(f"{sign}{digits}") / (100 if percent else 1)
    return Rule(
        text=body,
        variant=variant.strip() or None,
        metric=metric,
        op=found.group(),
        threshold=threshold,
        kind="relative" if percent else "change" if sign else "value",
    )


def check_rules(rules: Sequence[Rule], comparison: Comparison) -> tuple[Check, ...]:
    """Evaluate every rule on every pair that it is about.

    Figures are taken as the decimals that `summary.json` shows, so 1.1 is 10 % above 1, not a bit
    more. No change from 0 is 0 %, any other change from 0 is more (or less) than every percentage.
    Raises `InputError` for a variant that is not compared, and for a metric that does not exist or
    is undefined on either side: nobody would notice a condition that can never hold. For the same
    reason, with variants that only one run has, every rule must name a variant.
    """
    _refuse_unmatched(rules, comparison)
    checks = []
    for rule in rules:
        pairs = [p for p in comparison.pairs if rule.variant in (None, p.candidate.variant)]
        if not pairs:
            names = dict.fromkeys(pair.candidate.variant for pair in comparison.pairs)
            raise InputError(
                f"no variant {rule.variant!r} is compared with a base",
                where=f"--fail-if {rule.text!r}",
                fix=f"Compared are: {', '.join(names)}",
            )
        for pair in pairs:
            figure = _figure(rule, pair)
            checks.append(Check(rule, pair, figure, _holds(rule, figure)))
    return tuple(checks)


def _refuse_unmatched(rules: Sequence[Rule], comparison: Comparison) -> None:
    """A variant that was renamed or left out must not slip through a rule for all variants."""
    unscoped = next((rule for rule in rules if rule.variant is None), None)
    if unscoped is None or not comparison.unmatched:
        return
    compared = list(dict.fromkeys(pair.candidate.variant for pair in comparison.pairs))
    names = ", ".join(plain(side.title) for side in comparison.unmatched)
    raise InputError(
        f"a condition for all variants cannot be checked where only one run has them: {names}",
        where=f"--fail-if {unscoped.text!r}",
        fix=f"Compare runs with the same variants, or name the variant in every condition, such as"
        f" '{plain(compared[0])}:{unscoped.text}'. Compared are: {plain(', '.join(compared), 400)}",
    )


def _figure(rule: Rule, pair: Pair) -> Figure:
    where = f"--fail-if {rule.text!r}"
    by_path = {figure.path: figure for figure in pair.figures}
    figure = by_path.get(rule.metric)
    if figure is None:
        close = difflib.get_close_matches(rule.metric, by_path, n=3)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            f"{rule.metric} is no metric of these runs",
            where=where,
            fix=f"{hint}Name a path below a variant in summary.json, such as ttft_s.p99",
        )
    sides = ((pair.base, figure.base), (pair.candidate, figure.candidate))
    asked = sides[1:] if rule.kind == "value" else sides
    undefined = [side.title for side, value in asked if value is None]
    if undefined:
        raise InputError(
            f"{rule.metric} is undefined for {' and '.join(undefined)}",
            where=where,
            fix="Nothing was counted there: check the runs, or leave the condition out",
        )
    return figure


def _holds(rule: Rule, figure: Figure) -> bool:
    candidate = Fraction(str(figure.candidate))
    compared = _OPERATORS[rule.op]
    if rule.kind == "value":
        return compared(candidate, rule.threshold)
    base = Fraction(str(figure.base))
    change = candidate - base
    if rule.kind == "change":
        return compared(change, rule.threshold)
    if base == 0 and change != 0:
        return rule.op.startswith(">") == (change > 0)
    return compared(change, rule.threshold * abs(base))


def _unreadable(text: str) -> InputError:
    shown = text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "…"
    return InputError(
        f"cannot be read as a condition, got {shown!r}", where="--fail-if", fix=GRAMMAR
    )
