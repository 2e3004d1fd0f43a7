"""Messages without the server's folders, and the line of a text that a message is about."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvsim.errors import InputError
from kvsim.workload.store import TRACES_VARIABLE

_LINE = re.compile(r":(\d{1,7})\Z", re.ASCII)


def without_folders(text: str, *folders: Path) -> str:
    """`text` in which files below `folders` have no folder, and traces that of the variable."""
    for folder in folders:
        text = text.replace(f"{folder}{os.sep}", "")
    traces = Path(os.environ.get(TRACES_VARIABLE, ""))
    if traces.is_absolute() and len(traces.parts) > 1:
        text = text.replace(str(traces), f"${TRACES_VARIABLE}")
    return text


def cleaned(error: InputError, *folders: Path) -> InputError:
    """The same error without the server's folders."""
    where = None if error.where is None else without_folders(error.where, *folders)
    fix = None if error.fix is None else without_folders(error.fix, *folders)
    return InputError(without_folders(error.problem, *folders), where=where, fix=fix)


def line_of(error: InputError, name: str) -> int | None:
    """The line, from 1, of the file called `name` that an error is about; None if of none."""
    where = error.where or ""
    found = _LINE.search(where)
    return int(found[1]) if found and where.startswith(f"{name}:") else None


def around(text: str, line: int, *, before: int = 3, after: int = 2) -> str:
    """The lines around one, numbered, with a mark at it; a line of more than 200 characters cut."""
    lines = text.splitlines()
    first, last = max(1, line - before), min(len(lines), line + after)
    width = len(str(last))
    return "\n".join(
        f"{'>' if number == line else ' '} {number:>{width}} | {lines[number - 1][:200]}"
        for number in range(first, last + 1)
    )
