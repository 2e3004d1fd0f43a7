from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvsim.report.html import write_report
from tests.report.reports import hostile_run, large_run, small_run
from tests.report.test_html_page import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OVERLAPS = """
() => {
  const found = [];
  const boxes = [...document.querySelectorAll(
    "h1, h2, h3, header > p, main p, .scroll, .figure, ul, dl, pre, nav")]
    .filter((element) => element.offsetParent !== null && element.textContent.trim() !== ""
      || element.classList.contains("figure"));
  const place = (element) => element.getBoundingClientRect();
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    if (boxes[i].contains(boxes[j]) || boxes[j].contains(boxes[i])) continue;
    const a = place(boxes[i]), b = place(boxes[j]);
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) found.push([boxes[i].outerHTML.slice(0, 80),
                                          boxes[j].outerHTML.slice(0, 80), wide, high]);
  }
  return found;
}
"""
"""Blocks of the page that cover each other."""

CHART_OVERLAPS = """
() => {
  const found = [];
  for (const figure of document.querySelectorAll(".figure")) {
    const texts = [...figure.querySelectorAll(
      ".annotation-text, .xtitle, .ytitle, .x2title, .y2title, .legendtext")];
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const a = texts[i].getBoundingClientRect(), b = texts[j].getBoundingClientRect();
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 2) found.push([texts[i].textContent, texts[j].textContent]);
    }
  }
  return found;
}
"""
"""Titles, labels and legend entries of a chart that cover each other."""

TOO_WIDE = """
() => [...document.querySelectorAll("body *")]
  .filter((element) => !element.closest("svg") && !element.closest(".scroll")
    && element.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map((element) => element.outerHTML.slice(0, 100))
"""


class Watched:
    """A page, what it asked for and what it complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on(
            "console",
            lambda message: (
                message.type in ("error", "warning") and self.complaints.append(message.text)
            ),
        )

    def open(self, path: Path) -> Watched:
        """Load a file and wait until its charts are drawn."""
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=true]", timeout=60_000)
        return self


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Opens a page in a window of its own."""
    contexts = []

    def open_page(path: Path, *, width: int = 1280, scheme: str = "light") -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 1000}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        return Watched(context.new_page()).open(path)

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(small_run(tmp_path_factory.mktemp("browser"))).path


@contextmanager
def printed(page: Any) -> Iterator[None]:
    page.emulate_media(media="print")
    page.wait_for_selector("html.printing[data-drawn=true]")
    page.wait_for_timeout(1000)
    yield
    page.emulate_media(media="screen")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_a_report_shows_everything_without_overlap_request_or_complaint(
    report: Path, look: Callable[..., Watched], screenshots: Path, width: int, scheme: str
) -> None:
    seen = look(report, width=width, scheme=scheme)
    seen.page.screenshot(path=screenshots / f"report-{width}-{scheme}.png", full_page=True)
    assert seen.requests == [report.as_uri()]
    assert seen.complaints == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    assert seen.page.evaluate(TOO_WIDE) == []
    assert seen.page.evaluate(OVERLAPS) == []
    assert seen.page.evaluate(CHART_OVERLAPS) == []
    charts = seen.page.locator(".figure .main-svg").count()
    assert charts >= 6


def test_the_charts_take_the_colours_of_the_scheme(
    report: Path, look: Callable[..., Watched]
) -> None:
    fills = {
        scheme: look(report, scheme=scheme)
        .page.locator("#figure-load .ytitle")
        .first.evaluate("element => getComputedStyle(element).fill")
        for scheme in ("light", "dark")
    }
    assert fills == {"light": "rgb(27, 31, 36)", "dark": "rgb(231, 234, 238)"}


def test_on_paper_the_charts_fit_the_page_in_dark_ink(
    report: Path, look: Callable[..., Watched], screenshots: Path
) -> None:
    page = look(report, scheme="dark").page
    with printed(page):
        page.screenshot(path=screenshots / "report-print.png", full_page=True)
        ink = page.locator("#figure-load .ytitle").first
        assert ink.evaluate("element => getComputedStyle(element).fill") == "rgb(0, 0, 0)"
        widths = page.eval_on_selector_all(
            ".figure", "all => all.map(one => one.getBoundingClientRect().width)"
        )
        assert max(widths) <= 703  # A4 less two margins of 12 mm, at 96 dots per inch
        assert page.evaluate(CHART_OVERLAPS) == []
    content = page.pdf(path=screenshots / "report.pdf", prefer_css_page_size=True)
    assert content.startswith(b"%PDF")
    page.wait_for_selector("html:not(.printing)")


def test_another_variant_and_moment_can_be_chosen(
    report: Path, look: Callable[..., Watched]
) -> None:
    page = look(report).page
    label = page.locator("#choose-map option").last.inner_text()
    page.select_option("#choose-map", label=label)
    assert page.inner_text("#note-map").split()[1] == "requests"
    assert page.locator("#holders-map tr").count() > 0
    page.select_option("#choose-waterfall", "0")
    page.wait_for_selector("#figure-waterfall .bartext")
    assert page.locator("#figure-waterfall .bartext").count() > 2


def test_hostile_names_and_ids_are_shown_as_text_and_run_nothing(
    tmp_path: Path, look: Callable[..., Watched], screenshots: Path
) -> None:
    seen = look(write_report(hostile_run(tmp_path, HOSTILE)).path)
    seen.page.screenshot(path=screenshots / "report-hostile.png", full_page=True)
    assert seen.complaints == []
    assert len(seen.requests) == 1
    assert seen.page.locator("img").count() == 0
    assert seen.page.locator("script").count() == 3
    assert "</script><script>alert(1)" in seen.page.inner_text("h1")
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 1280
    assert seen.page.evaluate(OVERLAPS) == []


def test_a_script_that_got_into_the_page_would_not_run(
    report: Path, tmp_path: Path, look: Callable[..., Watched]
) -> None:
    text = report.read_text("utf-8")
    bad = "<img src=x onerror='document.title=1'><script>document.title = 'run'</script>"
    path = tmp_path / "injected.html"
    path.write_text(text.replace("<main>", "<main>" + bad), "utf-8")
    seen = look(path)
    assert seen.page.title() == "small – kvsim report"
    assert any("Content Security Policy" in complaint for complaint in seen.complaints)


def test_a_page_of_a_large_run_opens(
    tmp_path: Path, look: Callable[..., Watched], screenshots: Path
) -> None:
    run_dir = large_run(tmp_path, requests=2_000, steps=5_000, variants=3)
    seen = look(write_report(run_dir).path, width=1920)
    seen.page.screenshot(path=screenshots / "report-large.png", full_page=True)
    assert seen.complaints == []
    assert seen.page.evaluate(OVERLAPS) == []
    assert seen.page.evaluate(CHART_OVERLAPS) == []
