"""Where output goes: results to stdout, everything said about them to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from kvsim.errors import InputError

PIPE_WIDTH = 160
"""Columns of tables when stdout is not a terminal, where nothing says how wide it is."""


def stdout_console() -> Console:
    """For tables. Text is never read as markup."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def print_json(value: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def complain(error: InputError) -> None:
    """Write an input error to stderr: what is wrong, then the way out on a line of its own."""
    place = f"{error.where}: " if error.where else ""
    say(f"kvsim: {place}{error.problem}.")
    if error.fix:
        say(f"  Fix: {error.fix}")


def say(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(printable(text) + "\n")


def printable(text: str) -> str:
    """`text` with control characters, which may come from a file, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
