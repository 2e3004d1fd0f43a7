"""Figures of any kind as one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvsim import __version__
from kvsim.report.compare_document import Table
from kvsim.report.html_embed import content_security_policy, embed_json, plotly_js
from kvsim.report.html_page import template_environment, template_file


def figures_html(
    title: str,
    figures: Mapping[str, Mapping[str, Any]],
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
) -> bytes:
    """A page in UTF-8: title, a paragraph for each note, heading -> plotly figure, the tables.

    It makes no request and runs no script but plotly.js and its own. Titles, headings, notes and
    cells are text, never markup. Figures may hold NumPy arrays; NaN and infinity in them are gaps.
    """
    script, plotly = template_file("report.js"), plotly_js()
    drawn = {
        str(place): {"figure": _finite(figure)} for place, figure in enumerate(figures.values())
    }
    page = (
        template_environment()
        .get_template("figures.html.j2")
        .render(
            policy=content_security_policy(plotly, script),
            title=title,
            css=template_file("report.css"),
            notes=list(notes),
            version=__version__,
            headings=list(figures),
            tables=list(tables),
            figures=embed_json(drawn),
            plotly=plotly,
            script=script,
        )
    )
    return page.encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    """The same of what JSON has: lists for arrays, null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _finite(value.tolist()) if hasattr(value, "tolist") else value
