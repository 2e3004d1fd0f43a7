"""The page: the template, and what goes into it."""

from __future__ import annotations

from importlib.resources import files

import jinja2

from kvsim.report.html_data import ReportData
from kvsim.report.html_embed import content_security_policy, embed_json, plotly_js
from kvsim.report.html_figures import draw
from kvsim.report.html_texts import Again, head, notes, tables

_SECTIONS = (
    ("bounds", "What binds", None),
    ("memory", "Memory", None),
    ("map", "Physical map", "map"),
    ("block-size", "Block size", "block_size"),
    ("load", "Batch and queue", "load"),
    ("sharing", "Memory that branches share", "sharing"),
    ("serving", "Serving", None),
    ("definitions", "Definitions", None),
    ("again", "Scenario", None),
)
"""Anchor, title, and the figure without which there is no section."""


def page(data: ReportData, *, map_pieces: int, again: Again | None = None) -> str:
    """The whole page as text; all maps together have about `map_pieces` pieces.

    `again` says how the run is made again, left out from its folder.
    """
    drawn = draw(data, map_pieces=map_pieces)
    script, plotly = template_file("report.js"), plotly_js()
    return (
        template_environment()
        .get_template("report.html.j2")
        .render(
            **head(data, again),
            **tables(data),
            policy=content_security_policy(plotly, script),
            css=template_file("report.css"),
            contents=[
                (a, title) for a, title, needs in _SECTIONS if not needs or needs in drawn.figures
            ],
            drawn=set(drawn.figures),
            choices=drawn.choices,
            notes=notes(data),
            figures=embed_json(drawn.figures),
            plotly=plotly,
            script=script,
        )
    )


def template_environment() -> jinja2.Environment:
    """For this package's templates: escapes what it is given, refuses unknown names."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(template_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template_file(name: str) -> str:
    """The text of a file in `templates`."""
    return files("kvsim.report").joinpath("templates", name).read_text("utf-8")
