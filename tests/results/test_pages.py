"""The section `pages`: what is pinned, averaged over time."""

from __future__ import annotations

import pytest

from kvsim.core.page_pins import PageSets
from kvsim.results.pages import PagesRecorder
from tests.results.fakes import S, plan

SET_BYTES = 4096


def _run(recorder: PagesRecorder, pages: PageSets) -> None:
    """Pages of 4 blocks: 10 s with 5 held blocks in 2 pages, 30 s idle with 3 cached ones in 2."""
    pages.hold(range(5), cached=False)
    recorder.step(plan(), 0, 10 * S)
    pages.free([0, 1, 4], cached=True)
    pages.free([2, 3], cached=False)
    recorder.idle(10 * S, 30 * S)
    pages.hold([0], cached=True)
    recorder.step(plan(), 40 * S, 10 * S)


def test_averages_are_over_time_and_what_is_cached_stays_pinned_while_nothing_runs() -> None:
    pages = PageSets(14, 4)
    recorder = PagesRecorder(pages)
    _run(recorder, pages)
    assert recorder.counts(SET_BYTES) == {
        "page_sets": 4,
        "page_set_bytes": 4096,
        "held_page_sets": (10 * 2 + 30 * 0 + 10 * 1) / 50,
        "cached_page_sets": (10 * 0 + 30 * 2 + 10 * 1) / 50,
        "peak_page_sets": 2,
        "unfilled": pytest.approx(1 - (10 * 5 + 30 * 3 + 10 * 3) / (50 * 2 * 4), rel=1e-12),
    }


def test_a_window_cuts_steps_and_idle_time() -> None:
    pages = PageSets(14, 4)
    recorder = PagesRecorder(pages, window=(5 * S, 20 * S))
    _run(recorder, pages)
    counts = recorder.counts(SET_BYTES)
    assert counts["held_page_sets"] == 5 * 2 / 15
    assert counts["cached_page_sets"] == 10 * 2 / 15


def test_nothing_observed_has_no_averages() -> None:
    counts = PagesRecorder(PageSets(8, 4)).counts(SET_BYTES)
    assert (counts["held_page_sets"], counts["cached_page_sets"], counts["unfilled"]) == (
        None,
        None,
        None,
    )
