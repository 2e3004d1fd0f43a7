from __future__ import annotations

import json

import numpy as np
import pytest

from kvsim.report.compare_document import Table
from kvsim.report.figures_page import figures_html
from kvsim.report.html_embed import content_security_policy
from tests.report.test_html_page import HOSTILE, Page

FIGURE = {
    "data": [{"type": "scatter", "x": np.array([1, 2, 3]), "y": [0.5, float("nan"), float("inf")]}],
    "layout": {"height": 300, "xaxis": {"title": {"text": "tokens"}}},
}


def page(title: str = "Lab", heading: str = "Tails", *notes: str) -> Page:
    return Page(figures_html(title, {heading: FIGURE}, notes).decode())


def test_the_page_holds_every_figure_with_its_heading_and_the_notes() -> None:
    found = Page(figures_html("Lab", {"Tails": FIGURE, "Kernels": FIGURE}, ["Of x."]).decode())
    assert [tag for tag, _ in found.tags].count("h2") == 2
    boxes = [attrs["data-figure"] for _, attrs in found.tags if "data-figure" in attrs]
    assert boxes == list(found.figures()) == ["0", "1"]
    text = figures_html("Lab", {"Tails": FIGURE}, ["Of x."]).decode()
    assert "<h1><bdi>Lab</bdi></h1>\n<p><bdi>Of x.</bdi></p>" in text
    assert "<h2><bdi>Tails</bdi></h2>" in text


def test_arrays_become_lists_and_what_is_not_finite_a_gap() -> None:
    trace = page().figures()["0"]["figure"]["data"][0]
    assert trace == {"type": "scatter", "x": [1, 2, 3], "y": [0.5, None, None]}


def test_the_page_refers_to_nothing_outside_itself() -> None:
    found = page()
    for tag, attrs in found.tags:
        assert tag not in ("link", "iframe", "img", "base", "object"), attrs
        assert not {"src", "href", "srcset", "action"} & set(attrs), (tag, attrs)
    policy = next(attrs["content"] for _, attrs in found.tags if "http-equiv" in attrs)
    assert policy == content_security_policy(*found.scripts[1:])
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_never_markup(text: str) -> None:
    plain, hostile = page("a", "b", "c"), page(text, text, text)
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    figure = {"data": [{"type": "bar", "x": [text], "y": [1]}], "layout": {"title": {"text": text}}}
    drawn = Page(figures_html("a", {"b": figure}, ["c"]).decode())
    assert [tag for tag, _ in drawn.tags] == [tag for tag, _ in plain.tags]
    assert json.loads(json.dumps(figure)) == drawn.figures()["0"]["figure"]


def test_tables_stand_below_the_figures_as_text() -> None:
    table = Table("Terms & more", ("term", "slots"), (("<b>live</b>", "12"), ("free", "3")))
    found = Page(figures_html("a", {"b": FIGURE}, tables=[table]).decode())
    assert found.rows == [["term", "slots"], ["<b>live</b>", "12"], ["free", "3"]]
    assert "b" not in [tag for tag, _ in found.tags]
