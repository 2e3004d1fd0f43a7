from __future__ import annotations

import html
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from kvsim.report.compare import Comparison, compare
from kvsim.report.compare_document import change_text, comparison_document, number
from kvsim.report.compare_html import comparison_html
from kvsim.report.compare_json import comparison_json
from kvsim.report.compare_text import comparison_markdown, literal, print_comparison
from kvsim.report.text import plain
from kvsim.report.thresholds import check_rules, parse_rule
from tests.report.comparable import entry, seeded, source, summary

HOSTILE = [
    "</script><script>alert(1)</script>",
    "a|b\\|c`d`|",
    "@everyone see #1, GH-2, http://x.example, www.x.example",
    '<img src=x onerror="alert(1)">',
    "![x](http://x.example/a.png) [y](javascript:alert(1)) **z** _z_ ~~z~~ $z$",
    "| --- |\n\n# heading",
    "\u202egnol\u202c",
    "مرحبا",
    "\ud800\x1b[31m",
    "1. - x",
    "z" * 10_000,
    "{{ 7 * 7 }}{% raw %}",
]


def two(base: dict[str, Any], candidate: dict[str, Any], **options: bool) -> Comparison:
    return compare([source("a", base), source("b", candidate)], **options)


def text(comparison: Comparison) -> str:
    stream = io.StringIO()
    print_comparison(comparison_document(comparison), Console(file=stream, width=200))
    return stream.getvalue()


def cells(page: str, label: str) -> list[str]:
    """The cells of the last Markdown row of this figure."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in rows[-1].split("|")[2:-1]]


def test_a_row_shows_both_figures_the_signed_difference_and_the_verdict() -> None:
    other = entry(preemptions=5, throughput={"requests_per_s": 7.654321})
    page = comparison_markdown(comparison_document(two(summary(), summary(paged=other))))
    assert cells(page, "preemptions") == ["4", "5", "+1", "+25 %", "worse", "count"]
    assert cells(page, "throughput.requests_per_s") == [
        "8",
        "7.65432",
        "-0.345679",
        "-4.32 %",
        "worse",
        "requests/s",
    ]
    assert cells(page, "memory.by_time.live") == ["0.5", "0.5", "share"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (35, "35"),
        (12345678, "12345678"),
        (0.12345651, "0.123457"),
        (1234567.8, "1234568"),
        (999999.7, "1000000"),
        (999999.4, "999999"),
        (99999.7, "99999.7"),
        (3.0, "3"),
        (1e-7, "1e-07"),
    ],
)
def test_figures_are_the_summarys_to_the_printed_digit(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_differences_are_never_rounded_to_a_power_of_ten() -> None:
    other = entry(preemptions=4 + 999999.7, throughput={"requests_per_s": 8 * 1000.9997})
    page = comparison_markdown(comparison_document(two(summary(), summary(paged=other))))
    assert cells(page, "preemptions")[2] == "+1000000"
    assert cells(page, "throughput.requests_per_s")[3] == "+100,000 %"
    near = entry(preemptions=4 * 10.9996)
    page = comparison_markdown(comparison_document(two(summary(), summary(paged=near))))
    assert cells(page, "preemptions")[3] == "+1,000 %"
    wide = two(seeded({0: 0, 1: 0}), seeded({0: 0, 1: 20_000}))
    (figure,) = wide.pairs[0].figures
    assert "e+" not in change_text(figure)


def test_seeds_that_only_some_runs_share_are_named() -> None:
    page = text(two(seeded({0: 1, 1: 2, 2: 4}), seeded({1: 5, 2: 6, 3: 9})))
    assert "Paired are the seeds common to both runs: 1, 2." in page
    assert "Student's t on differences paired by seed" in page
    page = text(two(seeded({0: 1, 1: 2}), seeded({1: 5, 2: 6})))
    assert "fewer than two seeds are common to both" in page
    assert "Paired" not in page


def test_intervals_are_shown_with_the_figures_and_the_differences() -> None:
    base, candidate = seeded({0: 10, 1: 20}), seeded({0: 12, 1: 24})
    base["variants"]["paged"]["memory"] = {"kv_utilization": 0.5}
    base["variants"]["paged"]["intervals"] = {"memory.kv_utilization": [0.25, 0.75]}
    page = html.unescape(comparison_markdown(comparison_document(two(base, candidate))))
    assert "| memory.kv_utilization | 0.5 ± 0.25 | - | share |" in page
    assert cells(page, "batch.mean")[2:5] == ["+3 [-9.706, +15.71]", "+20 %", "within noise"]
    assert "Student's t on differences paired by seed" in page


def test_json_holds_every_digit_of_both_summaries() -> None:
    value = 0.12345678901234567
    comparison = two(summary(), summary(paged=entry(preemptions=value)))
    found = json.loads(json.dumps(comparison_json(comparison), allow_nan=False))
    (pair,) = found["pairs"]
    (figure,) = [one for one in pair["figures"] if one["metric"] == "preemptions"]
    assert figure == {
        "metric": "preemptions",
        "base": 4,
        "candidate": value,
        "difference": value - 4,
        "relative": (value - 4) / 4,
        "interval": None,
        "better": "lower",
        "verdict": "better",
    }
    assert (found["mismatches"], found["checks"]) == ([], [])
    assert pair["candidate"] == {"run": "b", "variant": "paged"}


def test_nothing_different_is_said_in_words() -> None:
    shown = text(two(summary(), summary()))
    assert "B: paged against A: paged: no difference in any figure." in shown
    assert "better" not in shown
    assert "worse" not in shown


def test_a_forced_comparison_says_so_first_and_in_json() -> None:
    comparison = two(summary(), summary(digest="e", source="b.csv"), force=True)
    warning = "Not comparable, shown because of --force: different requests"
    document = comparison_document(comparison)
    assert text(comparison).startswith(f"WARNING: {warning}")
    assert comparison_markdown(document).split("\n")[2:4] == [
        "> [!WARNING]",
        "> Not comparable, shown because of --force: different requests: "
        "a (trace.csv, digest d) and b (b.csv, digest e).",
    ]
    assert 'class="warning"' in comparison_html(document)
    assert comparison_json(comparison)["mismatches"][0]["what"] == "requests"


def test_checks_are_shown_with_their_figures() -> None:
    comparison = two(summary(), summary(paged=entry(preemptions=5)))
    rules = [parse_rule(rule) for rule in ("preemptions > +10%", "ttft_s.p99 > +10%")]
    document = comparison_document(comparison, check_rules(rules, comparison))
    assert document.blocks[:3] == (
        "1 of 2 checks failed.",
        "FAILED preemptions > +10%: B: paged against A: paged: 4 -> 5 (+1, +25 %)",
        "passed ttft_s.p99 > +10%: B: paged against A: paged: 2 -> 2 (+0, +0 %)",
    )


class Elements(HTMLParser):
    """Collects the names of elements and attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile(name: str) -> Comparison:
    contents = []
    for value in (1, 2):
        setup = {"model": name, "clock": f"{name}{value}"}
        content = summary(source=name, **{name: entry(preemptions=value, setup=setup)})
        content["scenario"] = content["kvsim_version"] = name
        contents.append(content)
    contents[1]["workload"]["digest"] = name
    return two(*contents, force=True)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text_in_html(name: str) -> None:
    comparison = hostile(name)
    page = comparison_html(comparison_document(comparison))
    found = Elements()
    found.feed(page)
    harmless = Elements()
    harmless.feed(comparison_html(comparison_document(hostile("name"))))
    assert found.names == harmless.names
    assert found.attributes == harmless.attributes
    assert plain(name, 60)[:30] in found.text
    assert len(page) < 100_000
    page.encode("utf-8")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text_in_markdown(name: str) -> None:
    """No line has another shape than with a harmless name, and no sign is left that means more."""
    page = comparison_markdown(comparison_document(hostile(name)))
    harmless = comparison_markdown(comparison_document(hostile("name")))
    lines, expected = page.splitlines(), harmless.splitlines()
    assert [line.count("|") for line in lines] == [line.count("|") for line in expected]
    assert [line[:2] for line in lines if line] == [line[:2] for line in expected if line]
    for line in lines:
        text = line.removeprefix("> [!WARNING]").removeprefix("### ").removeprefix("> ")
        text = re.sub(r"^\*\*(.*)\*\*$", r"\1", text)
        assert not re.search(r"[<>`\[\]\\@~$!{}*]|#(?!\d+;)|www\.|GH-|://", text), line
    assert not re.search(r"[@#]\w|GH-\d|www\.\w", html.unescape(page))
    assert len(page) < 100_000
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", page)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_not_reach_the_terminal_or_break_json(name: str) -> None:
    comparison = hostile(name)
    shown = text(comparison)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\ud800]", shown)
    assert len(shown) < 100_000
    json.loads(json.dumps(comparison_json(comparison), allow_nan=False))


def test_literal_text_comes_back_as_it_was() -> None:
    for name in HOSTILE:
        text = plain(name)
        assert html.unescape(literal(text)).replace("\u200b", "") == text
