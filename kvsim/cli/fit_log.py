"""`kvsim fit --from-log`: what a start-up log says, and whether it agrees with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kvsim.cli.console import print_json, stdout_console

if TYPE_CHECKING:
    from kvsim.catalog import Model
    from kvsim.planning.audit import Audit

_LONGEST = 60
"""Characters of a text from a log."""


def show_log(path: str, model: Model | None, *, as_json: bool) -> None:
    """Read the log, check its last start-up, and print both. `model` None: the log's own."""
    from kvsim.planning.audit import audit
    from kvsim.planning.from_log import audit_document, model_of_log
    from kvsim.startup_logs import read_startup_log

    log = read_startup_log(path)
    found = audit(log, model or model_of_log(log))
    if as_json:
        print_json(audit_document(found))
    else:
        _print(found)


def _print(found: Audit) -> None:
    console, log = stdout_console(), found.log
    version = f" {log.version}" if log.version else ""
    title = f"{log.server}{version}, start-up {log.starts} of {log.starts}"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for name in ("figure", "printed", "line"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for name, one in [*log.settings.items(), *log.figures.items()]:
        shown = Text(f"{_short(one.value)} {one.unit}".strip())
        table.add_row(name, shown, f"{one.line:,}")
    console.print(table)
    if log.refusal is not None:
        console.print(f"line {log.refusal.line:,}: the server refused: {log.refusal.kind}")
    for check in found.checks:
        word = "agrees" if check.agrees else "DOES NOT AGREE"
        console.print(
            Text(
                f"{check.what} (line {check.line:,}): {_number(check.printed)} {check.unit} {word}"
                f" with {_number(check.low)} to {_number(check.high)}, {check.how}"
            ),
            soft_wrap=True,
        )
    if not found.checks:
        console.print("nothing here can be checked against anything else")
    for note in found.notes:
        console.print(Text(note), soft_wrap=True)
    if log.cut:
        console.print("the log is longer than what is read: its end was left out")


def _short(value: object) -> str:
    """Printable characters only: a log may hold escape codes."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
