"""`report.html`: one self-contained page about a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.report.headline import headline
from kvsim.report.html_data import ReportData, read_report_data
from kvsim.report.html_page import page
from kvsim.report.html_texts import Again
from kvsim.results.files import write_whole

REPORT_NAME = "report.html"
MAX_BYTES = 6_000_000
"""Most bytes of a page; the physical maps get coarser, then fewer, to stay below."""
_MAP_PIECES = (24_000, 10_000, 0)


class Report(NamedTuple):
    """A written page."""

    path: Path
    bytes: int
    sentence: str
    """What the run shows, in one sentence with numbers."""
    binds: dict[str, str]
    """Variant -> the bound that binds it (`bounds.MEANINGS`)."""
    compute_would_allow: dict[str, int | None]
    """Variant -> requests that compute would let run at once."""


def write_report(run_dir: Path, out: Path | None = None) -> Report:
    """Write the page about a run folder to `out`, left out `report.html` inside the folder.

    An existing file is replaced, by renaming, once the page is complete. Raises `InputError` for a
    folder that is no run, a page that cannot be written, and one that stays above 6 MB.
    """
    data = read_report_data(run_dir)
    content = render(data)
    path = run_dir / REPORT_NAME if out is None else out
    write_whole(path, content, "report")
    return Report(
        path,
        len(content),
        headline(data.variants),
        {one.label: one.bound.binds for one in data.variants},
        {one.label: one.limit.batch for one in data.variants},
    )


def render(data: ReportData, again: Again | None = None) -> bytes:
    """The page in UTF-8, at most `MAX_BYTES`; `again` as in `page`."""
    for map_pieces in _MAP_PIECES:
        text = page(data, map_pieces=map_pieces, again=again)
        content = text.encode("utf-8", "backslashreplace")
        if len(content) <= MAX_BYTES:
            return content
    raise InputError(
        f"the report has {len(content):,} bytes, it may have {MAX_BYTES:,}",
        where=str(data.run.path),
        fix="Run the scenario with fewer variants.",
    )
