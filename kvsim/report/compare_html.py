"""A comparison as one HTML page that loads nothing."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from kvsim.report.compare_document import Document


def comparison_html(document: Document) -> str:
    """The page. Every text is escaped by the template engine."""
    environment = Environment(
        loader=PackageLoader("kvsim.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("compare.html.j2").render(document=document)
