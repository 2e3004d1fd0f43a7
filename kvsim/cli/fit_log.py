"""`kvsim fit --from-log`: what a start-up log says, and whether it agrees with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kvsim.cli.console import print_json, stdout_console
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.catalog import Model
    from kvsim.planning.audit import Audit, Check
    from kvsim.startup_logs import Found

_TUNINGS = ("-hf", "-instruct", "-chat", "-it", "-base")
"""Ends of names that change no shape."""
_LONGEST = 60
"""Characters of a text from a log."""


def show_log(path: str, model: Model | None, *, as_json: bool) -> None:
    """Read the log, check its last start-up, and print both. `model` None: the log's own."""
    from kvsim.planning.audit import audit
    from kvsim.startup_logs import read_startup_log

    log = read_startup_log(path)
    found = audit(log, model or _named(log.settings.get("model")))
    if as_json:
        print_json(_document(found))
    else:
        _print(found)


def _named(setting: Found | None) -> Model | None:
    """The catalogue's model of the name in the log; None for one it does not know."""
    from kvsim.catalog import get_model

    if setting is None or not isinstance(setting.value, str):
        return None
    name = setting.value[:200].lower().rstrip("/").rpartition("/")[2].removeprefix("meta-")
    plain = name
    for suffix in _TUNINGS:
        plain = plain.removesuffix(suffix)
    for candidate in dict.fromkeys((setting.value[:200], name, plain)):
        try:
            return get_model(candidate)
        except InputError:
            continue
    return None


def _document(found: Audit) -> dict[str, Any]:
    log, refusal = found.log, found.log.refusal
    return {
        "server": log.server,
        "version": log.version,
        "engine": log.engine,
        "release": None if found.release is None else found.release.name,
        "model": None if found.model is None else found.model.name,
        "settings": {name: _found(one) for name, one in log.settings.items()},
        "figures": {name: _found(one) for name, one in log.figures.items()},
        "refusal": None if refusal is None else {"kind": refusal.kind, "line": refusal.line},
        "checks": [_check(one) for one in found.checks],
        "notes": list(found.notes),
        "starts": log.starts,
        "cut": log.cut,
    }


def _found(one: Found) -> dict[str, Any]:
    return {
        "value": one.value,
        "unit": one.unit,
        "rounding": one.rounding,
        "line": one.line,
        "rule": one.rule,
    }


def _check(one: Check) -> dict[str, Any]:
    return {
        "what": one.what,
        "unit": one.unit,
        "printed": one.printed,
        "expected": [one.low, one.high],
        "agrees": one.agrees,
        "line": one.line,
        "how": one.how,
    }


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
