"""A comparison on a terminal and as Markdown for a pull request."""

from __future__ import annotations

import re

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kvsim.report.compare_document import Document, Table

_LINKS = re.compile(r"(www|GH)([.-])", re.IGNORECASE)
_LITERAL = re.compile(
    r"(?!(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))(?!: )[^A-Za-z0-9 .,;'()=+%/±-]", re.ASCII
)


def print_comparison(document: Document, console: Console) -> None:
    """Print the comparison. No text in it is read as markup."""
    for warning in document.warnings:
        console.print(Text(f"WARNING: {warning}"))
    for line in document.lines:
        console.print(Text(line))
    for block in document.blocks:
        if isinstance(block, Table):
            console.print(Text(block.title, style="bold"), soft_wrap=True)
            console.print(_rich_table(block))
        else:
            console.print(Text(block))


def _rich_table(table: Table) -> RichTable:
    shown = RichTable(box=SIMPLE_HEAD)
    for rank, name in enumerate(table.header):
        shown.add_column(
            Text(name), justify="right" if rank else "left", overflow="fold", no_wrap=not rank
        )
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def comparison_markdown(document: Document) -> str:
    """GitHub Markdown. Names from files are text there: no link, mention, HTML or column."""
    lines = [f"### {document.title}", ""]
    for warning in document.warnings:
        lines += ["> [!WARNING]", f"> {_paragraph(warning)}", ""]
    lines += [f"- {_paragraph(line)}" for line in document.lines]
    for block in document.blocks:
        lines.append("")
        if isinstance(block, str):
            lines.append(_paragraph(block))
            continue
        lines += [f"**{literal(block.title)}**", "", _markdown_row(block.header)]
        lines.append("| --- |" + " ---: |" * (len(block.header) - 1))
        lines += map(_markdown_row, block.rows)
    return "\n".join(lines) + "\n"


def _markdown_row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(literal, cells)) + " |"


def _paragraph(text: str) -> str:
    """A line of its own, where a first sign or number could begin a list or a rule."""
    text = text.strip()
    if re.match(r"[-+=]|\d+[.)]", text):
        return f"&#{ord(text[0])};{literal(text[1:])}"
    return literal(text)


def literal(text: str) -> str:
    """Text that Markdown shows as it is.

    Everything but letters, digits and harmless signs becomes a character reference, which Markdown
    never reads as structure. GitHub looks for mentions and issue numbers in the finished page, so
    a zero-width space follows `@` and `#` and parts `www.` and `GH-1`.
    """
    text = _LITERAL.sub(_reference, text)
    return _LINKS.sub(r"\1&#8203;\2", text)


def _reference(match: re.Match[str]) -> str:
    character = match.group()
    return f"&#{ord(character)};" + ("&#8203;" if character in "@#" else "")
