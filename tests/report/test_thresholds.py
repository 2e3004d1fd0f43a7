from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.report.compare import compare
from kvsim.report.thresholds import GRAMMAR, check_rules, parse_rule
from tests.report.comparable import entry, source, summary


def failed(rule: str, base: object, candidate: object) -> bool:
    """Whether the rule on `preemptions` holds for these two figures."""
    runs = [
        source(n, summary(paged=entry(preemptions=v))) for n, v in (("a", base), ("b", candidate))
    ]
    (check,) = check_rules([parse_rule(rule)], compare(runs))
    return check.breached


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ttft_s.p99 > +10%", (None, "ttft_s.p99", ">", Fraction(1, 10), "relative")),
        ("ttft_s.p99>10 %", (None, "ttft_s.p99", ">", Fraction(1, 10), "relative")),
        ("batch.mean < -2.5", (None, "batch.mean", "<", Fraction(-5, 2), "change")),
        ("steps >= 100", (None, "steps", ">=", Fraction(100), "value")),
        ("paged:steps<=.5", ("paged", "steps", "<=", Fraction(1, 2), "value")),
        ("a: b+c.1 : steps > +0", ("a: b+c.1", "steps", ">", Fraction(0), "change")),
    ],
)
def test_a_condition_is_read(text: str, parts: tuple[Any, ...]) -> None:
    rule = parse_rule(text)
    assert (rule.variant, rule.metric, rule.op, rule.threshold, rule.kind) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft_s.p99",
        "ttft_s.p99 > ",
        "> 10",
        "ttft_s.p99 = 10",
        "ttft_s.p99 >> 10",
        "ttft_s.p99 > ten",
        "ttft_s.p99 > 1e3",
        "ttft_s.p99 > --1",
        "ttft_s.p99 > 10%%",
        "ttft_s.p99 > 10 and steps > 3",
        "ttft_s..p99 > 10",
        "ttft s > 10",
        ":steps > 10",
        "steps > ١",
        "steps > " + "1" * 400,
        "x" * 10_000,
    ],
)
def test_what_is_no_condition_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rule(text)
    assert caught.value.fix == GRAMMAR
    assert len(caught.value.problem) < 400


@given(st.text(max_size=400))
def test_any_text_is_a_condition_or_bad_input(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InputError:
        return
    assert rule.op in (">", "<", ">=", "<=")


@pytest.mark.parametrize(
    ("rule", "base", "candidate", "holds"),
    [
        ("preemptions > +10%", 1.0, 1.1, False),
        ("preemptions >= +10%", 1.0, 1.1, True),
        ("preemptions > +10%", 1.0, 1.1000001, True),
        ("preemptions > +10%", 10, 12, True),
        ("preemptions < -10%", 10, 8, True),
        ("preemptions < -10%", 10, 9, False),
        ("preemptions < -10%", 10, 12, False),
        ("preemptions > +2", 10, 12, False),
        ("preemptions > +2", 10, 13, True),
        ("preemptions < -0.5", 10, 9, True),
        ("preemptions > 12", 1, 12, False),
        ("preemptions >= 12", 100, 12, True),
        ("preemptions > +10%", 0, 0, False),
        ("preemptions > +10%", 0, 1, True),
        ("preemptions < -10%", 0, 1, False),
        ("preemptions <= +0%", 0, 0, True),
    ],
)
def test_a_condition_holds_or_does_not(
    rule: str, base: float, candidate: float, holds: bool
) -> None:
    assert failed(rule, base, candidate) is holds


@pytest.mark.parametrize(("base", "candidate"), [(None, 1), (1, None), (None, None)])
def test_an_undefined_figure_is_an_error_and_no_pass(base: object, candidate: object) -> None:
    with pytest.raises(InputError, match="preemptions is undefined for"):
        failed("preemptions > +10%", base, candidate)


def test_a_limit_on_a_value_needs_no_value_of_the_base() -> None:
    """Offloading has figures of its own, which a base without it lacks."""
    assert failed("preemptions > 100", None, 101) is True
    assert failed("preemptions > 100", None, 100) is False
    with pytest.raises(InputError, match="preemptions is undefined for"):
        failed("preemptions > 100", 101, None)


def test_an_unknown_metric_is_an_error_that_names_near_ones() -> None:
    runs = [source(name, summary()) for name in "ab"]
    with pytest.raises(InputError, match=r"ttft_s\.p9 is no metric.*Did you mean ttft_s\.p99"):
        check_rules([parse_rule("ttft_s.p9 > 1")], compare(runs))


def test_a_prefix_restricts_a_condition_to_a_variant() -> None:
    base = summary(one=entry(), two=entry())
    worse = summary(one=entry(preemptions=9), two=entry(preemptions=8))
    comparison = compare([source("a", base), source("b", worse)])
    both = check_rules([parse_rule("preemptions > +10%")], comparison)
    assert [(c.pair.candidate.variant, c.breached) for c in both] == [("one", True), ("two", True)]
    (only,) = check_rules([parse_rule("two:preemptions > 8")], comparison)
    assert (only.pair.candidate.variant, only.figure.candidate, only.breached) == ("two", 8, False)
    with pytest.raises(InputError, match=r"no variant 'three'.*one, two"):
        check_rules([parse_rule("three:preemptions > 8")], comparison)


def test_a_condition_for_all_variants_is_refused_where_one_run_lacks_a_variant() -> None:
    """Renamed, left out or new; with the variant named in every condition it is checked."""
    one, both = summary(one=entry()), summary(one=entry(), two=entry())
    for runs, side in (((both, one), "A: two"), ((one, both), "B: two")):
        comparison = compare([source(name, run) for name, run in zip("ab", runs, strict=True)])
        for texts in (["steps > 1"], ["one:preemptions > 9", "preemptions > 9"]):
            with pytest.raises(InputError, match=f"only one run has them: {side}") as caught:
                check_rules([parse_rule(text) for text in texts], comparison)
            assert f"'one:{texts[-1]}'" in str(caught.value.fix)
        (check,) = check_rules([parse_rule("one:preemptions > 9")], comparison)
        assert not check.breached
        assert check_rules([], comparison) == ()
