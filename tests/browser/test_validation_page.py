from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_backend.validate.page import validation_page
from tests.browser.test_report_page import CHART_OVERLAPS, OVERLAPS, TOO_WIDE, Watched
from tests.gpu_backend_validate.test_page import small_document

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1920, "dark"), (420, "dark")])
def test_a_validation_shows_everything_without_overlap_request_or_complaint(
    browser: Any, tmp_path: Path, screenshots: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "validation.html"
    path.write_text(validation_page(small_document()), "utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, color_scheme=scheme, offline=True
    )
    try:
        seen = Watched(context.new_page()).open(path)
        page = seen.page
        page.screenshot(path=screenshots / f"validation-{width}-{scheme}.png", full_page=True)
        assert seen.requests == [path.as_uri()]
        assert page.locator(".figure .main-svg").count() >= 3
        assert page.locator("#figure-lockstep .points path").count() > 20
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(CHART_OVERLAPS) == []
        page.select_option("#choose-free", label="whole, load 0.9")
        assert page.inner_text("#note-free") == "whole, load 0.9."
        assert page.locator("#figure-free .barlayer path").count() > 5
        assert seen.complaints == []
    finally:
        context.close()
