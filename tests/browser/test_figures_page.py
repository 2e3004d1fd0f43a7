from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.report.compare_document import Table
from kvsim.report.figures_page import figures_html
from tests.browser.test_report_page import TOO_WIDE, Watched
from tests.report.test_html_page import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_page_of_figures_opens_offline_and_draws_them(
    browser: Any, tmp_path: Path, screenshots: Path
) -> None:
    figure = {
        "data": [{"type": "scatter", "x": [1, 2, 3], "y": [1, None, 2], "name": HOSTILE[0]}],
        "layout": {"height": 320, "xaxis": {"title": {"text": "block size (tokens)"}}},
    }
    path = tmp_path / "figures.html"
    table = Table("As a table", ("size", "share"), (("16", "0.5"), (HOSTILE[0], "1")))
    drawn = {"One": figure, HOSTILE[0]: figure}
    path.write_bytes(figures_html(HOSTILE[0], drawn, [HOSTILE[3]], [table]))
    for scheme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 1280, "height": 1000}, color_scheme=scheme, offline=True
        )
        seen = Watched(context.new_page()).open(path)
        assert seen.page.locator(".figure .scatterlayer .trace").count() == 2
        assert seen.page.evaluate(TOO_WIDE) == []
        assert seen.complaints == []
        assert seen.requests == [path.as_uri()]
        seen.page.screenshot(path=screenshots / f"figures-{scheme}.png", full_page=True)
        context.close()
